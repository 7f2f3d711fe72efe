//! A log of events with their times.

use std::sync::Mutex;
use std::time::Instant;

pub(crate) struct Journal {
    start: Instant,
    lines: Mutex<Vec<String>>,
}

impl Journal {
    pub(crate) fn new() -> Journal {
        Journal { start: Instant::now(), lines: Mutex::default() }
    }

    /// Adds an event and prints it.
    pub(crate) fn write(&self, event: impl std::fmt::Display) {
        let line = format!("{:8.2} {event}", self.start.elapsed().as_secs_f64());
        eprintln!("{line}");
        self.lines.lock().expect("nobody panics while it writes").push(line);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("nobody panics while it writes").clone()
    }
}
