//! Debian's kernel: the same in each guest and host except User-Mode Linux, so that measurements do not compare kernels.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    cache,
    contents::{entries, hash},
    error::{Error, IoContext},
    packages, program,
};

/// A kernel and its modules.
pub(crate) struct Kernel {
    /// The compressed kernel (vmlinuz).
    pub image: PathBuf,
    /// The tree of its modules.
    pub modules: PathBuf,
    /// Its release, as `uname -r` prints it.
    pub release: String,
}

impl Kernel {
    /// Finds the fetched kernel.
    ///
    /// # Errors
    /// [`Error::Missing`] if none was fetched.
    pub(crate) fn find() -> Result<Kernel, Error> {
        let files = packages::files(packages::KERNEL)?;
        let trees = files.join("lib/modules");
        let modules = entries(&trees)?
            .pop()
            .ok_or_else(|| Error::Missing(format!("{} has no kernel; run `fairlane lab setup`", trees.display())))?;
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Kernel { image: files.join(format!("boot/vmlinuz-{release}")), modules: modules.join("kernel"), release })
    }

    /// The uncompressed kernel (vmlinux), cached: an emulated CPU takes seconds to unpack it.
    ///
    /// # Errors
    /// [`Error::Missing`] if the kernel is not compressed by xz.
    pub(crate) fn unpacked(&self) -> Result<PathBuf, Error> {
        let image = fs::read(&self.image).doing(|| self.image.display().to_string())?;
        let directory = cache::directory()?;
        let path = directory.join(format!("vmlinux-{}", &hash(&image)[..16]));
        if !cache::holds(&path) {
            let payload = payload(&image).ok_or_else(|| {
                Error::Missing(format!("{}: a kernel compressed by xz is needed", self.image.display()))
            })?;
            unxz(payload, &directory, &path)?;
        }
        Ok(path)
    }

    /// Finds the kernel, and fetches it if necessary.
    pub(crate) fn find_or_fetch() -> Result<Kernel, Error> {
        Kernel::find().or_else(|_| {
            packages::fetch(&[packages::KERNEL], &|_| ())?;
            Kernel::find()
        })
    }
}

/// The compressed payload of a bzImage, located by its header (Documentation/x86/boot.rst: setup_sects, payload_offset,
/// payload_length). Its last four bytes are the uncompressed size and do not belong to the xz stream.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let start = (usize::from(*image.get(0x1f1)?) + 1) * 512 + number(0x248)?;
    let payload = image.get(start..start.checked_add(number(0x24c)?)?)?;
    payload.starts_with(b"\xfd7zXZ\0").then(|| &payload[..payload.len() - 4])
}

/// Unpacks into a temporary file of `directory` that is renamed to `path` when it is complete.
fn unxz(bytes: &[u8], directory: &Path, path: &Path) -> Result<(), Error> {
    let describe = || path.display().to_string();
    let xz = program::find("xz", "xz, which unpacks the kernel,", "xz-utils")?;
    let mut packed = tempfile::NamedTempFile::new_in(directory).doing(describe)?;
    packed.write_all(bytes).doing(describe)?;
    let file = tempfile::NamedTempFile::new_in(directory).doing(describe)?;
    let output = Stdio::from(file.reopen().doing(describe)?);
    let mut xz = Command::new(xz);
    let status = xz.args(["--decompress", "--stdout"]).stdin(packed.reopen().doing(describe)?).stdout(output).status();
    if !status.doing(|| format!("{xz:?}"))?.success() {
        return Err(Error::Missing(format!("{}: xz cannot unpack the kernel", path.display())));
    }
    file.persist(path).map(drop).map_err(|error| error.error).doing(describe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_xz_payload_is_accepted() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&32u32.to_le_bytes());
        assert_eq!(payload(&image), None);
        image[1040..1046].copy_from_slice(b"\xfd7zXZ\0");
        assert_eq!(payload(&image).map(<[u8]>::len), Some(28));
        assert_eq!(payload(&image[..1050]), None);
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
        assert_eq!(payload(b""), None);
    }
}
