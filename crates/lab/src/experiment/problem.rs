//! What is wrong with an experiment's file, and on which line.

use std::fmt;
use std::ops::Range;

/// One thing wrong with an experiment's file. Displays as `ping.toml:12: what is wrong, what would be right`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file's name, as it was given.
    pub file: String,
    /// Line of the file; the first is 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// The problems found so far in one file.
pub(super) struct Problems<'a> {
    file: &'a str,
    text: &'a str,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Problems { file, text, found: Vec::new() }
    }

    /// Adds a problem of the text that `span` covers.
    pub fn add(&mut self, span: Range<usize>, message: impl Into<String>) {
        let line = self.line(span.start);
        self.found.push(Problem { file: self.file.to_owned(), line, message: message.into() });
    }

    /// The line of a place in the text. What follows the last line's end belongs to that line.
    pub fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.trim_end().len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All problems in the order of the file, each once.
    pub fn sorted(mut self) -> Vec<Problem> {
        self.found.sort_by(|a, b| (a.line, &a.message).cmp(&(b.line, &b.message)));
        self.found.dedup();
        self.found
    }
}

/// Says that there is no `kind` called `given`, and what was probably meant.
pub(super) fn unknown<'a>(kind: &str, given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let given = given.escape_debug();
    // The comparison takes time for every pair of letters; no name is longer than 64.
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(&given.to_string(), name);
    let near = known.iter().filter(|_| given.to_string().len() <= 64).map(|name| (likeness(name), name));
    let near = near.filter(|(likeness, _)| *likeness >= 0.5).max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = near.map_or(String::new(), |(_, name)| format!(", did you mean `{name}`?"));
    format!("no {kind} is named `{given}`{hint} (there are {})", known.join(", "))
}
