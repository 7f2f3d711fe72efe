//! Text from an input's bytes.

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
