//! Directory entries, and the hash of bytes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::error::{Error, IoContext};

/// The entries of a directory.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let describe = || directory.display().to_string();
    let entries = fs::read_dir(directory).doing(describe)?;
    entries.map(|entry| entry.map(|entry| entry.path()).doing(describe)).collect()
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
