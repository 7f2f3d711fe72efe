//! Memory that is not what it seems, and logs of it.

use super::super::attack::{Attacker, Card, SIZE};
use crate::frontend::*;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::MFdFlags;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

/// The largest memory that may be shared, all holes, with buffers in as many of them as there are; and then a larger one.
pub fn sparse_memory(attacker: &Attacker) -> Card {
    const MOST: u64 = 1 << 40;
    let sparse = file_of("sparse", 2 * MOST, MFdFlags::empty());
    let mut card = shares(attacker, sparse, MOST);
    for index in 0..SIZE {
        let hole = (u64::from(index) + 1) << 32;
        card.frontend.descriptor(0, index, hole, 4096, WRITE, 0);
        card.frontend.push(0, index);
        card.frontend.descriptor(1, index, hole + (1 << 20), 1526, 0, 0);
        card.frontend.push(1, index);
    }
    (0..2).for_each(|queue| card.frontend.kick(queue));
    thread::sleep(Duration::from_millis(100));
    let table = [1, GUEST, MOST + 4096, USER, 0];
    card.frontend.send_longs(SET_MEM_TABLE, &table, &[card.frontend.memory.as_raw_fd()]);
    attacker.await_verdict(&card);
    card
}

/// Huge pages, in a region that ends inside one, and that go away while rings lie in them.
pub fn huge_pages_truncated(attacker: &Attacker) -> Card {
    const HUGE: u64 = 2 << 20;
    let card = shares(attacker, file_of("huge", 4 * HUGE, MFdFlags::MFD_HUGETLB), 4 * HUGE - 4096);
    card.frontend.memory.set_len(0).expect("a file of ours");
    card.frontend.kick(1);
    attacker.await_verdict(&card);
    card
}

/// The file behind guest and rings is truncated while frames come and go.
pub fn memory_truncated(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    card.lend_all();
    card.write_frames(|_| 1514);
    card.refill(1);
    card.frontend.memory.set_len(0).expect("a file of ours");
    attacker.await_verdict(&card);
    card
}

/// The log is truncated while pages are marked in it.
pub fn log_truncated(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    let log = log_file(LOG);
    card.frontend.log_all(RICH, 2, &log, 0);
    card.settle();
    card.lend_all();
    card.frontend.kick(0);
    log.set_len(0).expect("a file of ours");
    card.write_frames(|_| 60);
    card.refill(1);
    attacker.await_verdict(&card);
    card
}

/// All that can be logged is, and for each page the frontend wants to be called; every few milliseconds there is another log.
pub fn storm_of_logged_pages(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    let call = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
    card.frontend.send_longs(SET_LOG_FD, &[], &[call.as_raw_fd()]);
    card.lend_all();
    card.write_frames(|_| 60);
    while !attacker.is_over() {
        card.frontend.log_all(RICH, 2, &log_file(LOG), 0);
        card.settle();
        attacker.did();
        card.flood(attacker, true, 10);
    }
    card
}

/// A card whose guest has the first `len` bytes of a file.
fn shares(attacker: &Attacker, memory: File, len: u64) -> Card {
    let mut card = attacker.meet(memory);
    card.frontend.send_longs(SET_OWNER, &[], &[]);
    card.frontend.send_longs(SET_FEATURES, &[RICH], &[]);
    card.frontend.send_longs(SET_PROTOCOL_FEATURES, &[1 << 3 | 1 << 15], &[]);
    card.frontend.send_longs(SET_MEM_TABLE, &[1, GUEST, len, USER, 0], &[card.frontend.memory.as_raw_fd()]);
    (0..2).for_each(|queue| card.frontend.set_up_ring(queue));
    card.hear_errors();
    card
}
