//! Rings by the rules, used so that they cost others as much as can be.

use super::super::attack::{Attacker, Card, SIZE};
use crate::frontend::*;
use std::thread;
use std::time::Duration;

/// Where an indirect table is, away from all buffers.
const TABLE: u64 = BUFFERS + (4 << 20);

/// Lends a byte now and then, before anyone loses patience: never enough for a frame.
pub fn lends_by_the_drop(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    for index in (0..SIZE).cycle() {
        if attacker.is_over() {
            break;
        }
        card.frontend.lend(index, 1);
        card.frontend.kick(0);
        attacker.did();
        thread::sleep(Duration::from_millis(150));
    }
    card
}

/// Lends buffers for some frames, stops until patience is at its end, and goes on with one.
pub fn stops_to_lend(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    for index in (0..SIZE).cycle() {
        if attacker.is_over() {
            break;
        }
        card.frontend.lend(index, 2048);
        card.frontend.kick(0);
        attacker.did();
        thread::sleep(Duration::from_millis(if index % 16 == 0 { 250 } else { 1 }));
    }
    card
}

/// Lends buffers of as many pieces as there may be, a byte or two each.
pub fn lends_in_small_pieces(attacker: &Attacker) -> Card {
    const PIECES: u16 = 1000;
    let mut card = attacker.connect(RICH);
    let piece = |at: u16| {
        let flags = if at + 1 == PIECES { WRITE } else { WRITE | NEXT };
        descriptor(GUEST + BUFFERS + (1 << 20) + 2 * u64::from(at), 2, flags, at + 1)
    };
    let table: Vec<u8> = (0..PIECES).flat_map(piece).collect();
    card.frontend.write(TABLE, &table);
    for index in 0..SIZE {
        card.frontend.descriptor(0, index, TABLE, table.len() as u32, INDIRECT, 0);
        card.frontend.push(0, index);
    }
    while !attacker.is_over() {
        card.refill(0);
        attacker.did();
        thread::sleep(Duration::from_millis(1));
    }
    card
}

/// Frames of one piece and of a thousand in turn.
pub fn cheap_and_dear_frames(attacker: &Attacker) -> Card {
    const PIECES: u16 = 1000;
    let mut card = attacker.connect(RICH);
    card.write_frames(|_| 1514);
    for index in (0..SIZE).step_by(2) {
        // Header and head in one piece, as that must hold what is looked at; the rest byte by byte.
        let at = BUFFERS + u64::from(index) * 0x2000;
        let table = TABLE + u64::from(index) * 0x4000;
        let piece = |number: u16| match number {
            0 => descriptor(GUEST + at, 60, NEXT, 1),
            _ => {
                let flags = if number + 1 == PIECES { 0 } else { NEXT };
                descriptor(GUEST + at + 60 + u64::from(number), 1, flags, number + 1)
            }
        };
        card.frontend.write(table, &(0..PIECES).flat_map(piece).collect::<Vec<u8>>());
        card.frontend.descriptor(1, index, table, u32::from(PIECES) * 16, INDIRECT, 0);
    }
    floods(attacker, card)
}

pub fn smallest_frames(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    card.write_frames(|_| 60);
    floods(attacker, card)
}

/// Keeps the transmit ring full of what is in it.
fn floods(attacker: &Attacker, mut card: Card) -> Card {
    while !attacker.is_over() {
        card.flood(attacker, false, 10);
        attacker.did();
    }
    card
}
