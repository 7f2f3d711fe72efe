//! Debian's kernel: the same in each guest and host but User-Mode Linux, so that these differ in all else only.

use std::path::PathBuf;

use crate::{
    error::Error,
    packages::{self, entries},
};

/// A kernel and its modules.
pub struct Kernel {
    /// The compressed kernel.
    pub image: PathBuf,
    /// The tree of its modules.
    pub modules: PathBuf,
    /// Its release, as `uname -r` says it.
    pub release: String,
}

impl Kernel {
    /// Finds the kernel that was fetched.
    ///
    /// # Errors
    /// [`Error::Missing`] where none was.
    pub fn find() -> Result<Kernel, Error> {
        let files = packages::files(packages::KERNEL)?;
        let trees = files.join("lib/modules");
        let modules = entries(&trees)?.pop().ok_or_else(|| {
            Error::Missing(format!("{}: no kernel is there; run `fairlane lab setup`", trees.display()))
        })?;
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Kernel { image: files.join(format!("boot/vmlinuz-{release}")), modules: modules.join("kernel"), release })
    }

    /// Finds the kernel, and fetches it where that was not done.
    pub fn find_or_fetch() -> Result<Kernel, Error> {
        Kernel::find().or_else(|_| {
            packages::fetch(&[packages::KERNEL], &|_| ())?;
            Kernel::find()
        })
    }
}
