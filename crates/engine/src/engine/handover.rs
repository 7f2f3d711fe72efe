//! Hands everything over to a successor: another process of the same user, which asked for it over the control socket. This process
//! serves until the successor is ready to, and again if that one fails.

use super::{Error, Shared, captures};
use crate::{control, ports};
use fairlane_port::capture::Recording;
use fairlane_port::handover::{self, Resting};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

impl Shared {
    /// Gives everything to a process, and waits until that serves it.
    ///
    /// # Errors
    /// Nothing was given, or the process failed: this one serves on.
    pub(super) fn hand_over(&self, to: &UnixStream, process: i32) -> Result<(), Error> {
        // Before the policy is locked: a card that is found at this moment changes it.
        let cards = ports::rest()?;
        // Locked to the end: nothing changes meanwhile.
        let _policy = self.policy();
        // Before the workers rest: whoever starts or stops a capture holds it while it waits for a worker.
        let captures = self.captures();
        let resting = self.workers().iter().map(|worker| worker.rest()).collect::<Result<Vec<_>, _>>()?;
        let left = captures::leave(&captures);
        let given = give(to);
        drop(left);
        match given {
            Ok(connection) => {
                handover::given();
                resting.into_iter().chain(cards).for_each(Resting::for_good);
                // There is one successor: the lock is held.
                let _ = self.successor.set((process, connection));
                self.request_stop();
                Ok(())
            }
            Err(error) => {
                // It may still run: it must learn that it has failed.
                let _ = to.shutdown(Shutdown::Both);
                captures.values().for_each(Recording::take_back);
                Err(Error::failed("the successor did not begin to serve, so this process serves on", error))
            }
        }
    }
}

/// Gives everything, and waits until the other process has begun to serve: it says so by one byte. Returns the connection to it.
fn give(mut to: &UnixStream) -> io::Result<UnixStream> {
    let connection = to.try_clone()?;
    control::agree(to)?;
    handover::give(to)?;
    match to.read(&mut [0])? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended, or closed the connection")),
        _ => Ok(connection),
    }
}
