//! QEMU's monitor (QMP: lines of JSON), which migrates a guest from one QEMU to another.

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

/// How long QEMU may take to listen, to answer, and to migrate a guest.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval of retries.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A connection to a guest's monitor.
pub struct Monitor {
    guest: String,
    lines: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the monitor of the guest of this name, once it listens.
    ///
    /// # Errors
    /// [`Error::Io`] if it does not listen in time.
    pub fn connect(guest: &str, socket: &Path) -> Result<Monitor, Error> {
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Err(_) if start.elapsed() < MONITOR_TIMEOUT => thread::sleep(POLL_INTERVAL),
                connected => break connected.doing(|| socket.display().to_string())?,
            }
        };
        stream.set_read_timeout(Some(MONITOR_TIMEOUT)).doing(|| socket.display().to_string())?;
        let mut monitor = Monitor { guest: guest.to_owned(), lines: BufReader::new(stream) };
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Executes a command; returns its return value.
    ///
    /// # Errors
    /// [`Error::Failed`] with QEMU's own message, [`Error::Gone`] if the connection fails.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Error> {
        let request = json!({ "execute": command, "arguments": arguments });
        let gone = |why: &dyn Display| {
            let how = format!("its monitor did not execute {command}: {why}");
            Error::Gone { guest: self.guest.clone(), how }
        };
        writeln!(self.lines.get_mut(), "{request}").map_err(|error| gone(&error))?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).map_err(|error| gone(&error))? == 0 {
                return Err(gone(&"it closed the connection"));
            }
            // The greeting and events have neither key.
            let mut answer: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
            if let Some(error) = answer.get("error") {
                return Err(self.failed(format!("{command}: {error}")));
            }
        }
    }

    /// Waits until the guest's migration has completed.
    ///
    /// # Errors
    /// [`Error::Failed`] if it fails, with QEMU's own message, or takes more than 60 seconds.
    pub fn await_completion(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let migration = self.execute("query-migrate", json!({}))?;
            match migration["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => return Err(self.failed(format!("migration: {migration}"))),
                _ if start.elapsed() > MONITOR_TIMEOUT => {
                    return Err(self.failed(format!("not migrated within 60 s: {migration}")));
                }
                _ => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn failed(&self, reason: String) -> Error {
        Error::Failed { guest: self.guest.clone(), reason }
    }
}
