//! Finds result files in directories.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// The result files that `paths` name: files as given, and every `result.json` in a directory and its subdirectories, in the
/// order of their paths. Duplicates are left out.
///
/// # Errors
/// All errors: [`Error::Io`] for a path that cannot be read, [`Error::NoResult`] for a directory without a result file.
pub fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Vec<Error>> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut known = BTreeSet::new();
    for path in paths {
        match below(path) {
            Ok(files) if files.is_empty() => errors.push(Error::NoResult { path: path.clone() }),
            // A missing file is not an error here: reading it gives a better message.
            Ok(files) => found.extend(
                files.into_iter().filter(|file| known.insert(fs::canonicalize(file).unwrap_or_else(|_| file.clone()))),
            ),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

fn below(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |cause| Error::Io { action: "read", path: path.to_owned(), cause };
    let mut entries =
        fs::read_dir(path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()).map_err(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        // A link to a directory is not followed, as it could form a cycle.
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            files.extend(below(&entry.path())?);
        } else if entry.file_name() == "result.json" {
            files.push(entry.path());
        }
    }
    Ok(files)
}
