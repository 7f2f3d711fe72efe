//! Standard output, whose reader may leave at any time.

use anyhow::Context;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Writes text. A reader that left (`| head`) has what it wanted, which is no error.
///
/// # Errors
/// It cannot be written: a full disk, mostly.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}

/// Writes a value as JSON for people and programs alike.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// So many of a thing, in words: `1 result`, `2 results`.
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
