//! Bounds on the process's address space that frontends map, and that none can use up another's share.
//!
//! Limits apply to the whole process, so this is a test program of its own.

mod frontend;

use fairlane_port::{Control, Status};
use frontend::*;
use nix::sys::memfd::MFdFlags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const TIB: u64 = 1 << 40;

/// A frontend with a sparse file of a tebibyte as memory.
fn sparse() -> (TempDir, PathBuf, Backend, Frontend) {
    let (dir, path) = place();
    let backend = Backend::listen(&path, 1);
    let memory = file_of("sparse", TIB, MFdFlags::empty());
    let frontend = Frontend::over(UnixStream::connect(&path).unwrap(), memory, 8);
    (dir, path, backend, frontend)
}

/// Shares this many bytes of the sparse file.
fn share(frontend: &Frontend, bytes: u64) {
    frontend.send_longs(SET_MEM_TABLE, &[1, GUEST, bytes, USER, 0], &[frontend.memory.as_raw_fd()]);
}

#[test]
fn a_guest_has_one_memory_table_and_one_log_mapped_at_a_time() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_dir, _, mut backend, frontend) = sparse();
    frontend.set_up(RICH, 2);
    backend.until_up();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, pages * 4096 + TIB + TIB / 2, hard).unwrap();
    // The log has a bit for each page, up to the end of the memory.
    let log = log_file(1 << 30);
    for _ in 0..3 {
        share(&frontend, TIB);
        frontend.send_longs(SET_LOG_BASE, &[1 << 30, 0], &[log.as_raw_fd()]);
        backend.settle();
    }
    let status = backend.port.status();
    // No guest needs a larger log.
    log.set_len(TIB).unwrap();
    frontend.send_longs(SET_LOG_BASE, &[(1 << 30) + 4096, 0], &[log.as_raw_fd()]);
    backend.settle();
    let after = backend.port.status();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    assert_eq!(status, Status::Up);
    let Status::Disabled(why) = after else { panic!("it is {after:?}") };
    assert!(why.contains("more than 1 GiB of files would be mapped"), "{why}");
}

#[test]
fn sparse_memory_of_others_leaves_each_guest_its_share() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut greedy = Vec::new();
    // Until nothing is left: first whole tebibytes, then halves, and so on.
    for bytes in [TIB, TIB / 2, TIB / 4, TIB / 8, TIB / 16, TIB / 32 + 4096] {
        let why = loop {
            let (dir, path, mut backend, frontend) = sparse();
            frontend.set_up(RICH, 0);
            share(&frontend, bytes);
            backend.settle();
            if let Status::Disabled(why) = backend.port.status() {
                break why;
            }
            greedy.push((dir, path, backend, frontend));
            assert!(greedy.len() < 100, "there is a bound for all guests");
        };
        assert!(why.contains("GiB are mapped for all guests already"), "{why}");
    }
    let (_dir, _, mut backend, frontend) = sparse();
    frontend.set_up(RICH, 2);
    share(&frontend, 32 << 30);
    backend.until_up();
}

#[test]
fn regions_of_others_leave_each_guest_its_entries() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let pages = |first: u64| (first..first + 31).flat_map(|at| [at << 12, 4096, at << 12, 0]);
    let mut table = vec![32, GUEST, MEMORY, USER, 0];
    table.extend(pages(1));
    // More than 4,096 regions.
    let guests: Vec<_> = (0..150)
        .map(|_| {
            let (dir, path) = place();
            let mut backend = Backend::listen(&path, 1);
            let frontend = Frontend::connect(&path, 8);
            frontend.set_up(RICH, 2);
            frontend.send_longs(SET_MEM_TABLE, &table, &[frontend.memory.as_raw_fd(); 32]);
            backend.until_up();
            (dir, backend, frontend)
        })
        .collect();
    // And each is guarded: one whose file is truncated disables its own port only.
    for (truncated, (_, mut backend, mut frontend)) in guests.into_iter().enumerate() {
        if truncated % 50 == 49 {
            frontend.memory.set_len(0).unwrap();
            assert!(backend.take().is_empty());
            backend.assert_disabled("truncated its guest's memory");
        } else {
            frontend.transmit(0, NO_HEADER, &frame(1, 60));
            assert_eq!(backend.take().len(), 1);
        }
    }
}
