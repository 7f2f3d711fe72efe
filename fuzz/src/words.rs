//! Text from an input's bytes, and what must be said of it if it is wrong.

use fairlane_policy::problem::Problem;

/// The text that bytes stand for: from 128 on a word each, so that inputs form meaningful files. Bytes beyond the words are a letter
/// that needs two bytes.
pub fn text(bytes: &[u8], words: &[&str]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte.checked_sub(128).map(usize::from) {
            None => text.push(char::from(*byte)),
            Some(word) => text.push_str(words.get(word).copied().unwrap_or("\u{e4}")),
        }
    }
    text
}

/// Asserts that mistakes of a text are some, and each is said and names one of its lines.
pub fn named(text: &str, problems: &[Problem]) {
    let lines = text.lines().count().max(1);
    assert!(!problems.is_empty());
    assert!(problems.iter().all(|problem| (1..=lines).contains(&problem.line) && !problem.message.is_empty()));
}
