//! A process at its limit of open descriptors: a message's descriptors beyond the limit are lost, and the others are
//! closed.
//!
//! Limits apply to the whole process, so this is a test program of its own.

mod frontend;

use frontend::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::os::fd::AsRawFd;

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_message_with_lost_descriptors_leaks_none() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // And the file by which eventfds are recognized, from the first frontend on.
    let before = open() + 1;
    for _ in 0..20 {
        let frontend = Frontend::connect(&path, 8);
        frontend.set_up(RICH, 0);
        backend.settle();
        let file = log_file(4096);
        // The next five descriptors can be opened.
        let lowest = file.try_clone().unwrap().as_raw_fd() as u64;
        frontend.send_longs(SET_MEM_TABLE, &[8, 0, 4096, 0, 0], &[file.as_raw_fd(); 30]);
        setrlimit(Resource::RLIMIT_NOFILE, lowest + 5, hard).unwrap();
        let why = backend.until_disabled();
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert!(why.contains("descriptors of a message were lost"), "{why}");
        drop((frontend, file));
        // What it left is closed in a thread.
        backend.until(|_| open() == before);
    }
}
