//! What is said on the socket, and descriptors that come by it.

use super::super::attack::{Attacker, Card};
use crate::frontend::*;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::MFdFlags;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// Messages with as many descriptors as the kernel carries.
pub fn too_many_descriptors(attacker: &Attacker) -> Card {
    let card = attacker.connect(RICH);
    card.frontend.send_longs(SET_OWNER, &[], &vec![card.frontend.memory.as_raw_fd(); 253]);
    attacker.await_verdict(&card);
    card
}

pub fn messages_that_lie(attacker: &Attacker) -> Card {
    let card = attacker.connect(RICH);
    card.frontend.send(999, 1, &[0xff; 64], &[card.frontend.memory.as_raw_fd()]);
    attacker.await_verdict(&card);
    card
}

/// All its eventfds are full and its descriptions such that a write waits, for ever; and all are to be written to.
pub fn full_eventfds_that_wait(attacker: &Attacker) -> Card {
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
    card.lend_all();
    card.frontend.transmit(0, NO_HEADER, &card.frame(60));
    (0..2).for_each(|queue| card.frontend.kick(queue));
    thread::sleep(Duration::from_millis(20));
    if card.frontend.used_index(1) > 0 {
        attacker.did();
    }
    // That of errors is to be written to as well.
    card.frontend.descriptor(1, 1, BUFFERS, 0, 0, 0);
    card.frontend.push(1, 1);
    card.frontend.kick(1);
    thread::sleep(Duration::from_millis(10));
    card
}

/// Kicks come by a pipe, or a socket, whose other end is closed, so that it is readable for ever.
pub fn kicks_by_closed_pipes(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    while !attacker.is_over() {
        let (pipe, _) = std::io::pipe().expect("a pipe");
        let (socket, _) = UnixStream::pair().expect("a pair of sockets");
        for kick in [pipe.as_fd(), socket.as_fd()] {
            for queue in 0..2 {
                card.frontend.send_longs(SET_VRING_KICK, &[queue], &[kick.as_raw_fd()]);
            }
            card.settle();
            attacker.did();
            thread::sleep(Duration::from_millis(30));
        }
    }
    card
}

pub fn kicks_without_end(attacker: &Attacker) -> Card {
    let card = attacker.connect(RICH);
    while !attacker.is_over() {
        for _ in 0..1000 {
            (0..2).for_each(|queue| card.frontend.kick(queue));
        }
        attacker.did();
    }
    card
}

/// Tables of as many regions as there may be, each of which is mapped, and all rings begun anew.
pub fn flood_of_memory_tables(attacker: &Attacker) -> Card {
    const REGIONS: u64 = 32;
    let mut card = attacker.connect(RICH);
    let len = MEMORY / REGIONS;
    let region = |at: u64| [GUEST + at * len, len, USER + at * len, at * len];
    let table: Vec<u64> = [REGIONS].into_iter().chain((0..REGIONS).flat_map(region)).collect();
    let files = vec![card.frontend.memory.as_raw_fd(); REGIONS as usize];
    while !attacker.is_over() {
        card.frontend.send_longs(SET_MEM_TABLE, &table, &files);
        attacker.did();
    }
    card.settle();
    card
}

/// Connects, says all there is to say, and leaves.
pub fn connections_without_end(attacker: &Attacker) -> Card {
    while !attacker.is_over() {
        let card = attacker.meet(file_of("attacker", MEMORY, MFdFlags::empty()));
        card.frontend.set_up(RICH, 2);
        attacker.did();
    }
    attacker.connect(RICH)
}
