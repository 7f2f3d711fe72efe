//! A network namespace of its own: whatever is started in it has its interfaces, its addresses and its TCP.

use nix::sched::{CloneFlags, unshare};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A namespace, which vanishes with the last thread and process in it.
pub struct Namespace(Sender<Job>);

impl Namespace {
    /// A new one. This takes root.
    pub fn new() -> Result<Namespace, nix::Error> {
        let (jobs, received) = channel::<Job>();
        let (entered, outcome) = channel();
        thread::spawn(move || {
            let failed = unshare(CloneFlags::CLONE_NEWNET);
            entered.send(failed).unwrap();
            received.into_iter().for_each(|job| job());
        });
        outcome.recv().unwrap().map(|()| Namespace(jobs))
    }

    /// Runs a function in a thread of its own in it.
    pub fn spawn<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        let (started, thread) = channel();
        // A thread is in the namespace of the thread that starts it.
        self.0.send(Box::new(move || started.send(thread::spawn(work)).unwrap())).unwrap();
        thread.recv().unwrap()
    }

    /// Runs a function in it.
    pub fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        self.spawn(work).join().unwrap()
    }

    /// Runs iproute2 in it.
    pub fn ip(&self, arguments: &str) {
        let mut ip = Command::new("ip");
        ip.args(arguments.split(' '));
        let done = self.run(move || ip.output().expect("iproute2 is there"));
        assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }
}
