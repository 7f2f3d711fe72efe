//! Files that a plan or an experiment names: policies and traces. A sweep is of their contents, too.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use toml::Value;

/// Digests of files, by name.
pub(crate) type Digests = BTreeMap<String, String>;

/// The digests of all files beside `path` whose names are among these values.
///
/// A string may be something else, and a file have that name by chance; then a sweep is of a file that it does not use.
pub(crate) fn digests<'a>(path: &Path, values: impl IntoIterator<Item = &'a Value>) -> Digests {
    let mut names = Vec::new();
    values.into_iter().for_each(|value| strings(value, &mut names));
    names.sort_unstable();
    names.dedup();
    let digest = |name: &str| {
        let file = path.with_file_name(name);
        // What cannot be read is reported by who uses it.
        let contents = file.is_file().then(|| fs::read(&file).ok()).flatten()?;
        Some((name.to_owned(), format!("{:x}", Sha256::digest(contents))))
    };
    names.into_iter().filter_map(digest).collect()
}

/// Finds all strings of a value.
fn strings<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
        Value::Table(table) => table.values().for_each(|value| strings(value, found)),
        _ => {}
    }
}
