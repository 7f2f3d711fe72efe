//! Ends bpftrace as Ctrl-C does.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Child;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Interrupts, one a second, after which it is given up.
const TRIES: u32 = 60;

/// Interrupts it, and returns the lines that it prints until it has ended: its maps.
///
/// bpftrace 0.17 misses a signal that comes just before it waits for one.
pub(crate) fn interrupt(process: &Child, lines: impl Iterator<Item = String> + Send) -> Vec<String> {
    let signal = |signal| kill(Pid::from_raw(process.id() as i32), signal).expect("nobody has waited for its end");
    let (to, read) = mpsc::channel();
    thread::scope(|scope| {
        // Nobody listens any more once it was given up.
        scope.spawn(move || to.send(lines.collect()).ok());
        for _ in 0..TRIES {
            signal(Signal::SIGINT);
            if let Ok(lines) = read.recv_timeout(Duration::from_secs(1)) {
                return lines;
            }
        }
        signal(Signal::SIGKILL);
        panic!("bpftrace has not ended after {TRIES} interrupts");
    })
}
