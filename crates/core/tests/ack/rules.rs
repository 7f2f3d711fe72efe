//! Tests for each of the numbered rules in the documentation of `fairlane_core::ack`.

use crate::fixture::{FROM_GUEST, Fixture, SCALE, WINDOW, acks, leaked};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, Direction, ENGAGED_AFTER_STALL, Fallback, Mode, RETRANSMIT, STALL, State, Verdict};
use fairlane_core::packet::{Checksum, TcpFlags};
use fairlane_core::time::Nanos;

#[test]
fn rule_1_a_wrong_checksum_is_not_acknowledged() {
    let mut fixture = Fixture::open();
    let mut frame = fixture.data(0, 1000).inward(fixture.place);
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(fixture.deliver_frame(&frame, Checksum::Present), None);
    assert_eq!(fixture.flow().retained, 0);
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(fixture.deliver_frame(&frame, Checksum::Present).unwrap().ack, acks(1000));
    assert_eq!((fixture.flow().retained, fixture.flow().state), (1000, State::Active));
}

#[test]
fn rule_1_a_partial_or_valid_checksum_is_not_verified() {
    for checksum in [Checksum::Valid, Checksum::Partial { start: 34, offset: 16 }] {
        let mut fixture = Fixture::open();
        let mut frame = fixture.data(0, 10_000).inward(fixture.place);
        frame[50..52].copy_from_slice(&[1, 2]);
        assert_eq!(fixture.deliver_frame(&frame, checksum).unwrap().ack, acks(10_000), "one ACK per large frame");
    }
}

#[test]
fn rule_1_data_without_room_in_the_pool_is_not_acknowledged() {
    let place = Place { port: 4000, ..Place::default() };
    let mut fixture = Fixture::with(place, Mode::Always, Config::default(), leaked(2, 2));
    fixture.connect();
    assert!(fixture.deliver(&fixture.data(0, 3000)).is_some());
    assert_eq!(fixture.deliver(&fixture.data(3000, 3000)), None);
    assert_eq!((fixture.flow().state, fixture.flow().retained), (State::NoBuffer, 3000));
}

#[test]
fn rule_1_a_flow_whose_handshake_was_not_seen_stays_end_to_end() {
    let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
    assert_eq!(fixture.deliver(&fixture.data(0, 1000)), None);
    let ack = fixture.ack(0, 30_000);
    assert_eq!(fixture.guest(&ack), Some(ack.clone()));
    assert_eq!(fixture.early.flows().count(), 0);
}

#[test]
fn rule_2_never_beyond_the_guests_window() {
    let mut fixture = Fixture::open();
    assert!(fixture.deliver(&fixture.data(0, WINDOW as usize - 1000)).is_some());
    assert_eq!(fixture.deliver(&fixture.data(WINDOW - 1000, 1001)), None);
    assert_eq!(fixture.flow().state, State::NoBuffer);
    let last = fixture.deliver(&fixture.data(WINDOW - 1000, 1000)).unwrap();
    assert_eq!((last.ack, last.window), (acks(WINDOW), 0));
}

#[test]
fn rule_2_the_window_is_the_rest_of_the_guests_window() {
    let mut fixture = Fixture::open();
    for sent in [1000, 2000, 3001] {
        let offset = (sent - 1) / 1000 * 1000;
        let before = if sent == 3001 { 2000 } else { offset };
        let ack = fixture.deliver(&fixture.data(before, (sent - before) as usize)).unwrap();
        assert_eq!(u32::from(ack.window), (WINDOW - sent) >> SCALE, "rounded down, never up");
    }
    // The guest may shrink its window.
    fixture.guest(&fixture.ack(1000, 3000));
    assert_eq!(fixture.deliver(&fixture.data(3001, 1000)), None, "the edge is 4000 now");
    assert!(fixture.deliver(&fixture.data(3001, 999)).is_some());
}

#[test]
fn rule_2_the_window_scale_needs_both_ends_in_the_handshake() {
    let place = Place { port: 4000, ..Place::default() };
    let mut fixture = Fixture::new(place);
    let syn = Packet { seq: acks(0) - 1, flags: TcpFlags::SYN, window: 1000, ..Packet::default() };
    fixture.deliver(&syn);
    let both = Packet { seq: FROM_GUEST - 1, ack: acks(0), flags: TcpFlags(0x12), scale: Some(7), ..syn };
    fixture.guest(&Packet { window: 5000, ..both });
    let bare = |mut packet: Packet| {
        packet.stamps = None;
        packet
    };
    fixture.deliver(&bare(fixture.data(0, 0)));
    let ack = fixture.deliver(&bare(fixture.data(0, 1000))).unwrap();
    assert_eq!((ack.window, ack.stamps), (4000, None));
    let raised = fixture.guest(&Packet { window: 6000, ..bare(fixture.ack(500, 0)) }).unwrap();
    assert_eq!((raised.ack, raised.window), (acks(1000), 5500));
}

#[test]
fn rule_3_an_older_ack_of_the_guest_is_raised() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 3000));
    let data = Packet { payload: vec![7; 5], ..fixture.ack(1000, 40_000) };
    let out = fixture.guest(&data).unwrap();
    assert_eq!((out.ack, out.payload.len(), out.seq), (acks(3000), 5, FROM_GUEST));
    assert_eq!(u32::from(out.window) << SCALE, 38_000, "the right edge is unchanged");
}

#[test]
fn rule_3_an_ack_without_news_is_dropped() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 3000));
    assert_eq!(fixture.guest(&fixture.ack(1000, WINDOW - 1000)), None, "older, same edge");
    assert_eq!(fixture.guest(&fixture.ack(3000, WINDOW - 3000)), None, "the same as the early ACK");
    assert_eq!(fixture.early.stats().suppressed, 2);
    let update = fixture.guest(&fixture.ack(3000, WINDOW)).unwrap();
    assert_eq!((update.ack, u32::from(update.window) << SCALE), (acks(3000), WINDOW), "a larger window is news");
    let duplicate = fixture.ack(3000, WINDOW);
    assert_eq!(fixture.guest(&duplicate), Some(duplicate.clone()), "a duplicate ACK reports a loss to the sender");
}

#[test]
fn rule_3_congestion_echoes_are_forwarded() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 3000));
    let marked = Packet { flags: TcpFlags::ACK.with(TcpFlags::ECE), ..fixture.ack(1000, WINDOW - 1000) };
    assert_eq!(fixture.guest(&marked).unwrap().ack, acks(3000));
}

#[test]
fn rule_4_an_early_ack_has_the_guests_last_timestamp_and_echoes_the_segments() {
    let mut fixture = Fixture::open();
    let first = fixture.deliver(&fixture.data(0, 1000)).unwrap();
    assert_eq!(first.stamps, Some((700, 101)));
    fixture.guest(&Packet { stamps: Some((777, 101)), ..fixture.ack(1000, WINDOW) });
    fixture.guest(&Packet { stamps: Some((770, 101)), ..fixture.ack(1000, WINDOW) });
    fixture.now += Nanos::from_millis(500);
    let next = fixture.deliver(&Packet { stamps: Some((150, 777)), ..fixture.data(1000, 1000) }).unwrap();
    assert_eq!(next.stamps, Some((777, 150)), "never extrapolated, never back");
}

#[test]
fn rule_4_an_old_duplicate_by_its_timestamp_is_not_acknowledged() {
    let mut fixture = Fixture::open();
    assert_eq!(fixture.deliver(&Packet { stamps: Some((99, 700)), ..fixture.data(0, 1000) }), None);
    assert_eq!(fixture.deliver(&Packet { stamps: None, ..fixture.data(0, 1000) }), None);
}

#[test]
fn rule_5_nothing_but_plain_data_in_order_is_acknowledged() {
    let with = |change: &dyn Fn(&Fixture) -> Packet| {
        let mut fixture = Fixture::open();
        let packet = change(&fixture);
        (fixture.deliver(&packet), fixture)
    };
    let flags = |flags: u8| move |fixture: &Fixture| Packet { flags: TcpFlags(flags), ..fixture.data(0, 10) };
    assert_eq!(with(&flags(0x02)).0, None, "SYN");
    assert_eq!(with(&flags(0x14)).0, None, "RST");
    assert_eq!(with(&flags(0x30)).0, None, "URG");
    assert_eq!(with(&flags(0x00)).0, None, "no ACK");
    assert_eq!(with(&|fixture| fixture.data(10, 10)).0, None, "a gap before it");
    assert_eq!(with(&|fixture| fixture.data(0, 0)).0, None, "no data");
    let (ack, fixture) = with(&flags(0x11));
    assert_eq!((ack.unwrap().ack, fixture.flow().retained), (acks(10), 10), "the data without the FIN");
}

#[test]
fn rule_5_a_probe_of_a_closed_window_is_not_acknowledged() {
    let mut fixture = Fixture::open();
    fixture.guest(&fixture.ack(0, 0));
    assert_eq!(fixture.deliver(&fixture.data(0, 1)), None);
    assert_eq!(fixture.deliver(&fixture.data(u32::MAX, 1)), None, "a keepalive with a byte of garbage");
}

#[test]
fn rule_5_after_a_gap_the_guest_answers_until_it_is_filled() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    assert_eq!(fixture.deliver(&fixture.data(2000, 1000)), None);
    assert_eq!(fixture.flow().state, State::UnexpectedSequence);
    let sack = Packet { blocks: vec![(acks(2000), acks(3000))], ..fixture.ack(1000, WINDOW - 1000) };
    assert_eq!(fixture.guest(&sack), Some(sack.clone()), "the guest's own SACK is forwarded");
    assert_eq!(fixture.deliver(&fixture.data(1000, 1000)).unwrap().ack, acks(2000), "not beyond the gap");
    assert_eq!(fixture.guest(&fixture.ack(3000, WINDOW)).unwrap().ack, acks(3000));
    assert_eq!(fixture.deliver(&fixture.data(3000, 1000)).unwrap().ack, acks(4000), "early again");
}

#[test]
fn rule_5_sack_blocks_below_an_early_ack_are_removed() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 3000));
    let sack = Packet { blocks: vec![(acks(2000), acks(3000))], ..fixture.ack(1000, WINDOW + 2000) };
    let out = fixture.guest(&sack).unwrap();
    assert_eq!((out.ack, out.blocks), (acks(3000), vec![]), "as a duplicate SACK they would report duplicate data");
}

#[test]
fn rule_6_an_early_ack_has_the_guests_next_sequence_number() {
    let mut fixture = Fixture::open();
    fixture.guest(&Packet { payload: vec![1; 100], ..fixture.ack(0, WINDOW) });
    assert_eq!(fixture.deliver(&fixture.data(0, 1000)).unwrap().seq, FROM_GUEST + 100);
    // A retransmission of the guest does not lower it.
    fixture.guest(&Packet { payload: vec![1; 50], ..fixture.ack(0, WINDOW) });
    assert_eq!(fixture.deliver(&fixture.data(1000, 1000)).unwrap().seq, FROM_GUEST + 100);
}

#[test]
fn rule_7_only_the_guests_ack_frees_copies() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 3000));
    let sack = Packet { blocks: vec![(acks(1000), acks(3000))], ..fixture.ack(0, WINDOW) };
    fixture.guest(&sack);
    assert_eq!(fixture.early.retained(), 3000, "SACK is only advisory");
    fixture.guest(&fixture.ack(1500, WINDOW));
    assert_eq!((fixture.early.retained(), fixture.flow().owed), (1500, 1500));
    fixture.guest(&fixture.ack(3000, WINDOW));
    assert_eq!((fixture.early.retained(), fixture.flow().owed), (0, 0));
}

#[test]
fn rule_7_at_the_limit_early_acks_stop_and_no_copy_is_evicted() {
    for config in [Config { flow_bytes: 2500, ..Config::default() }, Config { guest_bytes: 2500, ..Config::default() }]
    {
        let place = Place { port: 4000, ..Place::default() };
        let mut fixture = Fixture::with(place, Mode::Always, config, leaked(2, 20));
        fixture.connect();
        assert!(fixture.deliver(&fixture.data(0, 2000)).is_some());
        assert_eq!(fixture.deliver(&fixture.data(2000, 1000)), None);
        assert_eq!((fixture.flow().retained, fixture.flow().state), (2000, State::NoBuffer));
        fixture.guest(&fixture.ack(3000, WINDOW));
        assert_eq!(fixture.flow().state, State::Idle);
        assert!(fixture.deliver(&fixture.data(3000, 1000)).is_some(), "there is room again");
    }
}

#[test]
fn rule_7_copies_are_retransmitted_by_a_timer_with_backoff() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.deliver(&Packet { ack: FROM_GUEST, window: 321, stamps: Some((150, 700)), ..fixture.data(1000, 4000) });
    let mut last = fixture.now;
    for round in 0..4 {
        let sent = fixture.timeout();
        assert_eq!(fixture.now.since(last), Nanos(RETRANSMIT.0 << round >> u32::from(round > 0)), "round {round}");
        last = fixture.now;
        let stream: Vec<u8> = sent.iter().flat_map(|(_, packet)| packet.payload.clone()).collect();
        assert!(stream == fixture.data(0, 2896).payload, "two segments of the guest's MSS");
        for (to_guest, packet) in sent {
            assert!(to_guest);
            assert_eq!((packet.ack, packet.window, packet.stamps), (FROM_GUEST, 321, Some((150, 700))), "the latest");
        }
    }
    assert_eq!(fixture.guest(&fixture.ack(2896, WINDOW - 2896)), None);
    let rest: usize = fixture.timeout().iter().map(|(_, packet)| packet.payload.len()).sum();
    assert_eq!((rest, fixture.now), (5000 - 2896, last), "the rest follows at once");
}

#[test]
fn rule_7_duplicate_acks_of_the_guest_trigger_a_retransmission() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 5000));
    fixture.guest(&fixture.ack(1000, WINDOW - 1000));
    let start = fixture.now;
    for _ in 0..3 {
        assert_eq!(fixture.guest(&fixture.ack(1000, WINDOW - 1000)), None, "not forwarded to the sender");
    }
    let sent = fixture.timeout();
    assert_eq!((fixture.now, sent[0].1.seq), (start, acks(1000)));
}

#[test]
fn rule_8_an_anomaly_ends_in_end_to_end_once_nothing_is_owed() {
    let urgent = |fixture: &Fixture| Packet { flags: TcpFlags(0x30), ..fixture.data(1000, 10) };
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.deliver(&urgent(&fixture));
    assert_eq!((fixture.flow().state, fixture.flow().fallback), (State::Draining, Some(Fallback::Urgent)));
    assert_eq!(fixture.deliver(&fixture.data(1010, 1000)), None);
    assert_eq!(fixture.timeout().len(), 1, "acknowledged data is still retransmitted");
    fixture.guest(&fixture.ack(2010, WINDOW));
    assert_eq!((fixture.flow().state, fixture.early.retained()), (State::EndToEnd, 0));
    assert_eq!(fixture.deliver(&fixture.data(2010, 1000)), None, "for good");
    assert_eq!(fixture.fallbacks(Fallback::Urgent), 1);
}

#[test]
fn rule_8_each_anomaly_is_counted_under_its_reason() {
    let fell = |reason: Fallback, act: &dyn Fn(&mut Fixture)| {
        let mut fixture = Fixture::open();
        fixture.deliver(&fixture.data(0, 1000));
        act(&mut fixture);
        assert_eq!(fixture.fallbacks(reason), 1, "{reason:?}");
        assert_eq!((fixture.flow().state, fixture.flow().retained), (State::Draining, 1000), "{reason:?}");
    };
    fell(Fallback::AckedUnsent, &|fixture| {
        fixture.guest(&fixture.ack(WINDOW + 1, WINDOW));
    });
    fell(Fallback::Reset, &|fixture| {
        fixture.deliver(&Packet { flags: TcpFlags::RST, ..fixture.data(1000, 0) });
    });
    fell(Fallback::Reset, &|fixture| {
        fixture.guest(&Packet { seq: FROM_GUEST + 9, flags: TcpFlags::RST, ..fixture.ack(0, 0) });
    });
    fell(Fallback::TurnedOff, &|fixture| fixture.early.set_mode(Mode::Off));
    fell(Fallback::Options, &|fixture| {
        let mut frame = fixture.data(1000, 10).inward(fixture.place);
        frame[57] = 99;
        fixture.deliver_frame(&frame, Checksum::Valid);
    });
}

#[test]
fn rule_8_both_ends_are_reset_if_the_guest_does_not_accept_data() {
    let mut fixture = Fixture::open();
    let start = fixture.now;
    fixture.deliver(&fixture.data(0, 1000));
    let mut resets = 0;
    while fixture.early.poll_timeout() != Nanos::NEVER {
        let sent = fixture.timeout();
        let [(true, inside), (false, outside)] = &sent[..] else {
            assert_eq!(resets, 0);
            continue;
        };
        assert!(fixture.now.since(start) > Nanos::from_millis(100_000));
        assert_eq!((outside.flags, outside.seq, outside.ack), (TcpFlags(0x14), FROM_GUEST, acks(1000)));
        assert_eq!((inside.flags, inside.seq), (TcpFlags(0x14), acks(0)));
        resets += 1;
    }
    assert_eq!(
        (resets, fixture.early.stats().resets, fixture.early.retained()),
        (5, 1, 0),
        "repeated, as one may be lost"
    );
}

#[test]
fn rule_8_ends_that_missed_their_reset_are_reset_again() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    while fixture.early.poll_timeout() != Nanos::NEVER {
        fixture.timeout();
    }
    // The sender lacks the guest's last 100 bytes; it accepts a reset only with the number that it expects.
    let again = fixture.deliver(&Packet { ack: FROM_GUEST - 100, ..fixture.data(1000, 1000) }).unwrap();
    assert_eq!((again.flags, again.seq), (TcpFlags(0x14), FROM_GUEST - 100));
    assert_eq!(fixture.guest(&fixture.ack(500, WINDOW)), None, "the guest's ACK is not forwarded");
    let [(true, inside), ..] = &fixture.timeout()[..] else { panic!("the guest is reset again") };
    assert_eq!((inside.flags, inside.seq), (TcpFlags(0x14), acks(500)));
    assert_eq!(
        fixture.deliver(&Packet { flags: TcpFlags::RST, ..fixture.data(1000, 0) }),
        None,
        "a reset is not answered by a reset"
    );
    // A new connection with the same ports is a new flow.
    fixture.connect();
    assert!(fixture.deliver(&fixture.data(0, 1000)).is_some());
}

#[test]
fn rule_8_many_flows_that_end_at_once_are_all_reset() {
    let mut fixture = Fixture::with(Place::default(), Mode::Always, Config::default(), leaked(600, 700));
    for port in 1..=400 {
        fixture.place.port = port;
        fixture.connect();
        assert!(fixture.deliver(&fixture.data(0, 10)).is_some());
    }
    let mut outside = std::collections::HashSet::new();
    while fixture.early.poll_timeout() != Nanos::NEVER {
        // No frame for outside is fetched before all are waiting.
        fixture.now = fixture.now.max(fixture.early.poll_timeout());
        while fixture.early.on_timeout(fixture.now).is_some() {}
    }
    while let Some(frame) = fixture.early.next_ack() {
        assert!(Packet::read(frame).flags.contains(TcpFlags::RST));
        outside.insert(u16::from_be_bytes([frame[36], frame[37]]));
    }
    assert_eq!(outside.len(), 400);
}

#[test]
fn rule_8_a_full_ring_does_not_count_as_a_refusal() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    for round in 0..100 {
        // The guest consumes frames, but the ring is full at each retransmission.
        fixture.now = fixture.now.max(fixture.early.poll_timeout());
        fixture.observe(256, round);
        assert!(fixture.early.on_timeout(fixture.now).is_some());
        fixture.early.refused(fixture.now);
    }
    assert!(fixture.now > Nanos::from_millis(15_000));
    assert_eq!(fixture.flow().state, State::Active, "no try has counted yet");
    assert_eq!(fixture.guest(&fixture.ack(1000, WINDOW - 1000)), None);
    assert_eq!(fixture.flow().retained, 0);
}

#[test]
fn rule_8_an_ack_of_data_that_was_not_noted_frees_copies() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    // 100 bytes more arrived in a fragment.
    let ack = fixture.ack(1100, WINDOW);
    assert_eq!(fixture.guest(&ack), Some(ack.clone()));
    let flow = fixture.flow();
    assert_eq!((flow.state, flow.fallback, flow.retained), (State::EndToEnd, Some(Fallback::AckedUnsent), 0));
}

#[test]
fn rule_8_a_fragment_from_the_guest_makes_its_flow_end_to_end() {
    for v6 in [false, true] {
        let mut fixture = Fixture::new(Place { v6, port: 4000, ..Place::default() });
        fixture.connect();
        fixture.deliver(&fixture.data(0, 1000));
        let mut frame = Packet { payload: vec![1; 64], ..fixture.ack(500, WINDOW) }.outward(fixture.place);
        if v6 {
            // A fragment header before the TCP header: 8 bytes, offset 0, more fragments.
            frame.splice(54..54, [6, 0, 0, 1, 0, 0, 0, 9]);
            (frame[20], frame[19]) = (44, frame[19] + 8);
        } else {
            frame[20] |= 0x20;
        }
        let before = frame.clone();
        assert_eq!(crate::fixture::from_guest(&mut fixture.early, &mut frame, fixture.now), Verdict::Pass);
        assert_eq!((frame == before, fixture.flow().state), (true, State::Draining), "v6: {v6}");
        assert_eq!(fixture.fallbacks(Fallback::Fragment), 1);
    }
}

#[test]
fn rule_8_a_reused_port_has_no_old_numbers() {
    let other = 0x4000_0000u32;
    let syn = |fixture: &Fixture| Packet { flags: TcpFlags::SYN, seq: other - 1, ..fixture.data(0, 0) };
    // The guest accepts a new connection: its own ACK is forwarded unchanged.
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.deliver(&syn(&fixture));
    assert_eq!(fixture.flow().retained, 1000, "a SYN from the sender alone does not end the flow");
    let both = Packet { seq: 77, ack: other, flags: TcpFlags(0x12), ..fixture.ack(0, 0) };
    assert_eq!(fixture.guest(&both), Some(both.clone()));
    assert_eq!(fixture.fallbacks(Fallback::Reopened), 1);
    let ack = Packet { seq: 78, ack: other + 5, ..fixture.ack(0, WINDOW) };
    assert_eq!(fixture.guest(&ack), Some(ack.clone()));
    assert_eq!(fixture.early.retained(), 0);
    // The guest opens a new connection from its port.
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.guest(&Packet { flags: TcpFlags::SYN, seq: 77, ack: 0, ..fixture.ack(0, 0) });
    assert_eq!((fixture.flow().state, fixture.early.retained()), (State::Opening, 0));
    // A repeated SYN and ACK is not a new connection.
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.guest(&Packet { seq: FROM_GUEST - 1, flags: TcpFlags(0x12), ..fixture.ack(0, WINDOW) });
    assert_eq!(fixture.flow().owed, 1000);
}

#[test]
fn rule_5_a_probe_is_answered_early_or_by_the_guest() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, WINDOW as usize));
    // A probe of the closed window that repeats an acknowledged byte, or has none, is answered early.
    for probe in [fixture.data(WINDOW - 1, 0), fixture.data(WINDOW - 1, 1)] {
        let answer = fixture.deliver(&probe).expect("the probe is answered");
        assert_eq!((answer.ack, answer.window), (acks(WINDOW), 0));
    }
    // The guest must answer a probe with the next byte. Its ACK has no news, but is forwarded once as the answer.
    assert_eq!(fixture.deliver(&fixture.data(WINDOW, 1)), None);
    let answer = fixture.guest(&fixture.ack(1000, 0)).expect("the answer to a probe is forwarded");
    assert_eq!((answer.ack, answer.window), (acks(WINDOW), 0));
    assert_eq!(fixture.guest(&fixture.ack(1000, 0)), None);
}

/// The guest accepted some of the data acknowledged early, dropped the rest, and its program reads nothing for an hour.
/// The sender sends every kind of probe and gets an answer each time, whether early ack is engaged, no longer, or
/// turned off.
#[test]
fn rule_5_a_reader_that_stops_for_an_hour_keeps_its_connection() {
    for (mode, then) in [(Mode::Always, Mode::Always), (Mode::Always, Mode::Auto), (Mode::Always, Mode::Off)] {
        let place = Place { port: 4000, ..Place::default() };
        let mut fixture = Fixture::with(place, mode, Config::default(), leaked(4, 64));
        fixture.connect();
        assert!(fixture.deliver(&fixture.data(0, WINDOW as usize)).is_some());
        fixture.early.set_mode(then);
        fixture.guest(&fixture.ack(5000, 0));
        let start = fixture.now;
        for minute in 1..=60 {
            let probe = match minute % 3 {
                0 => fixture.data(WINDOW - 1, 0),
                1 => fixture.data(WINDOW - 1, 1),
                _ => fixture.data(WINDOW, 1),
            };
            let early = fixture.deliver(&probe);
            let theirs = fixture.guest(&fixture.ack(5000, 0));
            let answer = early.or(theirs).unwrap_or_else(|| panic!("{then:?}: no answer in minute {minute}"));
            assert_eq!((answer.ack, answer.window), (acks(WINDOW), 0));
            // Retransmissions to the guest get the same answer meanwhile.
            while fixture.early.poll_timeout() < start + Nanos::from_millis(60_000 * minute) {
                assert!(fixture.timeout().iter().all(|(to_guest, _)| *to_guest), "{then:?}: reset in minute {minute}");
                fixture.guest(&fixture.ack(5000, 0));
            }
            fixture.now = start + Nanos::from_millis(60_000 * minute);
        }
        assert_eq!(fixture.flow().owed, WINDOW - 5000);
        let update = fixture.guest(&fixture.ack(WINDOW, WINDOW)).expect("the window update is forwarded");
        assert_eq!((update.ack, fixture.early.retained()), (acks(WINDOW), 0));
    }
}

/// A flow that ends while it has a frame to send leaves none, as flow numbers are reused.
#[test]
fn rule_8_a_waiting_frame_is_removed_with_its_flow() {
    let mut fixture = Fixture::open();
    let mut lookups = Vec::new();
    let frame = fixture.data(0, 1000).inward(fixture.place);
    fixture.early.look_up(&mut lookups, Direction::In, [(&frame[..], frame.len())].into_iter(), fixture.now);
    fixture.early.delivered(&lookups[0], &frame[..], Checksum::Present, fixture.now);
    assert!(fixture.early.has_acks());
    fixture.guest(&Packet { flags: TcpFlags::RST, ..fixture.ack(0, 0) });
    assert_eq!((fixture.early.flows().count(), fixture.early.has_acks()), (0, false));
}

#[test]
fn rule_8_a_guest_that_answers_with_a_closed_window_is_not_given_up() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    for _ in 0..50 {
        assert!(fixture.timeout().iter().all(|(to_guest, _)| *to_guest));
        fixture.guest(&fixture.ack(0, 0));
    }
    assert!(fixture.guest(&fixture.ack(1000, WINDOW)).is_some());
    assert_eq!(fixture.early.retained(), 0);
}

#[test]
fn rule_8_a_reset_from_the_guest_ends_the_flow() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.guest(&Packet { flags: TcpFlags(0x14), ..fixture.ack(0, 0) });
    assert_eq!((fixture.early.flows().count(), fixture.early.retained()), (0, 0));
}

#[test]
fn rule_9_engaged_only_while_the_guest_stalls_and_for_a_time_after() {
    let place = Place { port: 4000, ..Place::default() };
    let mut fixture = Fixture::with(place, Mode::Auto, Config::default(), leaked(2, 20));
    fixture.connect();
    fixture.observe(1, 0);
    assert_eq!(fixture.deliver(&fixture.data(0, 1000)), None, "the guest may be about to consume it");
    fixture.now += STALL;
    fixture.observe(1, 0);
    assert_eq!(fixture.deliver(&fixture.data(1000, 1000)), None, "the guest must acknowledge the data before it");
    fixture.guest(&fixture.ack(1000, WINDOW));
    assert_eq!(fixture.deliver(&fixture.data(2000, 1000)), None, "the first noted segment is not acknowledged yet");
    fixture.guest(&fixture.ack(2000, WINDOW));
    assert_eq!(fixture.deliver(&fixture.data(3000, 1000)), None, "the guest must acknowledge the data before it");
    fixture.guest(&fixture.ack(3000, WINDOW));
    assert_eq!(fixture.deliver(&fixture.data(4000, 1000)).unwrap().ack, acks(5000));
    fixture.observe(0, 3);
    fixture.guest(&fixture.ack(5000, WINDOW));
    fixture.now += Nanos(ENGAGED_AFTER_STALL.0 - 1);
    assert!(fixture.deliver(&fixture.data(5000, 1000)).is_some(), "still engaged");
    fixture.guest(&fixture.ack(6000, WINDOW));
    fixture.now += Nanos(1);
    assert_eq!(fixture.deliver(&fixture.data(6000, 1000)), None, "the guest drains its ring");
    assert!(!fixture.early.is_engaged(fixture.now));
}

#[test]
fn rule_9_a_ring_without_events_is_checked_once_more() {
    let mut fixture = Fixture::with(Place::default(), Mode::Auto, Config::default(), leaked(2, 2));
    let start = fixture.now;
    let mut observe = |after: Nanos, waiting, taken| {
        fixture.now = start + after;
        fixture.observe(waiting, taken)
    };
    assert_eq!(observe(Nanos(0), 0, 0), Nanos::NEVER, "the ring is empty");
    assert_eq!(observe(Nanos(1), 2, 0), start + Nanos(1) + STALL);
    assert_eq!(observe(Nanos(9), 3, 0), start + Nanos(1) + STALL, "counted from the first frame");
    assert_eq!(observe(Nanos(10), 2, 1), start + Nanos(10) + STALL, "the guest consumes frames");
    assert_eq!(observe(Nanos(10) + STALL, 2, 1), Nanos::NEVER, "the stall is known");
    for mode in [Mode::Off, Mode::Always] {
        fixture.early.set_mode(mode);
        assert_eq!(fixture.observe(1, 9), Nanos::NEVER, "{mode:?}");
    }
}

#[test]
fn rule_9_a_stalled_ring_does_not_count_as_a_refusal() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.observe(1, 0);
    for _ in 0..1000 {
        assert_eq!(fixture.timeout(), []);
    }
    assert!(fixture.now > Nanos::from_millis(100_000));
    fixture.observe(0, 1);
    assert_eq!(fixture.timeout().len(), 1);
}

#[test]
fn rule_11_off_by_default() {
    let place = Place { port: 4000, ..Place::default() };
    let mut fixture = Fixture::with(place, Mode::default(), Config::default(), leaked(2, 20));
    fixture.connect();
    assert_eq!(fixture.deliver(&fixture.data(0, 1000)), None);
    assert_eq!(fixture.early.flows().count(), 0);
}
