//! Segments that a guest will not take, or that only the ends understand: none of it gets into what is done for them. By rules as in
//! `rules.rs`.

use crate::fixture::{FROM_GUEST, Fixture, GUEST, WINDOW, acks};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Fallback, State};
use fairlane_core::packet::{Checksum, TcpFlags};

/// The guest takes nothing that a sender puts behind its FIN: its bytes, and those that had their place.
#[test]
fn rule_1_data_behind_a_fin_are_not_acknowledged() {
    let mut fixture = Fixture::open();
    fixture.deliver(&Packet { flags: TcpFlags::ACK.with(TcpFlags::FIN), ..fixture.data(0, 1000) });
    let behind = fixture.deliver(&fixture.data(1000, 500));
    assert!(behind.is_none_or(|answer| answer.ack == acks(1000)), "the FIN has the number of its first byte");
    assert_eq!((fixture.flow().retained, fixture.flow().owed), (1000, 1000));
}

/// What is wrong with a segment that the guest will not take, its checksum or its numbers, must not get into copies.
#[test]
fn rule_1_no_number_is_believed_before_its_segment_is_checked() {
    let spoil = |change: &dyn Fn(&mut Packet), damage: bool| {
        let mut fixture = Fixture::open();
        fixture.deliver(&fixture.data(0, 1000));
        let mut packet = fixture.data(1000, 0);
        change(&mut packet);
        let mut frame = packet.inward(fixture.place);
        frame[50] ^= u8::from(damage);
        fixture.deliver_frame(&frame, Checksum::Present);
        let copy = fixture.timeout().remove(0).1;
        (copy.ack, copy.window, copy.stamps, fixture.flow().state)
    };
    let good = spoil(&|_| {}, false);
    assert_eq!(good, (FROM_GUEST, 500, Some((101, 700)), State::Active));
    let far = 1 << 29;
    let changes: [&dyn Fn(&mut Packet); 6] = [
        &|packet| packet.ack += far,
        &|packet| packet.ack = packet.ack.wrapping_sub(far),
        &|packet| (packet.seq, packet.stamps) = (packet.seq.wrapping_add(WINDOW), Some((101 + far, 700))),
        &|packet| (packet.seq, packet.window) = (packet.seq.wrapping_sub(5000), 1),
        &|packet| (packet.flags, packet.seq) = (TcpFlags(0x14), packet.seq.wrapping_add(WINDOW)),
        &|packet| (packet.flags, packet.seq) = (TcpFlags(0x11), packet.seq.wrapping_add(WINDOW)),
    ];
    for (number, change) in changes.iter().enumerate() {
        assert_eq!(spoil(*change, false), good, "not acceptable: {number}");
    }
    // Acceptable, and damaged on the way.
    let changes: [&dyn Fn(&mut Packet); 5] = [
        &|packet| packet.ack -= 10,
        &|packet| packet.window = 9,
        &|packet| packet.stamps = Some((150, 701)),
        &|packet| packet.flags = TcpFlags(0x14),
        &|packet| packet.flags = TcpFlags(0x31),
    ];
    for (number, change) in changes.iter().enumerate() {
        assert_eq!(spoil(*change, true), good, "damaged: {number}");
    }
}

#[test]
fn rule_1_data_under_an_ack_that_the_guest_does_not_take_are_not_retained() {
    for ack in [FROM_GUEST + 1, FROM_GUEST.wrapping_sub((500 << 7) + 1), FROM_GUEST.wrapping_add(1 << 31)] {
        let mut fixture = Fixture::open();
        let foreign = Packet { ack, payload: vec![0xee; 1000], ..fixture.data(0, 0) };
        assert_eq!(fixture.deliver(&foreign), None);
        assert!(fixture.deliver(&fixture.data(0, 1000)).is_some(), "the right ones have their place");
        assert!(fixture.timeout()[0].1.payload == fixture.data(0, 1000).payload);
    }
    // The guest has 100 bytes on the way.
    let mut fixture = Fixture::open();
    fixture.guest(&Packet { payload: vec![1; 100], ..fixture.ack(0, WINDOW) });
    assert!(fixture.deliver(&fixture.data(0, 1000)).is_some());
}

#[test]
fn rule_5_what_is_marked_as_congested_is_not_acknowledged() {
    for v6 in [false, true] {
        let mut fixture = Fixture::new(Place { v6, port: 4000, ..Place::default() });
        fixture.connect();
        let mut frame = fixture.data(0, 1000).inward(fixture.place);
        if v6 {
            frame[15] |= 0x30;
        } else {
            frame[15] |= 3;
            let sum = u16::from_be_bytes([frame[24], frame[25]]);
            let (sum, carry) = sum.overflowing_sub(3);
            frame[24..26].copy_from_slice(&(sum - u16::from(carry)).to_be_bytes());
        }
        assert_eq!(fixture.deliver_frame(&frame, Checksum::Present), None, "the guest says so to its sender");
        assert_eq!(fixture.deliver(&fixture.data(1000, 1000)), None, "and nothing before it does");
        fixture.guest(&fixture.ack(1000, WINDOW));
        assert_eq!(fixture.deliver(&fixture.data(2000, 1000)).unwrap().ack, acks(3000));
    }
}

#[test]
fn rule_8_options_that_only_the_ends_can_write_are_left_to_them() {
    // MD5, TCP-AO, MPTCP, accurate ECN as options; and accurate ECN by its flag.
    for kind in [19, 29, 30, 172, 174, 0] {
        for guest_first in [false, true] {
            let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
            let syn = Packet { seq: 99, flags: TcpFlags::SYN, window: 1000, stamps: Some((1, 0)), ..Packet::default() };
            let mut frame = if guest_first { syn.outward(fixture.place) } else { syn.inward(fixture.place) };
            if kind == 0 {
                frame[46] |= 1;
            } else {
                // In the place of the timestamps.
                frame[56] = kind;
            }
            if guest_first {
                crate::fixture::from_guest(&mut fixture.early, GUEST, &mut frame, fixture.now);
            } else {
                fixture.deliver_frame(&frame, Checksum::Valid);
            }
            assert_eq!(fixture.early.flows().count(), 0, "{kind}");
            assert_eq!(fixture.fallbacks(Fallback::Options), 1, "{kind}");
        }
    }
}
