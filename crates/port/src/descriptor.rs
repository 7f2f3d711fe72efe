//! Descriptors that a frontend passes, inspected without asking their file system. It may be the frontend's own (FUSE)
//! or remote: any query to it, any touch of a page of its files, and closing one, can block for as long as it likes. A
//! worker must never block.
//!
//! So such files are recognized by what the kernel itself knows of them, refused, and closed in a thread
//! [that may block](apart). So are descriptors that others can keep busy: an epoll set that was added to ours, whose files
//! may be any and without number, and a connection of TCP, whose end may linger.
//!
//! What is accepted can take long to close, too: a Unix socket holds messages with any descriptors, and memory of which no
//! one else has the file is freed, page by page. So that is left to such a thread as well.

use crate::eventfd::is_eventfd;
use crate::interface::get;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::thread::Builder;

/// The kind of a descriptor: the S_IFMT bits of its mode; 0 for an eventfd and other anonymous inodes.
///
/// # Errors
/// The system's error.
pub(crate) fn kind(file: impl AsFd) -> io::Result<u32> {
    inspect(file).map(|(kind, _)| kind)
}

/// Whether it can be used and closed without waiting for anything but this machine's memory and disks. Of descriptors
/// without a name these are eventfds, and of sockets Unix sockets.
///
/// A file in memory (a memfd, or on tmpfs or hugetlbfs) has seals, and one on a disk has the disk's device number. A
/// device number without a major part belongs to a file system without a disk of its own: FUSE, NFS, 9p and the like,
/// but also overlayfs and btrfs, which cannot be told from these without asking them.
pub(crate) fn is_local(file: impl AsFd) -> bool {
    if fcntl(&file, FcntlArg::F_GET_SEALS).is_ok() {
        return true;
    }
    inspect(&file).is_ok_and(|(kind, major)| match kind {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK => major != 0,
        libc::S_IFSOCK => is_unix(&file),
        0 => is_eventfd(&file),
        // Pipes and devices belong to the kernel, wherever their names are.
        _ => true,
    })
}

/// Whether it is a Unix socket.
pub(crate) fn is_unix(socket: impl AsFd) -> bool {
    get(socket, libc::SOL_SOCKET, libc::SO_DOMAIN, 0).is_ok_and(|domain: libc::c_int| domain == libc::AF_UNIX)
}

/// A descriptor's kind, and the major device number of its file system. The file system is not asked
/// (AT_STATX_DONT_SYNC).
fn inspect(file: impl AsFd) -> io::Result<(u32, u32)> {
    // SAFETY: all zeros is a valid `statx`.
    let mut info: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags) = (file.as_fd().as_raw_fd(), libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC);
    // SAFETY: the path is an empty string, and the kernel writes one structure.
    if unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_TYPE, &raw mut info) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((u32::from(info.stx_mode) & libc::S_IFMT, info.stx_dev_major))
}

/// Closes what may take long to close, in a thread of its own, which then ends: with it ends the other side of the
/// returned socket. If no thread can be started, `close` is not called but dropped.
pub(crate) fn apart(close: impl FnOnce() + Send + 'static) -> Option<UnixStream> {
    let (here, there) = UnixStream::pair().ok()?;
    let run = move || {
        unpin();
        close();
        drop(there);
    };
    Builder::new().name("fairlane-close".to_owned()).spawn(run).ok().map(|_| here)
}

/// Lets this thread, which a worker started, run where the process's first thread may, and not on the worker's own core only.
fn unpin() {
    if let Ok(cores) = sched_getaffinity(Pid::this()) {
        // If not, it is done on the worker's core, in turn with the worker.
        _ = sched_setaffinity(Pid::from_raw(0), &cores);
    }
}

/// Closes files [apart](apart), if there are any.
pub(crate) fn close_apart(files: Vec<File>) {
    if !files.is_empty() {
        apart(move || drop(files));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::CpuSet;
    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    #[test]
    fn memory_pipes_sockets_and_devices_are_local() {
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
    fn what_others_can_keep_busy_is_not_local() {
        let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap();
        assert!(!is_local(epoll.0));
        assert!(!is_local(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()));
        assert!(!is_local(std::net::TcpListener::bind("127.0.0.1:0").unwrap()));
    }

    #[test]
    fn file_systems_without_a_disk_are_not_local() {
        for path in ["/proc/self/maps", "/proc/self", "/sys"] {
            let file = File::open(path).unwrap();
            assert!(!is_local(file), "{path}");
        }
    }

    #[test]
    fn what_a_pinned_thread_leaves_is_closed_on_any_core() {
        let own = || sched_getaffinity(Pid::from_raw(0)).unwrap();
        let (all, (found, cores)) = (sched_getaffinity(Pid::this()).unwrap(), std::sync::mpsc::channel());
        let pinned = std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set((0..CpuSet::count()).rfind(|core| all.is_set(*core).unwrap()).unwrap()).unwrap();
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            apart(move || found.send(own()).unwrap()).expect("a thread");
            assert_eq!(own(), one);
        });
        pinned.join().unwrap();
        assert_eq!(cores.recv().unwrap(), all);
    }

    #[test]
    fn kinds_are_recognized() {
        assert_eq!(kind(EventFd::new().unwrap()).unwrap(), 0);
        assert_eq!(kind(memfd_create("memory", MFdFlags::empty()).unwrap()).unwrap(), libc::S_IFREG);
        assert_eq!(kind(UnixStream::pair().unwrap().0).unwrap(), libc::S_IFSOCK);
    }
}
