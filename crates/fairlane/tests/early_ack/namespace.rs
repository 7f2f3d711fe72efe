//! A network namespace, with its own interfaces, addresses and TCP.
#![allow(dead_code)] // each test program uses some of it

use fairlane_lab::Error;
use nix::sched::{CloneFlags, unshare};
use std::io;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A namespace, which is removed with the last thread and process in it.
pub(crate) struct Namespace(Sender<Job>);

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Errors
    /// [`Error::Missing`] without root.
    pub(crate) fn new() -> Result<Namespace, Error> {
        let (jobs, received) = channel::<Job>();
        let (entered, outcome) = channel();
        thread::spawn(move || {
            let failed = unshare(CloneFlags::CLONE_NEWNET);
            entered.send(failed).unwrap();
            received.into_iter().for_each(|job| job());
        });
        let missing = |error| Error::Missing(format!("no network namespace (root): {error}"));
        outcome.recv().unwrap().map(|()| Namespace(jobs)).map_err(missing)
    }

    /// Runs a function in a new thread in the namespace.
    pub(crate) fn spawn<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        let (started, thread) = channel();
        // A new thread is in the namespace of the thread that starts it.
        self.0.send(Box::new(move || started.send(thread::spawn(work)).unwrap())).unwrap();
        thread.recv().unwrap()
    }

    /// Runs a function in the namespace.
    pub(crate) fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        self.spawn(work).join().unwrap()
    }

    /// Runs iproute2's `ip` in the namespace.
    pub(crate) fn ip(&self, arguments: &str) {
        self.program("ip", arguments.split(' ')).expect("iproute2 is installed");
    }

    /// Makes the packet filter drop a random one of `many` packets to a port, before TCP.
    ///
    /// # Errors
    /// nftables is not installed.
    pub(crate) fn drop_one_in(&self, many: u32, port: u16) -> io::Result<()> {
        let rule = format!("tcp dport {port} numgen random mod {many} 0 drop");
        let chain = format!("table inet faults {{ chain incoming {{ type filter hook input priority 0; {rule}; }}; }}");
        self.program("nft", [chain.as_str()])
    }

    /// Runs a program that must succeed.
    fn program<'a>(&self, name: &str, arguments: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
        let mut command = Command::new(name);
        command.args(arguments);
        let shown = format!("{command:?}");
        let done = self.run(move || command.output())?;
        assert!(done.status.success(), "{shown}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }
}
