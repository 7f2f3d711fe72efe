//! Guests that wait for their CPU: it is taken from them in turn, as a hypervisor does that shares it among three guests.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::CpuSwitch;

/// Slices that a guest waits after each slice in which it runs.
const SLICES: u32 = 2;

/// A guest whose CPU is taken away in turn, until this is dropped. It runs then.
pub(super) struct Waits {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waits {
    /// Lets the guest run for one slice and wait for two, again and again.
    pub(super) fn begin(switch: CpuSwitch, slice: Duration) -> Waits {
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            // Moments are fixed from the beginning, so that delays of this thread do not add up.
            let mut next = Instant::now();
            for (set, slices) in
                [(CpuSwitch::resume as fn(&CpuSwitch) -> _, 1), (CpuSwitch::suspend, SLICES)].into_iter().cycle()
            {
                next += slices * slice;
                // A guest that has ended is reported by its agent.
                let gone = set(&switch).is_err();
                let wait = next.saturating_duration_since(Instant::now());
                if gone || ended.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
            let _ = switch.resume();
        });
        Waits { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// Whether a process is stopped (proc(5)).
    fn stopped(pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    }

    #[test]
    fn a_guest_runs_and_waits_in_turn_and_runs_in_the_end() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let waits = Waits::begin(CpuSwitch::of("guest", child.id()), Duration::from_millis(5));
        for state in [true, false, true] {
            let begun = Instant::now();
            while stopped(child.id()) != state {
                assert!(begun.elapsed() < Duration::from_secs(60), "stopped is never {state}");
            }
        }
        drop(waits);
        assert!(!stopped(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
