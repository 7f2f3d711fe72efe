//! Attacks with memory regions and dirty logs.

use super::super::attack::{Attacker, Card, SIZE};
use crate::frontend::*;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::MFdFlags;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

/// Shares a sparse file of the largest permitted size, with buffers far apart in it; then a larger one.
pub(super) fn sparse_memory(attacker: &Attacker) -> Card {
    const LARGEST: u64 = 1 << 40;
    let sparse = file_of("sparse", 2 * LARGEST, MFdFlags::empty());
    let mut card = connect_with_memory(attacker, sparse, LARGEST);
    for index in 0..SIZE {
        let hole = (u64::from(index) + 1) << 32;
        card.frontend.descriptor(0, index, hole, 4096, WRITE, 0);
        card.frontend.push(0, index);
        card.frontend.descriptor(1, index, hole + (1 << 20), 1526, 0, 0);
        card.frontend.push(1, index);
    }
    (0..2).for_each(|queue| card.frontend.kick(queue));
    thread::sleep(Duration::from_millis(100));
    let table = [1, GUEST, LARGEST + 4096, USER, 0];
    card.frontend.send_longs(SET_MEM_TABLE, &table, &[card.frontend.memory.as_raw_fd()]);
    attacker.await_verdict(&card);
    card
}

/// Huge pages in a region that ends inside one, and that are truncated while they hold the rings.
pub(super) fn huge_pages_truncated(attacker: &Attacker) -> Card {
    const HUGE: u64 = 2 << 20;
    let card = connect_with_memory(attacker, file_of("huge", 4 * HUGE, MFdFlags::MFD_HUGETLB), 4 * HUGE - 4096);
    card.frontend.memory.set_len(0).expect("a file of this test");
    card.frontend.kick(1);
    attacker.await_verdict(&card);
    card
}

/// The file of guest memory and rings is truncated while frames are sent and received.
pub(super) fn memory_truncated(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    card.post_all();
    card.write_frames(|_| 1514);
    card.refill(1);
    card.frontend.memory.set_len(0).expect("a file of this test");
    attacker.await_verdict(&card);
    card
}

/// The dirty log is truncated while pages are marked in it.
pub(super) fn log_truncated(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    let log = log_file(LOG);
    card.frontend.log_all(RICH, 2, &log, 0);
    card.settle();
    card.post_all();
    card.frontend.kick(0);
    log.set_len(0).expect("a file of this test");
    card.write_frames(|_| 60);
    card.refill(1);
    attacker.await_verdict(&card);
    card
}

/// Everything is logged, with a notification for each page, and the log is replaced every few milliseconds.
pub(super) fn storm_of_logged_pages(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    let call = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
    card.frontend.send_longs(SET_LOG_FD, &[], &[call.as_raw_fd()]);
    card.post_all();
    card.write_frames(|_| 60);
    while !attacker.should_stop() {
        card.frontend.log_all(RICH, 2, &log_file(LOG), 0);
        card.settle();
        attacker.count();
        card.flood(attacker, true, 10);
    }
    card
}

/// Connects a card whose guest memory is the first `len` bytes of a file.
fn connect_with_memory(attacker: &Attacker, memory: File, len: u64) -> Card {
    let mut card = attacker.connect_only(memory);
    card.frontend.send_longs(SET_OWNER, &[], &[]);
    card.frontend.send_longs(SET_FEATURES, &[RICH], &[]);
    card.frontend.send_longs(SET_PROTOCOL_FEATURES, &[1 << 3 | 1 << 15], &[]);
    card.frontend.send_longs(SET_MEM_TABLE, &[1, GUEST, len, USER, 0], &[card.frontend.memory.as_raw_fd()]);
    (0..2).for_each(|queue| card.frontend.set_up_ring(queue));
    card.watch_errors();
    card
}
