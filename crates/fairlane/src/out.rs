//! Standard output, whose reader may close it at any time.

use anyhow::Context;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Writes text. A closed pipe (`| head`) is no error: its reader has read enough.
///
/// # Errors
/// The write failed, most often because the disk is full.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}

/// Writes a value as indented JSON.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
