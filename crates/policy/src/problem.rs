//! Problems in a TOML file, by line: a policy here, an experiment in the lab.

use std::collections::HashSet;
use std::ops::Range;
use thiserror::Error;
use toml::de::DeTable;

/// A problem in a file. Displays as `policy.toml:12: weight must be 1 to 10000, not 0`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {message}")]
pub struct Problem {
    /// The file's name as given.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// The problems found so far in one file.
pub struct Problems<'a> {
    file: &'a str,
    /// The byte offset of each line.
    lines: Vec<usize>,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    /// No problems yet, in a file with this name and text.
    pub fn new(file: &'a str, text: &str) -> Self {
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        // Text after the last newline is a line only if there is any.
        let lines = std::iter::once(0).chain(newlines.filter(|start| *start < text.len())).collect();
        Problems { file, lines, found: Vec::new() }
    }

    /// Adds a problem at the line of `span`.
    pub fn add(&mut self, span: Range<usize>, message: impl Into<String>) {
        let line = self.line(span.start);
        self.found.push(Problem { file: self.file.to_owned(), line, message: message.into() });
    }

    /// The line of a byte offset.
    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    /// Whether there are no problems so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All problems by line, without duplicates.
    pub fn sorted(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|problem| problem.line);
        let mut seen = HashSet::new();
        self.found.retain(|problem| seen.insert((problem.line, problem.message.clone())));
        self.found
    }
}

/// Parses a file's text as TOML.
///
/// # Errors
/// Every syntax error, at most one per line.
pub fn document<'a>(file: &str, text: &'a str) -> Result<DeTable<'a>, Vec<Problem>> {
    let mut problems = Problems::new(file, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut lines = HashSet::new();
    for error in errors {
        // Later errors of a line mostly follow from the first.
        let span = error.span().unwrap_or_default();
        if lines.insert(problems.line(span.start)) {
            problems.add(span, error.message());
        }
    }
    if problems.is_empty() { Ok(document.into_inner()) } else { Err(problems.sorted()) }
}

/// The known name most similar to `given`, if any is similar enough.
pub(crate) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |name| strsim::normalized_damerau_levenshtein(given, name);
    // The comparison takes time and memory for every pair of letters, and no name is longer than 32.
    let known = known.filter(|_| given.len() <= 64);
    let similar = known.map(|name| (similarity(name), name)).filter(|(similarity, _)| *similarity >= 0.5);
    similar.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// The message that no `kind` is named `given`: ``no link is named `lna`, did you mean `lan`?``
pub fn unknown_name<'a>(kind: &str, given: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let known = known.filter(|name| !name.is_empty());
    let hint = match nearest(given, known.clone()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => match known.take(8).collect::<Vec<_>>()[..] {
            [] => "there is none".to_owned(),
            ref names => format!("the {}s are {}", kind.replace(" or", "s and"), names.join(", ")),
        },
    };
    format!("no {kind} is named `{}`, {hint}", given.escape_debug())
}
