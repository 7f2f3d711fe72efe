//! A backend and its guests that stay up, and are driven for a slice at a time while all others are stopped.
//!
//! What is not driven is stopped by signals, so that a slice begins at once: no process starts, no ring is set up, and the
//! threads that poll leave their cores to the others. After 100 ms without a core, the guests are at 0.95 of their rate within
//! 4 ms, and at all of it within 10 ms.

use crate::machine::Machine;
use crate::ovs::OpenVSwitch;
use crate::process::Process;
use crate::testpmd::{self, Guests, Traffic};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The first part of a slice, which is not measured.
const WARM: Duration = Duration::from_millis(10);

/// The measured part of a slice.
const MEASURED: Duration = Duration::from_millis(60);

/// A backend that can be stopped and continued.
pub(crate) trait Pause {
    /// Stops it.
    ///
    /// # Errors
    /// It has ended.
    fn suspend(&mut self) -> Result<()>;

    /// Lets it continue.
    ///
    /// # Errors
    /// It has ended.
    fn resume(&mut self) -> Result<()>;
}

impl Pause for Process {
    fn suspend(&mut self) -> Result<()> {
        Process::suspend(self)
    }

    fn resume(&mut self) -> Result<()> {
        Process::resume(self)
    }
}

impl Pause for OpenVSwitch {
    fn suspend(&mut self) -> Result<()> {
        self.switch_mut().suspend_by("pmd")
    }

    fn resume(&mut self) -> Result<()> {
        self.switch_mut().resume()
    }
}

/// A backend and its guests.
pub(crate) struct Pair {
    guests: Guests,
    backend: Box<dyn Pause>,
    _home: TempDir,
}

impl Pair {
    /// Starts a backend with the sockets of so many guests, and the guests, waits until frames move, and stops both.
    ///
    /// # Errors
    /// One of them does not start.
    pub(crate) fn start<B: Pause + 'static>(
        machine: &Machine,
        guests: usize,
        traffic: Traffic,
        backend: impl FnOnce(&Path, &[PathBuf]) -> Result<B>,
    ) -> Result<Pair> {
        let home = tempfile::tempdir()?;
        let sockets = testpmd::sockets(home.path(), guests);
        let backend = Box::new(backend(home.path(), &sockets)?);
        let mut guests = testpmd::guests(home.path(), &sockets, traffic, machine.real_time)?;
        guests.moving()?;
        let mut pair = Pair { guests, backend, _home: home };
        pair.suspend()?;
        Ok(pair)
    }

    /// Drives it for a slice. Returns the frames a second of all guests together; not a number if none moved, because a busy
    /// machine's kernel gave both cores to others, as it does for 50 ms of each second.
    ///
    /// # Errors
    /// One of them has ended.
    pub(crate) fn slice(&mut self) -> Result<f64> {
        self.backend.resume()?;
        self.guests.resume()?;
        thread::sleep(WARM);
        let (before, start) = self.guests.frames()?;
        thread::sleep(MEASURED);
        let (after, end) = self.guests.frames()?;
        self.suspend()?;
        Ok(if after > before { (after - before) as f64 / (end - start).as_secs_f64() } else { f64::NAN })
    }

    fn suspend(&mut self) -> Result<()> {
        self.guests.suspend()?;
        self.backend.suspend()
    }
}
