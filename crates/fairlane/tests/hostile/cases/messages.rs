//! Attacks with messages, and with file descriptors that come with them.

use super::super::attack::{Attacker, Card};
use crate::frontend::*;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::MFdFlags;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

/// A message with as many descriptors as the kernel permits.
pub(super) fn too_many_descriptors(attacker: &Attacker) -> Card {
    let card = attacker.connect(RICH);
    card.frontend.send_longs(SET_OWNER, &[], &vec![card.frontend.memory.as_raw_fd(); 253]);
    attacker.await_verdict(&card);
    card
}

pub(super) fn unknown_message(attacker: &Attacker) -> Card {
    let card = attacker.connect(RICH);
    card.frontend.send(999, 1, &[0xff; 64], &[card.frontend.memory.as_raw_fd()]);
    attacker.await_verdict(&card);
    card
}

/// All eventfds are full and blocking, so a write would block for ever, and the backend has to signal all of them.
pub(super) fn full_blocking_eventfds(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    let full = EventFd::from_value_and_flags(0, EfdFlags::empty()).expect("an eventfd");
    full.write(u64::MAX - 1).expect("it is empty");
    let fd = full.as_raw_fd();
    card.frontend.log_all(RICH, 2, &log_file(LOG), 0);
    card.frontend.send_longs(SET_LOG_FD, &[], &[fd]);
    for queue in 0..2 {
        card.frontend.send_longs(SET_VRING_CALL, &[queue], &[fd]);
        card.frontend.send_longs(SET_VRING_ERR, &[queue], &[fd]);
    }
    card.settle();
    card.post_all();
    card.frontend.transmit(0, NO_HEADER, &card.frame(60));
    (0..2).for_each(|queue| card.frontend.kick(queue));
    thread::sleep(Duration::from_millis(20));
    if card.frontend.used_index(1) > 0 {
        attacker.count();
    }
    // The error eventfd must be signalled as well.
    card.frontend.descriptor(1, 1, BUFFERS, 0, 0, 0);
    card.frontend.push(1, 1);
    card.frontend.kick(1);
    thread::sleep(Duration::from_millis(10));
    card
}

/// The kick descriptor is a pipe, whose lock the frontend could hold.
pub(super) fn pipe_as_kick(attacker: &Attacker) -> Card {
    let card = attacker.connect(RICH);
    let (pipe, _writer) = std::io::pipe().expect("a pipe");
    card.frontend.send_longs(SET_VRING_KICK, &[0], &[pipe.as_raw_fd()]);
    attacker.await_verdict(&card);
    card
}

pub(super) fn endless_kicks(attacker: &Attacker) -> Card {
    let card = attacker.connect(RICH);
    while !attacker.should_stop() {
        for _ in 0..1000 {
            (0..2).for_each(|queue| card.frontend.kick(queue));
        }
        attacker.count();
    }
    card
}

/// Memory tables with the largest number of regions: each time, all regions are mapped and all rings restarted.
pub(super) fn flood_of_memory_tables(attacker: &Attacker) -> Card {
    const REGIONS: u64 = 32;
    let mut card = attacker.connect(RICH);
    let len = MEMORY / REGIONS;
    let region = |at: u64| [GUEST + at * len, len, USER + at * len, at * len];
    let table: Vec<u64> = [REGIONS].into_iter().chain((0..REGIONS).flat_map(region)).collect();
    let files = vec![card.frontend.memory.as_raw_fd(); REGIONS as usize];
    while !attacker.should_stop() {
        card.frontend.send_longs(SET_MEM_TABLE, &table, &files);
        attacker.count();
    }
    card.settle();
    card
}

/// Connects, sends all messages of a setup, and disconnects, repeatedly.
pub(super) fn endless_connections(attacker: &Attacker) -> Card {
    while !attacker.should_stop() {
        let card = attacker.connect_only(file_of("attacker", MEMORY, MFdFlags::empty()));
        card.frontend.set_up(RICH, 2);
        attacker.count();
    }
    attacker.connect(RICH)
}
