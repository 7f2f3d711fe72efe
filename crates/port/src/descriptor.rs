//! What a frontend passes, looked at without asking its file system: that may be the frontend's own (FUSE), or at the other end of a
//! network, and whoever asks it anything, touches a page of its files or closes one waits for as long as it likes. A worker must not.
//!
//! So such files are known by what the kernel says of them by itself, turned away, and [closed](close_apart) where nobody waits.

use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::thread::{Builder, JoinHandle};

/// The kind of a descriptor: of the constants S_IFMT those that are set in its mode; none for an eventfd and its like.
///
/// # Errors
/// What the system says.
pub(crate) fn kind(file: impl AsFd) -> io::Result<u32> {
    known(file).map(|(kind, _)| kind)
}

/// Whether it can be used and closed without waiting for others than this machine's memory and disks.
///
/// A file of memory (a memfd, or on tmpfs or hugetlbfs) is one that has seals, and one on a disk has the disk's device number. Those
/// whose number has no major part are of file systems without a disk of their own: FUSE, NFS, 9p and their like, but also overlayfs
/// and btrfs, which cannot be told from these without asking.
pub(crate) fn is_local(file: impl AsFd) -> bool {
    if fcntl(&file, FcntlArg::F_GET_SEALS).is_ok() {
        return true;
    }
    known(file).is_ok_and(|(kind, major)| match kind {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK => major != 0,
        // Pipes, sockets and devices are the kernel's wherever their names are.
        _ => true,
    })
}

/// A descriptor's kind, and its file system's device number, the major part. The file system is not asked (AT_STATX_DONT_SYNC).
fn known(file: impl AsFd) -> io::Result<(u32, u32)> {
    // SAFETY: zeros are such a structure.
    let mut info: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags) = (file.as_fd().as_raw_fd(), libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC);
    // SAFETY: the path is an empty string, and the kernel writes one structure.
    if unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_TYPE, &raw mut info) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((u32::from(info.stx_mode) & libc::S_IFMT, info.stx_dev_major))
}

/// Closes files in a thread of its own, which ends when that is done.
pub(crate) fn close_apart(files: Vec<File>) -> Option<JoinHandle<()>> {
    // Where there is no thread they stay open: to close them here might be to wait for ever.
    let files = ManuallyDrop::new(files);
    Builder::new().name("fairlane-close".to_owned()).spawn(move || drop(ManuallyDrop::into_inner(files))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::unix::net::UnixStream;

    #[test]
    fn memory_and_what_the_kernel_makes_are_local() {
        assert!(is_local(memfd_create("memory", MFdFlags::empty()).unwrap()));
        assert!(is_local(memfd_create("huge", MFdFlags::MFD_HUGETLB).unwrap()));
        assert!(is_local(tempfile::tempfile_in("/dev/shm").unwrap()));
        assert!(is_local(EventFd::new().unwrap()));
        let (pipe, _write) = io::pipe().unwrap();
        assert!(is_local(pipe));
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(is_local(socket));
        assert!(is_local(File::open("/dev/null").unwrap()));
    }

    #[test]
    fn file_systems_without_a_disk_are_not() {
        for path in ["/proc/self/maps", "/proc/self", "/sys"] {
            let file = File::open(path).unwrap();
            assert!(!is_local(file), "{path}");
        }
    }

    #[test]
    fn kinds_are_told() {
        assert_eq!(kind(EventFd::new().unwrap()).unwrap(), 0);
        assert_eq!(kind(memfd_create("memory", MFdFlags::empty()).unwrap()).unwrap(), libc::S_IFREG);
        assert_eq!(kind(UnixStream::pair().unwrap().0).unwrap(), libc::S_IFSOCK);
    }
}
