//! Memory on a file system of the frontend's own that answers nothing, and other descriptors whose use waits for others: no
//! worker blocks on them, nor does a neighbour.

mod frontend;

use fairlane_core::time::Nanos;
use fairlane_port::{Control, Status};
use frontend::*;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::MFdFlags;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Requests of linux/fuse.h.
const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const INIT: u32 = 26;

/// A file system with one file that can be opened, and that answers no request from then on. It ends when this is
/// dropped.
struct SilentFileSystem {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SilentFileSystem {
    /// Mounts it, visible to the present thread only.
    fn mount(mut device: File, at: &Path) -> SilentFileSystem {
        unshare(CloneFlags::CLONE_NEWNS).expect("the test may create a namespace");
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_PRIVATE | MsFlags::MS_REC, nothing).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("silent"), at, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut request = vec![0; 1 << 17];
            while !stopped.load(Ordering::Relaxed) {
                let mut ready = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
                if poll(&mut ready, PollTimeout::from(20u8)).unwrap() > 0 {
                    // A read returns a request, or an error.
                    let len = device.read(&mut request).unwrap();
                    answer(&mut device, &request[..len]);
                }
            }
        });
        SilentFileSystem { stop, thread: Some(thread) }
    }
}

impl Drop for SilentFileSystem {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The file system ends with its descriptor, and blocked callers return.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers the requests that open the file (fuse_init_out, fuse_entry_out, fuse_open_out).
fn answer(device: &mut File, request: &[u8]) {
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
    let mut reply = match word(4) {
        INIT => [7u32, 31, 1 << 16, 0, 0, 1 << 16, 1].iter().flat_map(|word| word.to_ne_bytes()).collect(),
        LOOKUP => {
            // Its number, and no caching of it.
            let mut entry = 2u64.to_ne_bytes().to_vec();
            entry.resize(40, 0);
            // Its attributes: number, size.
            entry.extend([2u64, MEMORY].iter().flat_map(|long| long.to_ne_bytes()));
            entry.resize(40 + 60, 0);
            entry.extend([libc::S_IFREG | 0o600, 1].iter().flat_map(|word| word.to_ne_bytes()));
            entry.resize(128, 0);
            entry
        }
        OPEN => vec![0; 16],
        _ => return,
    };
    if word(4) == INIT {
        reply.resize(64, 0);
    }
    let mut message = (16 + reply.len() as u32).to_ne_bytes().to_vec();
    message.extend([0; 4]);
    message.extend(&request[8..16]);
    message.extend(&reply);
    device.write_all(&message).unwrap();
}

/// Threads that close files are those of all tests, so these run one by one.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether files of this process are being closed.
fn closing() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.any(|name| name.trim() == "fairlane-close")
}

#[test]
fn memory_on_a_file_system_that_answers_nothing_blocks_no_worker() {
    let _alone = alone();
    let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(device) if nix::unistd::geteuid().is_root() => device,
        refused => {
            // Past the test harness, which shows only what failed.
            let _ = writeln!(std::io::stderr(), "SKIPPED: this test needs root and FUSE: {refused:?}");
            return;
        }
    };
    let mountpoint = tempfile::tempdir().unwrap();
    // Declared in this order, so that the file system ends before its file is closed whatever fails.
    let (file, file_system);
    file_system = SilentFileSystem::mount(device, mountpoint.path());
    file = OpenOptions::new().read(true).write(true).open(mountpoint.path().join("memory")).unwrap();
    let mut served = Vec::new();
    for (request, payload) in [
        (SET_MEM_TABLE, &[1, GUEST, MEMORY, USER, 0][..]),
        (SET_LOG_BASE, &[4096, 0]),
        (SET_VRING_CALL, &[0]),
        (GET_FEATURES, &[]),
    ] {
        let (dir, path) = place();
        let mut backend = Backend::listen(&path, 1);
        let frontend = Frontend::connect(&path, 8);
        frontend.set_up(RICH, 0);
        frontend.send_longs(request, payload, &[file.as_raw_fd()]);
        let (why, backend) = without_waiting(move || (backend.until_disabled(), backend));
        assert!(why.contains("memory must be a memfd, or a file on tmpfs, hugetlbfs or a disk"), "{why}");
        served.push((dir, path, backend));
    }
    // A thread has its name once it runs.
    until(closing);

    // Its vif accepts no frontend while that is so: there is one such thread for each vif.
    let (_dir, path, mut backend) = served.remove(0);
    let frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 2);
    for _ in 0..10 {
        backend.handle(Nanos(0));
    }
    assert!(matches!(backend.port.status(), Status::Disabled(_)));
    drop(file_system);
    until(|| !closing());
    backend.until_up();
}

/// A connection whose last owner waits for an hour, as it closes it, until the other end is gone; and that end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other_end, _) = listener.accept().unwrap();
    let hour = libc::linger { l_onoff: 1, l_linger: 3600 };
    setsockopt(&stream, sockopt::Linger, &hour).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    (stream, other_end)
}

/// Runs what must not wait for others, in a thread.
fn without_waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || _ = done.send(work()));
    ended.recv_timeout(Duration::from_secs(60)).expect("the worker waits for others")
}

#[test]
fn a_connection_that_lingers_blocks_no_worker() {
    let _alone = alone();
    let (stream, _other_end) = lingering();
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 0);
    frontend.send_longs(SET_VRING_CALL, &[0], &[stream.as_raw_fd()]);
    let why = without_waiting(move || {
        // The message has the only one left.
        drop(stream);
        backend.until_disabled()
    });
    assert!(why.contains("what notifies an eventfd or a Unix socket"), "{why}");
}

/// A backend, and its frontend, which is served; and the directory of its socket, with the socket's path.
fn served() -> ((tempfile::TempDir, PathBuf), Backend, Frontend) {
    let (dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 2);
    backend.until_up();
    ((dir, path), backend, frontend)
}

/// The backend ends at once, and what lingers is closed once its other end is gone.
fn leaves_apart(backend: Backend, other_end: TcpStream) {
    without_waiting(move || drop(backend));
    until(closing);
    drop(other_end);
    until(|| !closing());
}

/// A message in a Unix socket has it, and nobody else.
#[test]
fn a_connection_that_lingers_in_a_socket_blocks_no_worker() {
    let _alone = alone();
    for (as_call, until_replaced) in [(true, true), (true, false), (false, false)] {
        let (stream, other_end) = lingering();
        let (_place, mut backend, frontend) = served();
        let holder = if as_call {
            let (call, far) = UnixStream::pair().unwrap();
            frontend.send_longs(SET_VRING_CALL, &[0], &[call.as_raw_fd()]);
            backend.settle();
            drop(call);
            far
        } else {
            frontend.stream.try_clone().unwrap()
        };
        // Of the connection itself, what has not been read is never looked at.
        let control = [ControlMessage::ScmRights(&[stream.as_raw_fd()])];
        sendmsg::<()>(holder.as_raw_fd(), &[IoSlice::new(b"12345")], &control, MsgFlags::empty(), None).unwrap();
        drop((stream, holder));
        let backend = without_waiting(move || {
            if until_replaced {
                frontend.send_longs(SET_VRING_CALL, &[0], &[frontend.calls[0].as_raw_fd()]);
                backend.settle();
                assert_eq!(backend.port.status(), Status::Up);
            }
            if as_call {
                drop(frontend);
                backend.until(|port| port.status() == Status::Waiting);
            }
            backend
        });
        leaves_apart(backend, other_end);
    }
}

/// The same, sent by a frontend that was never accepted.
#[test]
fn a_connection_that_lingers_in_a_queue_blocks_no_worker() {
    let _alone = alone();
    let (stream, other_end) = lingering();
    let ((_dir, path), mut backend, _frontend) = served();
    let second = Frontend::connect(&path, 8);
    second.send_longs(SET_VRING_CALL, &[0], &[stream.as_raw_fd()]);
    backend.settle();
    drop((stream, second));
    leaves_apart(backend, other_end);
}

/// Memory of which the backend has the only file is freed as it is closed, which takes long.
#[test]
fn the_worker_frees_no_memory() {
    let _alone = alone();
    const LARGE: u64 = 256 << 20;
    let large = || {
        let file = file_of("large", LARGE, MFdFlags::empty());
        fallocate(&file, FallocateFlags::empty(), 0, LARGE as libc::off_t).unwrap();
        file
    };
    let spent = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let ours = large();
    let before = spent();
    drop(ours);
    let alone = spent() - before;
    let table = [1, GUEST, LARGE, USER, 0];
    let unknown = 200;
    let log = [LARGE, 0];
    for (request, payload) in [(GET_FEATURES, &[][..]), (unknown, &[]), (SET_MEM_TABLE, &table), (SET_LOG_BASE, &log)] {
        let (_dir, path) = place();
        let mut backend = Backend::listen(&path, 1);
        let mut used = Duration::ZERO;
        for replaced in [true, false] {
            let frontend = Frontend::connect(&path, 8);
            frontend.set_up(RICH, 2);
            backend.until_up();
            frontend.send_longs(request, payload, &[large().as_raw_fd()]);
            let before = spent();
            backend.settle();
            if replaced {
                frontend.set_up(RICH, 2);
                frontend.send_longs(SET_LOG_BASE, &[LOG, 0], &[file_of("log", LOG, MFdFlags::empty()).as_raw_fd()]);
                backend.settle();
            }
            drop(frontend);
            backend.settle();
            used += spent() - before;
        }
        assert!(used < alone / 2, "request {request}: the worker took {used:?}; to free it takes {alone:?}");
    }
}
