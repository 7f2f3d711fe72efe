//! Flows that are exported to another backend (rule 10) or resumed after a process ended, and a full flow table.

use crate::fixture::{FROM_GUEST, Fixture, SCALE, WINDOW, acks, delivered, from_guest, leaked, memory};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{
    AGEING, Block, Config, EarlyAck, Extent, Fallback, Flow, ImportError, Memory, Mode, Ring, State, VERSION, Verdict,
};
use fairlane_core::packet::{Checksum, TcpFlags};
use fairlane_core::time::Nanos;
use proptest::prelude::*;

/// A fixture's connection on another backend.
fn moved_to(early: EarlyAck<'static>, fixture: &Fixture) -> Fixture {
    Fixture { early, place: fixture.place, now: fixture.now }
}

#[test]
fn rule_10_copies_travel_with_the_flow() {
    let mut source = Fixture::open();
    source.deliver(&source.data(0, 5000));
    source.guest(&source.ack(1000, WINDOW));
    let export = source.early.export();
    assert_eq!(&export[..6], &[b'F', b'L', b'A', b'C', b'K', VERSION]);

    let mut early = EarlyAck::new(leaked(4, 8), Config { seed: 77, ..Config::default() }, Mode::Always);
    assert_eq!(early.import(&export, source.now), Ok(1));
    let mut target = moved_to(early, &source);
    assert_eq!((target.flow().retained, target.flow().owed, target.flow().state), (4000, 4000, State::Active));
    let next = target.deliver(&target.data(5000, 1000)).expect("it is still acknowledged early");
    assert_eq!((next.ack, next.seq, next.stamps), (acks(6000), FROM_GUEST, Some((701, 101))));
    let sent = target.timeout();
    assert_eq!((sent[0].1.seq, &sent[0].1.payload), (acks(1000), &target.data(1000, 1448).payload));
    target.guest(&target.ack(6000, WINDOW));
    assert_eq!(target.early.retained(), 0);
}

/// A FIN before data that was acknowledged: an import must not refuse the state of such a flow.
#[test]
fn rule_10_a_flow_with_a_fin_before_acknowledged_data_can_move() {
    let mut source = Fixture::open();
    source.deliver(&source.data(0, 5000));
    source.deliver(&Packet { flags: TcpFlags::ACK.with(TcpFlags::FIN), ..source.data(1000, 0) });
    let export = source.early.export();
    let mut early = EarlyAck::new(leaked(4, 8), Config::default(), Mode::Always);
    assert_eq!(early.import(&export, source.now), Ok(1));
    let mut target = moved_to(early, &source);
    assert_eq!((target.flow().retained, target.flow().owed), (5000, 5000));
    target.guest(&target.ack(5000, WINDOW));
    assert_eq!(target.early.flows().count(), 0, "the guest has everything, and nothing follows a FIN");
}

#[test]
fn rule_10_or_the_flow_drains_first() {
    let mut fixture = Fixture::open();
    fixture.deliver(&fixture.data(0, 1000));
    fixture.early.set_mode(Mode::Off);
    assert_eq!((fixture.deliver(&fixture.data(1000, 1000)), fixture.early.retained()), (None, 1000));
    fixture.guest(&fixture.ack(2000, WINDOW));
    assert_eq!(fixture.early.retained(), 0);
}

#[test]
fn an_import_is_all_or_nothing() {
    let mut source = Fixture::open();
    source.deliver(&source.data(0, 5000));
    let export = source.early.export();
    let import = |export: &[u8], blocks: usize| {
        let mut early = EarlyAck::new(leaked(4, blocks), Config::default(), Mode::Always);
        let result = early.import(export, source.now);
        let expected = if result.is_ok() { (1, 5000) } else { (0, 0) };
        assert_eq!((early.flows().count(), early.retained()), expected, "{result:?}");
        result
    };
    assert_eq!(import(&export, 8), Ok(1));
    assert_eq!(import(&export, 2), Err(ImportError::Full(0)));
    assert_eq!(import(b"something else", 8), Err(ImportError::Foreign));
    assert_eq!(import(&[&export[..], &[0]].concat(), 8), Err(ImportError::Length(export.len())));
    let with = |at: usize, value: u8| {
        let mut export = export.clone();
        export[at] = value;
        import(&export, 8)
    };
    assert_eq!(with(5, 9), Err(ImportError::Version(9)));
    for len in 0..export.len() {
        assert!(import(&export[..len], 8).is_err(), "{len}");
    }
    // A window edge 2^31 away: deliveries up to it would be counted, and no other backend could import the flow again.
    assert_eq!(with(67, export[67] ^ 0x80), Err(ImportError::Field { flow: 0, field: "the guest's window" }));
    // The export claims two flows, and the second repeats the first.
    let mut twice = export.clone();
    twice[6] = 2;
    twice.extend(&export[10..]);
    assert_eq!(import(&twice, 8), Err(ImportError::Full(1)));
}

proptest! {
    #[test]
    fn no_import_panics(changes in proptest::collection::vec((6usize..200, any::<u8>()), 1..6)) {
        let mut source = Fixture::open();
        source.deliver(&source.data(0, 5000));
        let mut export = source.early.export();
        for (at, value) in changes {
            export[at] = value;
        }
        let mut early = EarlyAck::new(leaked(4, 8), Config::default(), Mode::Always);
        let imported = early.import(&export, source.now).is_ok();
        prop_assert_eq!(early.flows().count(), usize::from(imported));
        let mut target = moved_to(early, &source);
        target.deliver(&target.data(5000, 1000));
        target.guest(&target.ack(2000, WINDOW));
        for _ in 0..30 {
            target.now = target.now.max(target.early.poll_timeout());
            while target.early.on_timeout(target.now).is_some() {}
        }
    }
}

/// Fills the memory like a process that acknowledged some data early and ended.
fn left_behind(flows: &mut [Flow], blocks: &mut [Block]) {
    let mut early = EarlyAck::new(Memory { flows, blocks }, Config::default(), Mode::Always);
    let fixture = Fixture::new(Place { port: 4000, ..Place::default() });
    let place = fixture.place;
    let mut deliver =
        |packet: &Packet| delivered(&mut early, &packet.inward(place), Checksum::Present, fixture.now).is_some();
    let syn = Packet { seq: acks(0) - 1, flags: TcpFlags::SYN, stamps: Some((1, 0)), ..Packet::default() };
    deliver(&syn);
    let both = Packet {
        seq: FROM_GUEST - 1,
        ack: acks(0),
        flags: TcpFlags(0x12),
        window: WINDOW as u16,
        stamps: Some((700, 1)),
        ..syn
    };
    let mut frame = both.outward(place);
    from_guest(&mut early, &mut frame, fixture.now);
    let mut deliver =
        |packet: &Packet| delivered(&mut early, &packet.inward(place), Checksum::Present, fixture.now).is_some();
    deliver(&fixture.data(0, 0));
    assert!(deliver(&fixture.data(0, 5000)));
}

#[test]
fn a_killed_backend_resumes_its_flows() {
    let (mut flows, mut blocks) = memory(4, 8);
    left_behind(&mut flows, &mut blocks);
    let memory = Memory { flows: &mut flows, blocks: &mut blocks };
    let later = Nanos(5);
    let mut early = EarlyAck::resume(memory, Config { seed: 9, ..Config::default() }, Mode::Always, later);
    assert_eq!((early.retained(), early.flows().count()), (5000, 1));
    let sent = early.on_timeout(later).expect("the retransmission is due at once");
    assert_eq!(Packet::read(sent).payload[..], Fixture::open().data(0, 524).payload[..]);
}

/// The guest opened its window, which is news, and the process ended before it forwarded the frame, which is still in
/// the guest's ring.
#[test]
fn a_frame_that_was_judged_but_not_sent_is_judged_the_same_again() {
    let (mut flows, mut blocks) = memory(4, 16);
    left_behind(&mut flows, &mut blocks);
    let place = Fixture::new(Place { port: 4000, ..Place::default() }).place;
    // No scale was agreed on.
    let update = Fixture::open().ack(1000, (WINDOW + 8000) << SCALE).outward(place);
    let mut judge = || {
        let memory = Memory { flows: &mut flows, blocks: &mut blocks };
        let mut early = EarlyAck::resume(memory, Config::default(), Mode::Always, Nanos(5));
        let mut frame = update.clone();
        let verdict = from_guest(&mut early, &mut frame, Nanos(5));
        let moved = early.export();
        (verdict, Packet::read(&frame), moved)
    };
    let (verdict, sent, moved) = judge();
    assert_eq!((verdict, sent.ack, sent.window), (Verdict::Pass, acks(5000), (WINDOW + 4000) as u16));
    assert_eq!((judge().0, judge().1), (Verdict::Pass, sent.clone()));
    // The same on the backend that imports the flow.
    let mut early = EarlyAck::new(leaked(4, 16), Config::default(), Mode::Always);
    assert_eq!(early.import(&moved, Nanos(5)), Ok(1));
    let mut frame = update.clone();
    assert_eq!(from_guest(&mut early, &mut frame, Nanos(5)), Verdict::Pass);
    assert_eq!(Packet::read(&frame), sent);
}

#[test]
fn a_flow_whose_copies_are_lost_resets_both_ends() {
    let (mut flows, mut blocks) = memory(4, 8);
    left_behind(&mut flows, &mut blocks);
    blocks.fill(Block::FREE);
    let memory = Memory { flows: &mut flows, blocks: &mut blocks };
    let mut early = EarlyAck::resume(memory, Config::default(), Mode::Always, Nanos(5));
    assert_eq!(early.stats().fallbacks(Fallback::Damaged), 1);
    let inside = early.on_timeout(Nanos(5)).map(Packet::read).expect("the guest is reset");
    let outside = early.next_ack().map(Packet::read).expect("its sender is reset");
    for reset in [inside, outside] {
        assert!(reset.flags.contains(TcpFlags::RST));
    }
    assert_eq!(early.retained(), 0);
}

/// Early ack was turned off while no process ran: acknowledged data is still retransmitted to the guest.
#[test]
fn rule_10_flows_that_are_resumed_turned_off_drain() {
    let (mut flows, mut blocks) = memory(4, 8);
    left_behind(&mut flows, &mut blocks);
    let memory = Memory { flows: &mut flows, blocks: &mut blocks };
    let mut early = EarlyAck::resume(memory, Config::default(), Mode::Off, Nanos(5));
    let fixture = Fixture::open();
    assert_eq!((early.retained(), early.flows().next().map(|flow| flow.state)), (5000, Some(State::Draining)));
    let next = fixture.data(5000, 1000).inward(fixture.place);
    assert_eq!(delivered(&mut early, &next, Checksum::Present, Nanos(5)), None);
    from_guest(&mut early, &mut fixture.ack(5000, WINDOW).outward(fixture.place), Nanos(5));
    assert_eq!(early.retained(), 0);

    let (mut flows, mut blocks) = (flows.clone(), blocks.clone());
    let memory = Memory { flows: &mut flows, blocks: &mut blocks };
    let early = EarlyAck::resume(memory, Config::default(), Mode::Off, Nanos(5));
    assert_eq!(early.flows().count(), 0, "nothing is owed");
}

#[test]
fn every_ip_version_and_tag_combination_is_a_flow_of_its_own() {
    let mut fixture = Fixture::new(Place::default());
    let mut count = 0;
    for v6 in [false, true] {
        for vlans in [[0, 0], [7, 0], [7, 8]] {
            fixture.place = Place { v6, vlans, port: 4000 };
            fixture.connect();
            let ack = fixture.deliver(&fixture.data(0, 1000)).expect("it is acknowledged");
            assert_eq!((ack.ack, ack.stamps), (acks(1000), Some((700, 101))));
            count += 1;
        }
    }
    assert_eq!(fixture.early.flows().count(), count);
    let addresses: Vec<_> = fixture.early.flows().map(|flow| (flow.vlan, flow.outside.to_string())).collect();
    assert!(
        addresses.contains(&(7, "[fd00::1]:4000".to_owned())) && addresses.contains(&(0, "10.0.0.1:4000".to_owned()))
    );
}

#[test]
fn with_a_full_table_flows_are_end_to_end_until_others_are_old() {
    let mut fixture = Fixture::with(Place::default(), Mode::Always, Config::default(), leaked(2, 8));
    for port in 1..=2 {
        fixture.place.port = port;
        fixture.connect();
    }
    fixture.deliver(&fixture.data(0, 1000));
    fixture.place.port = 3;
    fixture.connect();
    assert_eq!(fixture.deliver(&fixture.data(0, 1000)), None);
    assert_eq!((fixture.early.flows().count(), fixture.fallbacks(Fallback::TableFull)), (2, 1));
    fixture.now += Nanos::from_millis(u64::from(AGEING + 2) * 1000);
    fixture.connect();
    assert!(fixture.deliver(&fixture.data(0, 1000)).is_some());
    let ports: Vec<u16> = fixture.early.flows().map(|flow| flow.outside.port()).collect();
    assert_eq!(ports.len(), 2, "the flow that owes nothing was removed");
    assert!(ports.contains(&2) && ports.contains(&3));
}

#[test]
fn a_flow_ends_with_the_senders_fin() {
    let mut fixture = Fixture::open();
    fixture.deliver(&Packet { flags: TcpFlags::FIN.with(TcpFlags::ACK), ..fixture.data(0, 1000) });
    assert!(fixture.guest(&fixture.ack(1001, WINDOW)).is_some(), "the FIN's ACK is the guest's own");
    assert_eq!(fixture.early.flows().count(), 0);
}

#[test]
fn a_guest_that_connects_gets_early_ack_as_well() {
    let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
    let syn = Packet { seq: FROM_GUEST - 1, flags: TcpFlags::SYN, window: 999, scale: Some(3), ..Packet::default() };
    fixture.guest(&syn);
    fixture.deliver(&Packet { seq: acks(0) - 1, ack: FROM_GUEST, flags: TcpFlags(0x12), scale: Some(3), ..syn });
    let bare = |packet: Packet| Packet { stamps: None, ..packet };
    fixture.guest(&Packet { window: 250, ..bare(fixture.ack(0, 0)) });
    assert_eq!(fixture.deliver(&bare(fixture.data(0, 2001))), None, "its window is 2000");
    assert_eq!(fixture.deliver(&bare(fixture.data(0, 2000))).unwrap().ack, acks(2000));
}

#[test]
fn a_simultaneous_open_is_end_to_end() {
    let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
    fixture.guest(&Packet { seq: FROM_GUEST - 1, flags: TcpFlags::SYN, ..Packet::default() });
    fixture.deliver(&Packet { seq: acks(0) - 1, flags: TcpFlags::SYN, ..Packet::default() });
    assert_eq!((fixture.flow().state, fixture.fallbacks(Fallback::SimultaneousOpen)), (State::EndToEnd, 1));
}

/// Incomplete handshakes have a limited share of the table, in which the oldest is evicted; open flows have the rest.
#[test]
fn incomplete_handshakes_exclude_no_other_flow() {
    let mut fixture = Fixture::with(Place::default(), Mode::Always, Config::default(), leaked(16, 8));
    for port in 100..1000 {
        fixture.place.port = port;
        let syn = Packet { seq: 99, flags: TcpFlags::SYN, window: 1000, ..Packet::default() };
        assert_eq!(fixture.deliver(&syn), None);
        assert!(fixture.early.flows().count() <= 4);
    }
    for port in 1..=12 {
        fixture.place.port = port;
        fixture.connect();
    }
    let open = fixture.early.flows().filter(|flow| flow.state == State::Idle).count();
    assert_eq!((open, fixture.early.flows().count()), (12, 15));
}

/// A table that grows with use has room for as many handshakes as one that is large from the start; one that cannot
/// grow still excludes no other flow.
#[test]
fn the_share_of_handshakes_is_of_the_largest_possible_table() {
    for (grows, begun) in [(true, 16), (false, 8)] {
        let extent = Extent { flows: 8, blocks: 8 };
        let config = Config { extent, ..Config::default() };
        let mut fixture = Fixture::with(Place::default(), Mode::Always, config, leaked(64, 8));
        for port in 100..200 {
            fixture.place.port = port;
            let syn = Packet { seq: 99, flags: TcpFlags::SYN, window: 1000, ..Packet::default() };
            assert_eq!(fixture.deliver(&syn), None);
            let Extent { flows, blocks } = fixture.early.extent();
            if grows && fixture.early.is_short().0 {
                fixture.early.grow(Extent { flows: 2 * flows, blocks });
            }
        }
        assert_eq!(fixture.early.flows().count(), begun);
        fixture.place.port = 1;
        fixture.connect();
        assert!(fixture.deliver(&fixture.data(0, 1000)).is_some());
    }
}

/// After the export and before the guest has left, a sender's data still reaches the guest's ring, but no export.
#[test]
fn rule_10_nothing_is_acknowledged_after_an_export() {
    let (mut flows, mut blocks) = memory(4, 8);
    left_behind(&mut flows, &mut blocks);
    let mut later = Nanos(5);
    for _ in 0..2 {
        // The same holds for a process that is started then.
        let memory = Memory { flows: &mut flows, blocks: &mut blocks };
        let mut early = EarlyAck::resume(memory, Config::default(), Mode::Always, later);
        let fixture = Fixture::open();
        early.observe(Ring { waiting: 1, taken: 7 }, later);
        early.export();
        let next = fixture.data(5000, 1000).inward(fixture.place);
        for _ in 0..100 {
            assert_eq!(delivered(&mut early, &next, Checksum::Present, later), None);
            assert_eq!(early.poll_timeout(), Nanos::NEVER, "nor are the ends reset while the flow is frozen");
            later += Nanos::from_millis(10_000);
            early.observe(Ring { waiting: 2, taken: 7 }, later);
            // The guest left, and its rings with it.
            early.observe(Ring::default(), later);
        }
        assert_eq!(early.retained(), 5000);
    }
    // The guest continues here after all.
    for speaks in [false, true] {
        let memory = Memory { flows: &mut flows, blocks: &mut blocks };
        let mut early = EarlyAck::resume(memory, Config::default(), Mode::Always, later);
        let fixture = Fixture::open();
        early.observe(Ring { waiting: 2, taken: 7 }, later);
        assert_eq!(early.poll_timeout(), Nanos::NEVER);
        if speaks {
            from_guest(&mut early, &mut fixture.ack(0, WINDOW).outward(fixture.place), later);
        } else {
            early.observe(Ring { waiting: 1, taken: 8 }, later);
        }
        assert!(early.poll_timeout() <= later, "the retransmission is due");
        let next = fixture.data(5000, 1000).inward(fixture.place);
        assert!(delivered(&mut early, &next, Checksum::Present, later).is_some());
        early.export();
    }
}
