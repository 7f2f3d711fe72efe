//! Rings and buffers of arbitrary content, split and packed: nothing outside the guest's memory is accessed, and no frame is out of bounds.
#![no_main]

#[path = "../../crates/port/tests/frontend/mod.rs"]
mod frontend;

use fairlane_core::packet::Offload;
use fairlane_core::time::Nanos;
use fairlane_fuzz::settle;
use fairlane_port::{Control, Sink, Source, Status};
use frontend::*;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::path::PathBuf;

struct Bench {
    _directory: tempfile::TempDir,
    path: PathBuf,
    backend: Backend,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new({
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vif.sock");
        let backend = Backend::listen(&path, 1);
        Bench { _directory: directory, path, backend }
    });
}

fuzz_target!(|input: &[u8]| {
    BENCH.with_borrow_mut(|Bench { path, backend, .. }| {
        let Some((&format, input)) = input.split_first() else { return };
        let mut frontend = Frontend::connect(path, 8);
        let packed = if format & 1 == 0 { 0 } else { F_PACKED };
        let more = [0, F_IN_ORDER, F_EVENT_IDX, F_IN_ORDER | F_EVENT_IDX][usize::from(format >> 1 & 3)];
        // Before the rings start, or after.
        let is_filled = format & 8 != 0;
        if is_filled {
            fill(&mut frontend, input, packed != 0);
        }
        frontend.set_up(RICH | packed | more, 2);
        settle(|| backend.handle(Nanos(0)));
        assert_eq!(backend.port.status(), Status::Up);
        if !is_filled {
            fill(&mut frontend, input, packed != 0);
        }
        for _ in 0..2 {
            backend.put(&frame(0, 1500), Offload::default());
            backend.put(&tcp_frame(4000), tcp_offload(Some(1400)));
            let batch = backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
            for frame in batch.frames() {
                assert!(frame.bytes() > 0 && frame.bytes() <= 65557);
                assert_eq!(bytes(&frame).len() as u64, frame.bytes());
            }
            let frames = batch.len();
            backend.port.consume(frames);
            backend.port.flush(Nanos(0));
        }
        drop(frontend);
        settle(|| backend.handle(Nanos(0)));
    });
});

/// Fills a guest's tables, rings and buffers from the input. The start of the buffers holds tables for indirect descriptors, because most
/// addresses point there.
fn fill(frontend: &mut Frontend, mut input: &[u8], packed: bool) {
    let mut take = |len: usize| {
        let (bytes, rest) = input.split_at(len.min(input.len()));
        input = rest;
        let mut padded = bytes.to_vec();
        padded.resize(len, 0);
        padded
    };
    let indices = take(4);
    for queue in 0..2 {
        for index in 0..8 {
            let descriptor = place(take(10), packed);
            frontend.write(ring(queue)[0] + 16 * index, &descriptor);
        }
        frontend.write(ring(queue)[1] + 4, &take(16).iter().map(|byte| byte & 15).collect::<Vec<_>>());
    }
    for index in 0..16 {
        frontend.write(BUFFERS + 16 * index, &place(take(10), packed));
    }
    frontend.write(BUFFERS + 256, &take(512));
    if packed {
        // What the driver asks for.
        (0..2).for_each(|queue| frontend.write(ring(queue)[1], &[indices[0], indices[1] & 0x80, indices[2] & 3, 0]));
        return;
    }
    for queue in 0..2 {
        frontend.set_available(queue, u16::from(indices[queue as usize] % 12));
    }
}

/// A descriptor from ten bytes; most have a valid address, and in a packed ring most are available in one of two rounds.
fn place(bytes: Vec<u8>, packed: bool) -> Vec<u8> {
    let offset = u64::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let address = match bytes[2] & 3 {
        0 => GUEST + BUFFERS + offset % 1024,
        1 => GUEST + MEMORY - offset % 4096,
        2 => GUEST + BUFFERS + 256,
        _ => GUEST + offset,
    };
    let len = u32::from_le_bytes([bytes[3], bytes[4], bytes[5] & 1, if bytes[5] == 255 { 255 } else { 0 }]);
    let (flags, next) = (u16::from(bytes[6] & 7), u16::from(bytes[7] & 15));
    let round = [AVAILABLE, AVAILABLE, USED, AVAILABLE | USED][usize::from(bytes[8] & 3)];
    if packed { descriptor(address, len, next, flags | round) } else { descriptor(address, len, flags, next) }
}
