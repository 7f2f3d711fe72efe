//! Cached files: initramfs images, unpacked kernels and scripts.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::{
    contents::{entries, hash},
    error::{Error, IoContext},
};

/// The cache's directory, created if missing: `$XDG_CACHE_HOME/fairlane`, else `~/.cache/fairlane`.
pub(crate) fn directory() -> Result<PathBuf, Error> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .ok_or_else(|| Error::Missing("neither XDG_CACHE_HOME nor HOME is set: no place to keep images".to_owned()))?;
    let path = base.join("fairlane");
    fs::create_dir_all(&path).doing(|| path.display().to_string())?;
    Ok(path)
}

/// How long an unused file is kept: longer than any process that was given its path takes to load it.
const UNUSED: Duration = Duration::from_secs(24 * 3600);

/// Whether a file is in the cache. If so, it counts as used now.
pub(crate) fn holds(path: &Path) -> bool {
    let there = path.is_file();
    if there {
        // If the time cannot be set, the file is removed early and made again.
        let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }
    there
}

/// Removes the files of `directory` that were not used for a day: their inputs have changed.
///
/// # Errors
/// [`Error::Io`] if the directory cannot be read or a file not removed.
pub(crate) fn tidy(directory: &Path) -> Result<(), Error> {
    for path in entries(directory)? {
        let describe = || path.display().to_string();
        // Another process may have removed it.
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        let age = about.modified().doing(describe)?.elapsed().unwrap_or_default();
        if about.is_file() && age > UNUSED {
            fs::remove_file(&path).doing(describe)?;
        }
    }
    Ok(())
}

/// Stores `contents` in `directory` under `prefix` and their hash; returns the path. An existing file is reused if its
/// contents are intact. The file appears under its name only when it is complete.
pub(crate) fn keep(directory: &Path, prefix: &str, contents: &[u8]) -> Result<PathBuf, Error> {
    let path = directory.join(format!("{prefix}-{}", &hash(contents)[..16]));
    if !(holds(&path) && fs::read(&path).is_ok_and(|kept| kept == contents)) {
        let describe = || path.display().to_string();
        let file = tempfile::NamedTempFile::new_in(directory).doing(describe)?;
        fs::write(file.path(), contents).doing(describe)?;
        file.persist(&path).map_err(|error| error.error).doing(describe)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_their_contents() {
        let directory = tempfile::tempdir().unwrap();
        let one = keep(directory.path(), "image", b"one").unwrap();
        let two = keep(directory.path(), "image", b"two").unwrap();
        assert_eq!(keep(directory.path(), "image", b"one").unwrap(), one);
        assert_eq!((fs::read(&one).unwrap(), fs::read(&two).unwrap()), (b"one".to_vec(), b"two".to_vec()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        fs::write(&one, b"damaged").unwrap();
        assert_eq!(keep(directory.path(), "image", b"one").unwrap(), one);
        assert_eq!(fs::read(&one).unwrap(), b"one");
    }

    #[test]
    fn files_not_used_for_a_day_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let kept = ["asked for", "forgotten"].map(|text| keep(directory.path(), "image", text.as_bytes()).unwrap());
        for path in &kept {
            File::open(path).unwrap().set_modified(SystemTime::now() - 2 * UNUSED).unwrap();
        }
        assert!(holds(&kept[0]) && !holds(&directory.path().join("never made")));
        tidy(directory.path()).unwrap();
        assert_eq!(kept.map(|path| path.exists()), [true, false]);
    }

    #[test]
    fn an_error_names_the_path_that_cannot_be_written() {
        let error = keep(Path::new("/proc/fairlane"), "image", b"").unwrap_err();
        assert!(error.to_string().contains("/proc/fairlane/image-"), "{error}");
    }
}
