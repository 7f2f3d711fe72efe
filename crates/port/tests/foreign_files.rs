//! Memory on a file system of the frontend's own that answers nothing, and other descriptors whose use waits for others: no
//! worker blocks on them, nor does a neighbour.

mod frontend;

use fairlane_core::time::Nanos;
use fairlane_port::{Control, Status};
use frontend::*;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
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

/// Whether files of this process are being closed.
fn closing() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.any(|name| name.trim() == "fairlane-close")
}

#[test]
fn memory_on_a_file_system_that_answers_nothing_blocks_no_worker() {
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
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            let why = backend.until_disabled();
            done.send((why, backend)).unwrap();
        });
        let ended = ended.recv_timeout(Duration::from_secs(60));
        let (why, backend) = ended.expect("the worker blocks on the file system");
        assert!(why.contains("memory must be a memfd, or a file on tmpfs, hugetlbfs or a disk"), "{why}");
        served.push((dir, path, backend));
    }
    // A thread has its name once it runs.
    for _ in 0..500 {
        if closing() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(closing());

    // Its vif accepts no frontend while that is so: there is one such thread for each vif.
    let (_dir, path, mut backend) = served.remove(0);
    let frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 2);
    for _ in 0..10 {
        backend.handle(Nanos(0));
    }
    assert!(matches!(backend.port.status(), Status::Disabled(_)));
    drop(file_system);
    while closing() {
        thread::yield_now();
    }
    backend.until_up();
}

/// Its last owner waits until the other side has read all, as it is closed.
#[test]
fn a_connection_that_lingers_blocks_no_worker() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other_end, _) = listener.accept().unwrap();
    let hour = libc::linger { l_onoff: 1, l_linger: 3600 };
    setsockopt(&stream, sockopt::Linger, &hour).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 0);
    frontend.send_longs(SET_VRING_CALL, &[0], &[stream.as_raw_fd()]);
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        // The message has the only one left.
        drop(stream);
        done.send(backend.until_disabled()).unwrap();
    });
    let why = ended.recv_timeout(Duration::from_secs(60)).expect("the worker waits for a connection to end");
    assert!(why.contains("what notifies an eventfd or a Unix socket"), "{why}");
    drop(other_end);
}
