//! Files made once and kept: initramfs images and downloaded kernels.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, IoContext},
    packages::hash,
};

/// The directory of kept files, made where it is not there: `$XDG_CACHE_HOME/fairlane`, else `~/.cache/fairlane`.
pub fn directory() -> Result<PathBuf, Error> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .ok_or_else(|| Error::Missing("neither XDG_CACHE_HOME nor HOME is set: no place to keep images".to_owned()))?;
    let path = base.join("fairlane");
    fs::create_dir_all(&path).doing(|| path.display().to_string())?;
    Ok(path)
}

/// Keeps `contents` in `directory` under `prefix` and their hash; answers the path. What is there already serves if it is
/// still what it was, and no half-written file is ever seen under the name.
pub fn keep(directory: &Path, prefix: &str, contents: &[u8]) -> Result<PathBuf, Error> {
    let path = directory.join(format!("{prefix}-{}", &hash(contents)[..16]));
    if !fs::read(&path).is_ok_and(|kept| kept == contents) {
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
    fn kept_by_contents() {
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
    fn a_place_that_cannot_be_written_is_named() {
        let error = keep(Path::new("/proc/fairlane"), "image", b"").unwrap_err();
        assert!(error.to_string().contains("/proc/fairlane/image-"), "{error}");
    }
}
