//! Reads a policy file and its drop-ins, or reports every problem of them, and writes drop-ins.

use anyhow::Context;
use fairlane_policy::problem::Problem;
use fairlane_policy::{File, Files, Loaded, drop_in_directory, renamed_keys};
use std::fs::{File as Directory, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Why a policy file cannot be used. Displays one line per problem: `policy.toml:12: weight must be 1 to 10000, not 0`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read policy {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file can be read, but has these problems.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// Reads a policy file and its drop-ins. Warns of keys by their old names on the standard error output. Wrong drop-ins are left out,
/// and their problems are in the result.
///
/// # Errors
/// See [`PolicyError`].
pub(crate) fn read(path: &Path) -> Result<Loaded, PolicyError> {
    let files = files(path)?;
    let loaded = files.load(&Files::default()).map_err(PolicyError::Invalid)?;
    let warnings = files.all().flat_map(|file| renamed_keys(&file.name, &file.text));
    warnings.for_each(|warning| eprintln!("warning: {warning}"));
    Ok(loaded)
}

/// Reads the texts of a policy file and its drop-ins: all files `*.toml` in a directory beside it, `policy.d` for `policy.toml`.
///
/// # Errors
/// The policy file, or the directory, cannot be read.
pub(crate) fn files(path: &Path) -> Result<Files, PolicyError> {
    let text = |path: &Path| std::fs::read_to_string(path);
    let unreadable = |path: &Path, error| PolicyError::Unreadable { path: path.to_owned(), error };
    let policy = text(path).map_err(|error| unreadable(path, error))?;
    let directory = drop_in_directory(path);
    let names = match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        entries => entries
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>())
            .map_err(|error| unreadable(&directory, error))?,
    };
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let names = names.iter().filter(|name| name.extension().is_some_and(|end| end == "toml") && !is_hidden(name));
    let drop_ins = names.map(|name| match text(name) {
        Ok(text) => File::new(name.display().to_string(), text),
        Err(error) => File::unreadable(name.display().to_string(), error.to_string()),
    });
    Ok(Files::new(File::new(path.display().to_string(), policy), drop_ins.collect()))
}

/// Writes a file, or leaves what was there before: the new text gets its name only once it is on the disk.
///
/// # Errors
/// The system's error, most often because the disk is full or read-only.
pub(crate) fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = || -> io::Result<()> {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        // Hidden, so it is no drop-in if it is left behind. Removed unless it is renamed.
        let mut file = tempfile::Builder::new().prefix(".").tempfile_in(directory)?;
        file.write_all(text.as_bytes())?;
        // The backend reads it as another user, whatever the umask of who writes it.
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Directory::open(directory)?.sync_all()
    };
    written().with_context(|| format!("cannot write {}; what was there before is unchanged", path.display()))
}
