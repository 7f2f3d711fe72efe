//! The log of a machine's console.

use std::{fs, path::Path};

/// The last 15 lines of a log that begin with `mark`, indented. Empty lines are left out.
pub(crate) fn last_lines(log: &Path, mark: &str) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(mark) && !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(15)..].iter().map(|line| format!("    {line}"));
    last.collect::<Vec<_>>().join("\n")
}
