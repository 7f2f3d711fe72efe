//! Attacks with invalid rings.

use super::super::attack::{Attacker, Card, SIZE};
use crate::frontend::*;

/// Address of an indirect table, away from all buffers.
const TABLE: u64 = BUFFERS + (4 << 20);

/// Receive chains of empty descriptors, through the whole descriptor table.
pub(super) fn empty_receive_buffers(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    for index in 0..SIZE {
        card.frontend.descriptor(0, index, BUFFERS, 0, WRITE | NEXT, (index + 1) % SIZE);
        card.frontend.push(0, index);
    }
    card.frontend.kick(0);
    attacker.await_verdict(&card);
    card
}

/// The largest number of receive chains, all with the same indirect table of the largest size.
pub(super) fn one_table_of_empty_buffers(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    let entry = |at: u32| descriptor(GUEST + BUFFERS, 0, WRITE | NEXT, (at + 1) as u16);
    card.frontend.write(TABLE, &(0..32_768).flat_map(entry).collect::<Vec<u8>>());
    for index in 0..SIZE {
        card.frontend.descriptor(0, index, TABLE, 32_768 * 16, INDIRECT, 0);
        card.frontend.push(0, index);
    }
    card.frontend.kick(0);
    attacker.await_verdict(&card);
    card
}

/// A frame of empty descriptors.
pub(super) fn empty_frames(attacker: &Attacker) -> Card {
    transmit(attacker, RICH, |card| {
        (0..SIZE).for_each(|index| card.descriptor(1, index, BUFFERS, 0, NEXT, (index + 1) % SIZE));
    })
}

pub(super) fn indirect_not_negotiated(attacker: &Attacker) -> Card {
    transmit(attacker, RICH & !F_INDIRECT, |card| {
        card.write(TABLE, &descriptor(GUEST + BUFFERS, 100, 0, 0));
        card.descriptor(1, 0, TABLE, 16, INDIRECT, 0);
    })
}

pub(super) fn circular_chain(attacker: &Attacker) -> Card {
    transmit(attacker, RICH, |card| {
        (0..SIZE).for_each(|index| card.descriptor(1, index, BUFFERS, 1, NEXT, (index + 1) % SIZE));
    })
}

pub(super) fn index_too_far_ahead(attacker: &Attacker) -> Card {
    transmit(attacker, RICH, |card| card.set_available(1, 0x7000))
}

/// Posts the chain that `write` has put at descriptor 0 of the transmit queue, and waits for the backend's error.
fn transmit(attacker: &Attacker, features: u64, write: impl FnOnce(&mut Frontend)) -> Card {
    let mut card = attacker.connect(features);
    write(&mut card.frontend);
    card.frontend.push(1, 0);
    card.frontend.kick(1);
    attacker.await_verdict(&card);
    card
}
