//! Segments that a guest does not accept, or that only the ends understand: they must not affect early ACKs or copies.
//! By rule, as in `rules.rs`.

use crate::fixture::{FROM_GUEST, Fixture, WINDOW, acks, leaked};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, Fallback, Mode, State};
use fairlane_core::packet::{Checksum, TcpFlags, protocol};

/// The guest accepts no data after a FIN, neither that data nor other data in its place.
#[test]
fn rule_1_data_after_a_fin_is_not_acknowledged() {
    let mut fixture = Fixture::open();
    fixture.deliver(&Packet { flags: TcpFlags::ACK.with(TcpFlags::FIN), ..fixture.data(0, 1000) });
    let after = fixture.deliver(&fixture.data(1000, 500));
    assert!(after.is_none_or(|answer| answer.ack == acks(1000)), "the FIN has the number of the first byte");
    assert_eq!((fixture.flow().retained, fixture.flow().owed), (1000, 1000));
}

/// A segment that the guest does not accept, for its checksum or its numbers, must not affect retransmissions.
#[test]
fn rule_1_no_number_is_trusted_before_its_segment_is_checked() {
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
    // Acceptable, but damaged in transit.
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
fn rule_1_data_with_an_unacceptable_ack_is_not_retained() {
    for ack in [FROM_GUEST + 1, FROM_GUEST.wrapping_sub((500 << 7) + 1), FROM_GUEST.wrapping_add(1 << 31)] {
        let mut fixture = Fixture::open();
        let foreign = Packet { ack, payload: vec![0xee; 1000], ..fixture.data(0, 0) };
        assert_eq!(fixture.deliver(&foreign), None);
        assert!(fixture.deliver(&fixture.data(0, 1000)).is_some(), "the real data is retained");
        assert!(fixture.timeout()[0].1.payload == fixture.data(0, 1000).payload);
    }
    // The guest has 100 bytes in flight.
    let mut fixture = Fixture::open();
    fixture.guest(&Packet { payload: vec![1; 100], ..fixture.ack(0, WINDOW) });
    assert!(fixture.deliver(&fixture.data(0, 1000)).is_some());
}

/// The guest takes timestamps from segments in order (RFC 7323, 4.3), and so do retransmissions.
#[test]
fn rule_1_a_timestamp_out_of_order_is_not_the_latest() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.deliver(&Packet { stamps: Some((200, 700)), ..fixture.data(3000, 1000) });
    assert_eq!(fixture.timeout()[0].1.stamps, Some((101, 700)));
    fixture.deliver(&Packet { stamps: Some((150, 700)), ..fixture.data(1000, 1000) });
    assert_eq!(fixture.timeout()[0].1.stamps, Some((150, 700)));
}

/// Anyone can send a SYN with the right addresses and ports.
#[test]
fn rule_1_a_syn_ends_no_connection() {
    for owes in [false, true] {
        let mut fixture = Fixture::open();
        if owes {
            fixture.deliver(&fixture.data(0, 1000)).expect("the data is acknowledged early");
        }
        for seq in [9, acks(1000)] {
            fixture.deliver(&Packet { flags: TcpFlags::SYN, seq, ack: 0, ..fixture.data(0, 0) });
        }
        assert_eq!(fixture.flow().fallback, None);
        let offset = if owes { 1000 } else { 0 };
        assert!(fixture.deliver(&fixture.data(offset, 1000)).is_some(), "owes: {owes}");
    }
}

#[test]
fn rule_1_a_damaged_syn_is_ignored() {
    let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
    let syn = Packet { seq: 99, flags: TcpFlags::SYN, window: 1000, scale: Some(7), ..Packet::default() };
    let mut frame = syn.inward(fixture.place);
    *frame.last_mut().unwrap() ^= 8;
    fixture.deliver_frame(&frame, Checksum::Present);
    assert_eq!(fixture.early.flows().count(), 0);
    fixture.connect();
    let both = fixture.data(0, 0);
    let mut frame = Packet { flags: TcpFlags(0x12), ..both }.inward(fixture.place);
    frame[38] ^= 1;
    fixture.deliver_frame(&frame, Checksum::Present);
    assert!(fixture.deliver(&fixture.data(0, 1000)).is_some());
}

/// A reset that the guest does not accept does not end a handshake (RFC 9293, 3.10.7.3 and 3.10.7.4).
#[test]
fn rule_1_only_the_ends_can_reset_a_handshake() {
    let reset = |seq: u32, ack: u32, flags: u8| {
        let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
        let syn = Packet { seq: FROM_GUEST - 1, flags: TcpFlags::SYN, window: 999, ..Packet::default() };
        fixture.guest(&syn);
        fixture.deliver(&Packet { seq, ack, flags: TcpFlags(flags), ..Packet::default() });
        fixture.early.flows().count()
    };
    assert_eq!(reset(0, FROM_GUEST, 0x14), 0, "the connection is refused");
    assert_eq!((reset(0, FROM_GUEST + 1, 0x14), reset(0, FROM_GUEST, 0x04)), (1, 1));
    let accepted = |seq: u32| {
        let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
        fixture.deliver(&Packet { seq: 99, flags: TcpFlags::SYN, window: 999, ..Packet::default() });
        fixture.deliver(&Packet { seq, flags: TcpFlags::RST, ..Packet::default() });
        fixture.early.flows().count()
    };
    assert_eq!((accepted(100), accepted(101), accepted(5000)), (0, 1, 1));
}

/// Segments outside the guest's window do not count as delivered, so that data in order can still be retained.
#[test]
fn rule_1_segments_outside_the_window_do_not_count_as_delivered() {
    for foreign in [1 << 29, 200_000] {
        let mut fixture = Fixture::with(Place::default(), Mode::Auto, Config::default(), leaked(4, 64));
        fixture.connect();
        // Every segment is noted while a handshake is in progress.
        fixture.place.port = 1;
        fixture.deliver(&Packet { seq: 9, flags: TcpFlags::SYN, window: 9, ..Packet::default() });
        fixture.place.port = 0;
        fixture.deliver(&fixture.data(0, 1000));
        fixture.deliver(&fixture.data(foreign, 1000));
        fixture.early.set_mode(Mode::Always);
        assert_eq!(fixture.deliver(&fixture.data(1000, 1000)), None, "the guest must acknowledge the data before it");
        fixture.guest(&fixture.ack(1000, WINDOW));
        assert_eq!(fixture.flow().owed, 0);
        assert_eq!(fixture.deliver(&fixture.data(2000, 1000)).unwrap().ack, acks(3000), "{foreign}");
    }
}

/// Only the ends can write an authentication header (RFC 4302).
#[test]
fn rule_8_authenticated_packets_are_end_to_end() {
    for v6 in [false, true] {
        let mut fixture = Fixture::new(Place { v6, port: 4000, ..Place::default() });
        fixture.connect();
        let mut frame = fixture.data(0, 1000).inward(fixture.place);
        // Before the TCP header: next header, length in units of 4 bytes minus 2, reserved, SPI, sequence, check value.
        let header = [&[protocol::TCP, 4][..], &[7; 22]].concat();
        if v6 {
            frame.splice(54..54, header);
            frame[20] = protocol::AUTHENTICATION;
            let len = u16::from_be_bytes([frame[18], frame[19]]) + 24;
            frame[18..20].copy_from_slice(&len.to_be_bytes());
        } else {
            frame.splice(34..34, header);
            frame[23] = protocol::AUTHENTICATION;
            let len = u16::from_be_bytes([frame[16], frame[17]]) + 24;
            frame[16..18].copy_from_slice(&len.to_be_bytes());
        }
        assert_eq!(fixture.deliver_frame(&frame, Checksum::Valid), None, "v6: {v6}");
        assert_eq!(fixture.flow().retained, 0);
    }
}

#[test]
fn rule_5_a_segment_with_a_congestion_mark_is_not_acknowledged() {
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
        assert_eq!(fixture.deliver_frame(&frame, Checksum::Present), None, "the guest must echo the mark");
        assert_eq!(fixture.deliver(&fixture.data(1000, 1000)), None, "nor is data after it before the guest's ACK");
        fixture.guest(&fixture.ack(1000, WINDOW));
        assert_eq!(fixture.deliver(&fixture.data(2000, 1000)).unwrap().ack, acks(3000));
    }
}

#[test]
fn rule_8_a_syn_with_options_that_only_the_ends_can_write_is_end_to_end() {
    // MD5, TCP-AO, MPTCP and accurate ECN as options; accurate ECN by its flag (0).
    for kind in [19, 29, 30, 172, 174, 0] {
        for guest_first in [false, true] {
            let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
            let syn = Packet { seq: 99, flags: TcpFlags::SYN, window: 1000, stamps: Some((1, 0)), ..Packet::default() };
            let mut frame = if guest_first { syn.outward(fixture.place) } else { syn.inward(fixture.place) };
            if kind == 0 {
                frame[46] |= 1;
            } else {
                // This replaces the timestamps option.
                frame[56] = kind;
            }
            if guest_first {
                crate::fixture::from_guest(&mut fixture.early, &mut frame, fixture.now);
            } else {
                fixture.deliver_frame(&frame, Checksum::Valid);
            }
            assert_eq!(fixture.early.flows().count(), 0, "{kind}");
            assert_eq!(fixture.fallbacks(Fallback::Options), 1, "{kind}");
        }
    }
}

/// The same for options in a SYN and ACK.
#[test]
fn rule_8_a_syn_and_ack_with_such_options_is_end_to_end_as_well() {
    for kind in [19, 29, 30, 172, 174, 0] {
        for guest_first in [false, true] {
            let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
            let syn = Packet { seq: 99, flags: TcpFlags::SYN, window: 1000, stamps: Some((1, 0)), ..Packet::default() };
            let both = Packet { seq: 77, ack: 100, flags: TcpFlags(0x12), ..syn.clone() };
            let frame = if guest_first { both.inward(fixture.place) } else { both.outward(fixture.place) };
            let mut frame = frame;
            if kind == 0 {
                frame[46] |= 1;
            } else {
                frame[56] = kind;
            }
            if guest_first {
                fixture.guest(&syn);
                fixture.deliver_frame(&frame, Checksum::Valid);
            } else {
                fixture.deliver(&syn);
                crate::fixture::from_guest(&mut fixture.early, &mut frame, fixture.now);
            }
            assert_eq!(fixture.flow().fallback, Some(Fallback::Options), "{kind}, guest first: {guest_first}");
        }
    }
}
