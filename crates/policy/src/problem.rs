//! What is wrong with a TOML file that a person wrote, and on which line: a policy here, an experiment in the lab.

use std::collections::HashSet;
use std::ops::Range;
use thiserror::Error;
use toml::de::DeTable;

/// One thing wrong with a file. Displays as `policy.toml:12: weight must be 1 to 10000, not 0`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {message}")]
pub struct Problem {
    /// The file's name, as it was given.
    pub file: String,
    /// Line of the file; the first is 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// The problems found so far in one file.
pub struct Problems<'a> {
    file: &'a str,
    /// Where each line begins, in bytes.
    lines: Vec<usize>,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    /// None yet, in the file of that name and text.
    pub fn new(file: &'a str, text: &str) -> Self {
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        // What follows the last newline is a line only if something stands there.
        let lines = std::iter::once(0).chain(newlines.filter(|start| *start < text.len())).collect();
        Problems { file, lines, found: Vec::new() }
    }

    /// Adds a problem of the text that `span` covers.
    pub fn add(&mut self, span: Range<usize>, message: impl Into<String>) {
        let line = self.line(span.start);
        self.found.push(Problem { file: self.file.to_owned(), line, message: message.into() });
    }

    /// The line of a place in the text.
    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All problems in the order of the file, each once.
    pub fn sorted(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|problem| problem.line);
        let mut seen = HashSet::new();
        self.found.retain(|problem| seen.insert((problem.line, problem.message.clone())));
        self.found
    }
}

/// Takes a file's text apart.
///
/// # Errors
/// Where it is not TOML.
pub fn document<'a>(file: &str, text: &'a str) -> Result<DeTable<'a>, Vec<Problem>> {
    let mut problems = Problems::new(file, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut lines = HashSet::new();
    for error in errors {
        // What follows the first error of a line is mostly its consequence.
        let span = error.span().unwrap_or_default();
        if lines.insert(problems.line(span.start)) {
            problems.add(span, error.message());
        }
    }
    if problems.is_empty() { Ok(document.into_inner()) } else { Err(problems.sorted()) }
}

/// What was probably meant by `given`, if anything comes near.
pub(crate) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |name| strsim::normalized_damerau_levenshtein(given, name);
    // The comparison takes time and memory for every pair of letters; no name is longer than 32.
    let known = known.filter(|_| given.len() <= 64);
    let near = known.map(|name| (likeness(name), name)).filter(|(likeness, _)| *likeness >= 0.5);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// Says that there is no `kind` called `given`: ``no link is named `lna`, did you mean `lan`?``
pub fn unknown_name<'a>(kind: &str, given: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let known = known.filter(|name| !name.is_empty());
    let hint = match nearest(given, known.clone()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => match known.take(8).collect::<Vec<_>>()[..] {
            [] => "there is none".to_owned(),
            ref names => format!("the {kind}s are {}", names.join(", ")),
        },
    };
    format!("no {kind} is named `{}`, {hint}", given.escape_debug())
}
