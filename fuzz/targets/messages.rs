//! Arbitrary messages on the vhost-user socket, with file descriptors attached anywhere: the backend survives, closes the descriptors
//! that it received, and serves the next frontend.
#![no_main]

#[path = "../../crates/port/tests/frontend/mod.rs"]
mod frontend;

use fairlane_core::packet::Offload;
use fairlane_core::time::Nanos;
use fairlane_fuzz::{Message, settle};
use fairlane_port::{Control, Status};
use frontend::*;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

struct Bench {
    _directory: tempfile::TempDir,
    path: PathBuf,
    backend: Backend,
    conversations: u64,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new({
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vif.sock");
        let backend = Backend::listen(&path, 1);
        Bench { _directory: directory, path, backend, conversations: 0 }
    });
}

fuzz_target!(|input: &[u8]| {
    BENCH.with_borrow_mut(|Bench { path, backend, conversations, .. }| {
        let Some((&start, mut input)) = input.split_first() else { return };
        let frontend = Frontend::connect(path, 8);
        if start & 1 != 0 {
            frontend.set_up(RICH, 2);
        }
        for count in 1.. {
            let Some(message) = Message::next(&mut input) else { break };
            if count % 64 == 0 {
                // No other thread reads what this thread sends, and the socket holds some hundred messages.
                settle(|| backend.handle(Nanos(0)));
            }
            let files = message.files(frontend.memory.as_raw_fd(), frontend.kicks[0].as_raw_fd());
            if message.raw {
                frontend.send_raw(message.payload, &files);
            } else {
                frontend.send(message.request, message.flags, message.payload, &files);
            }
        }
        settle(|| backend.handle(Nanos(0)));
        backend.put(&frame(0, 100), Offload::default());
        backend.take();
        drop(frontend);
        settle(|| backend.handle(Nanos(0)));
        *conversations += 1;
        if *conversations % 1000 == 0 {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
            assert!(open < 100, "{open} descriptors are open");
            let mut frontend = Frontend::connect(path, 8);
            frontend.set_up(RICH, 2);
            settle(|| backend.handle(Nanos(0)));
            assert_eq!(backend.port.status(), Status::Up);
            frontend.transmit(0, [0; HEADER], &frame(1, 200));
            assert_eq!(backend.take().len(), 1);
            drop(frontend);
            settle(|| backend.handle(Nanos(0)));
        }
    });
});
