//! Valid rings that are used so that they cost others as much as possible.

use super::super::attack::{Attacker, Card, SIZE};
use crate::frontend::*;
use std::thread;
use std::time::Duration;

/// Address of an indirect table, away from all buffers.
const TABLE: u64 = BUFFERS + (4 << 20);

/// Posts a buffer of one byte now and then, before the backend's timeout: never enough for a frame.
pub(super) fn receive_buffers_of_one_byte(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    for index in (0..SIZE).cycle() {
        if attacker.should_stop() {
            break;
        }
        card.frontend.post_buffer(index, 1);
        card.frontend.kick(0);
        attacker.count();
        thread::sleep(Duration::from_millis(150));
    }
    card
}

/// Posts buffers for some frames, stops until after the backend's timeout, and posts the next one.
pub(super) fn receive_buffers_withheld(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    for index in (0..SIZE).cycle() {
        if attacker.should_stop() {
            break;
        }
        card.frontend.post_buffer(index, 2048);
        card.frontend.kick(0);
        attacker.count();
        thread::sleep(Duration::from_millis(if index % 16 == 0 { 250 } else { 1 }));
    }
    card
}

/// Posts buffers with the largest number of segments, of two bytes each.
pub(super) fn receive_buffers_in_segments(attacker: &Attacker) -> Card {
    const SEGMENTS: u16 = 1000;
    let mut card = attacker.connect(RICH);
    let segment = |at: u16| {
        let flags = if at + 1 == SEGMENTS { WRITE } else { WRITE | NEXT };
        descriptor(GUEST + BUFFERS + (1 << 20) + 2 * u64::from(at), 2, flags, at + 1)
    };
    let table: Vec<u8> = (0..SEGMENTS).flat_map(segment).collect();
    card.frontend.write(TABLE, &table);
    for index in 0..SIZE {
        card.frontend.descriptor(0, index, TABLE, table.len() as u32, INDIRECT, 0);
        card.frontend.push(0, index);
    }
    while !attacker.should_stop() {
        card.refill(0);
        attacker.count();
        thread::sleep(Duration::from_millis(1));
    }
    card
}

/// Frames of one segment and of a thousand, alternately.
pub(super) fn cheap_and_expensive_frames(attacker: &Attacker) -> Card {
    const SEGMENTS: u16 = 1000;
    let mut card = attacker.connect(RICH);
    card.write_frames(|_| 1514);
    for index in (0..SIZE).step_by(2) {
        // The virtio header and the frame headers share one segment, as the backend requires; the rest has one byte per segment.
        let at = BUFFERS + u64::from(index) * 0x2000;
        let table = TABLE + u64::from(index) * 0x4000;
        let segment = |number: u16| match number {
            0 => descriptor(GUEST + at, 60, NEXT, 1),
            _ => {
                let flags = if number + 1 == SEGMENTS { 0 } else { NEXT };
                descriptor(GUEST + at + 60 + u64::from(number), 1, flags, number + 1)
            }
        };
        card.frontend.write(table, &(0..SEGMENTS).flat_map(segment).collect::<Vec<u8>>());
        card.frontend.descriptor(1, index, table, u32::from(SEGMENTS) * 16, INDIRECT, 0);
    }
    flood(attacker, card)
}

pub(super) fn smallest_frames(attacker: &Attacker) -> Card {
    let mut card = attacker.connect(RICH);
    card.write_frames(|_| 60);
    flood(attacker, card)
}

/// Keeps the transmit ring full with its current buffers.
fn flood(attacker: &Attacker, mut card: Card) -> Card {
    while !attacker.should_stop() {
        card.flood(attacker, false, 10);
        attacker.count();
    }
    card
}
