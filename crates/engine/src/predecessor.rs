//! The process that serves a policy's control socket, and hands everything over to this one.

use crate::control::{Client, Error};
use fairlane_port::handover;
use nix::unistd::alarm;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// How long this process may take to serve what it was given, in seconds: it is ended then, so that the former one, which waits, goes
/// on.
const PATIENCE: u32 = 10;

/// The former process, which does not serve any more. It goes on if this one ends.
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Takes over what the process at a control socket serves. To be called once, before anything is opened.
    ///
    /// # Errors
    /// Nobody listens there, or it refuses, perhaps as it is of another version.
    pub fn succeed(control: &Path) -> Result<Predecessor, Error> {
        let broken = |error| Error::Broken { path: control.to_owned(), error };
        alarm::set(PATIENCE);
        let former = Client::connect(control)?.hand_over()?;
        handover::take(&former).map_err(broken)?;
        Ok(Predecessor(former))
    }

    /// Tells it that this process serves, and waits for its end.
    ///
    /// # Errors
    /// It did not wait, and serves itself.
    pub fn end(self) -> io::Result<()> {
        let mut former = self.0;
        former.write_all(&[1])?;
        alarm::cancel();
        // It sends nothing more. A connection that breaks is as good as one that ends.
        let _ = former.read(&mut [0]);
        handover::done();
        Ok(())
    }
}
