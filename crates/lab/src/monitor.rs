//! QEMU's monitor (QMP: lines of JSON): what moves a guest from one QEMU to another.

use std::{
    fmt::Display,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::error::{Error, IoContext};

/// How long QEMU may take to listen, to answer, and to reach a state that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long between two looks.
const AGAIN: Duration = Duration::from_millis(10);

/// A connection to a guest's monitor.
pub struct Monitor {
    guest: String,
    lines: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the monitor of a guest of this name, as soon as it listens.
    ///
    /// # Errors
    /// It does not.
    pub fn connect(guest: &str, socket: &Path) -> Result<Monitor, Error> {
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Err(_) if start.elapsed() < PATIENCE => thread::sleep(AGAIN),
                connected => break connected.doing(|| socket.display().to_string())?,
            }
        };
        stream.set_read_timeout(Some(PATIENCE)).doing(|| socket.display().to_string())?;
        let mut monitor = Monitor { guest: guest.to_owned(), lines: BufReader::new(stream) };
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Has QEMU carry out a command; answers what it returns.
    ///
    /// # Errors
    /// QEMU's own words.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Error> {
        let request = json!({ "execute": command, "arguments": arguments });
        let gone = |why: &dyn Display| {
            let how = format!("its monitor was asked for {command}: {why}");
            Error::Gone { guest: self.guest.clone(), how }
        };
        writeln!(self.lines.get_mut(), "{request}").map_err(|error| gone(&error))?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).map_err(|error| gone(&error))? == 0 {
                return Err(gone(&"it hung up"));
            }
            // Greetings and events are neither.
            let mut answer: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
            if let Some(error) = answer.get("error") {
                return Err(self.failed(format!("{command}: {error}")));
            }
        }
    }

    /// Waits until the guest was moved away.
    ///
    /// # Errors
    /// It was not, with QEMU's words, or not in time.
    pub fn await_completion(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let migration = self.execute("query-migrate", json!({}))?;
            match migration["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => return Err(self.failed(format!("migration: {migration}"))),
                _ if start.elapsed() > PATIENCE => {
                    return Err(self.failed(format!("not moved within 60 s: {migration}")));
                }
                _ => thread::sleep(AGAIN),
            }
        }
    }

    fn failed(&self, reason: String) -> Error {
        Error::Failed { guest: self.guest.clone(), reason }
    }
}
