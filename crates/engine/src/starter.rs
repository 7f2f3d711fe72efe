//! Starts the workers of links that are added while the backend runs.
//!
//! A thread inherits the confinement of the one that starts it, and control threads may make other system calls than workers. So a
//! thread that is confined as a worker waits for such links.

use crate::bridge::Bridge;
use crate::clock::Monotonic;
use crate::confinement::{self, Kind};
use crate::worker::Worker;
use std::io;
use std::sync::mpsc::{self, Sender, SyncSender};

/// A worker to start, and where to send it.
struct Job {
    bridges: Vec<Bridge>,
    clock: Monotonic,
    cpu: Option<usize>,
    answer: SyncSender<io::Result<Worker>>,
}

/// The thread that starts workers; it ends when this is dropped.
pub(crate) struct Starter(Sender<Job>);

impl Starter {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread is left.
    pub(crate) fn new() -> io::Result<Starter> {
        let (jobs, received) = mpsc::channel::<Job>();
        confinement::spawn(Kind::Worker, "fairlane-start", move || {
            for Job { bridges, clock, cpu, answer } in received {
                // The client waits for it.
                let _ = answer.send(Worker::start_confined(bridges, clock, cpu));
            }
        })?;
        Ok(Starter(jobs))
    }

    /// Starts a worker, as [`Worker::start`] does, on a thread that is confined from its start.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn start(&self, bridges: Vec<Bridge>, clock: Monotonic, cpu: Option<usize>) -> io::Result<Worker> {
        let (answer, answered) = mpsc::sync_channel(1);
        let ended = || io::Error::other("the thread that starts workers has ended");
        self.0.send(Job { bridges, clock, cpu, answer }).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?
    }
}
