//! What a machine's console printed, as its log keeps it.

use std::{fs, path::Path};

/// The last lines of a log that begin with `mark`, indented.
pub fn last_lines(log: &Path, mark: &str) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(mark) && !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(15)..].iter().map(|line| format!("    {line}"));
    last.collect::<Vec<_>>().join("\n")
}
