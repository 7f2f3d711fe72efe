//! What was done, and when.

use std::sync::Mutex;
use std::time::Instant;

pub struct Diary {
    begun: Instant,
    lines: Mutex<Vec<String>>,
}

impl Diary {
    pub fn new() -> Diary {
        Diary { begun: Instant::now(), lines: Mutex::default() }
    }

    /// Enters something, and shows it.
    pub fn say(&self, what: impl std::fmt::Display) {
        let line = format!("{:8.2} {what}", self.begun.elapsed().as_secs_f64());
        eprintln!("{line}");
        self.lines.lock().expect("nobody panics while it writes").push(line);
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("nobody panics while it writes").clone()
    }
}
