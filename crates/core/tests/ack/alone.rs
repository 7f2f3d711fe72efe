//! A guest that drains its ring is left alone; when it stalls, its flows' numbers are learned again.

use crate::fixture::{FROM_GUEST, FROM_OUTSIDE, Fixture, WINDOW, leaked};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, Direction, ENGAGED_AFTER_STALL, Fallback, Mode, OPENING, STALL, State};
use fairlane_core::packet::TcpFlags;
use fairlane_core::time::Nanos;

/// A guest that drains its ring, with an open connection.
fn drained(v6: bool) -> Fixture {
    let place = Place { v6, port: 4000, ..Place::default() };
    let mut fixture = Fixture::with(place, Mode::Auto, Config::default(), leaked(4, 64));
    fixture.connect();
    fixture
}

/// Whether a frame has to be noted.
fn is_noted(fixture: &mut Fixture, packet: &Packet, direction: Direction) -> bool {
    let frame = if direction == Direction::In { packet.inward(fixture.place) } else { packet.outward(fixture.place) };
    let mut lookups = Vec::new();
    fixture.early.look_up(&mut lookups, direction, [(&frame[..], frame.len())].into_iter(), fixture.now)
}

/// Delivers data until a segment is not noted.
fn skip_some(fixture: &mut Fixture) {
    let data = fixture.data(0, 1000);
    while is_noted(fixture, &data, Direction::In) {}
}

/// How many of a hundred lookups of a frame report that it has to be noted.
fn noted(fixture: &mut Fixture, packet: &Packet, direction: Direction) -> usize {
    (0..100).filter(|_| is_noted(fixture, packet, direction)).count()
}

/// The guest stops draining its ring.
fn stall(fixture: &mut Fixture) {
    fixture.observe(1, 0);
    fixture.now += STALL;
    fixture.observe(1, 0);
}

/// Data and ACKs are sampled; other segments are always noted, and so is everything once the guest stalls.
#[test]
fn rule_9_only_segments_that_begin_or_end_a_flow_are_always_noted() {
    for v6 in [false, true] {
        let mut fixture = drained(v6);
        let (data, ack) = (fixture.data(0, 100), fixture.ack(0, WINDOW));
        for (packet, direction) in [(&data, Direction::In), (&ack, Direction::Out)] {
            let times = noted(&mut fixture, packet, direction);
            assert!((1..20).contains(&times), "{times} of 100");
        }
        for flags in [TcpFlags::FIN, TcpFlags::RST, TcpFlags::SYN, TcpFlags::URG] {
            let packet = Packet { flags: TcpFlags::ACK.with(flags), ..data.clone() };
            assert_eq!(noted(&mut fixture, &packet, Direction::In), 100, "{flags:?}");
        }
        stall(&mut fixture);
        assert_eq!((noted(&mut fixture, &data, Direction::In), noted(&mut fixture, &ack, Direction::Out)), (100, 100));
    }
}

/// While a handshake or a FIN waits for its answer, every segment is noted.
#[test]
fn rule_9_a_flow_that_opens_or_closes_is_watched() {
    let mut fixture = drained(false);
    let data = fixture.data(0, 100);
    let other = Place { port: 4001, ..fixture.place };
    let place = std::mem::replace(&mut fixture.place, other);
    let syn = Packet { seq: 9, flags: TcpFlags::SYN, window: 9, ..Packet::default() };
    fixture.deliver(&syn);
    assert_eq!(noted(&mut fixture, &data, Direction::In), 100, "a handshake is in progress");
    fixture.guest(&Packet { seq: 4, ack: 10, flags: TcpFlags::SYN.with(TcpFlags::ACK), ..syn.clone() });
    fixture.deliver(&Packet { seq: 10, ack: 5, flags: TcpFlags::ACK, ..syn });
    fixture.place = place;
    assert!(noted(&mut fixture, &data, Direction::In) < 20, "the handshake is complete");
    fixture.deliver(&Packet { flags: TcpFlags::ACK.with(TcpFlags::FIN), ..fixture.data(5000, 0) });
    assert_eq!(noted(&mut fixture, &data, Direction::In), 100, "the sender's FIN is not acknowledged");
    fixture.guest(&fixture.ack(5001, WINDOW));
    assert_eq!(fixture.early.known(), 1, "the closed connection is removed");
    assert!(noted(&mut fixture, &data, Direction::In) < 20);
}

/// A connection that is refused or never answered does not keep its guest watched.
#[test]
fn rule_9_a_flow_that_never_opens_is_removed() {
    let mut fixture = drained(false);
    let data = fixture.data(0, 100);
    let syn = Packet { seq: 9, flags: TcpFlags::SYN, window: 9, ..Packet::default() };
    let refusal = Packet { seq: 0, ack: 10, flags: TcpFlags::RST.with(TcpFlags::ACK), ..syn.clone() };
    let place = fixture.place;
    for refused in [true, false] {
        fixture.place.port = 4001;
        fixture.deliver(&syn);
        if refused {
            fixture.guest(&refusal);
        }
        fixture.place = place;
        assert_eq!(noted(&mut fixture, &data, Direction::In) < 20, refused);
    }
    fixture.now += Nanos::from_millis(1000 * u64::from(OPENING + 1));
    noted(&mut fixture, &data, Direction::In);
    assert!(noted(&mut fixture, &data, Direction::In) < 20, "the connection was never answered");
}

/// However far a connection has advanced unnoted, it is acknowledged early once segments of both ends were noted, from
/// the guest's present numbers.
#[test]
fn rule_9_old_numbers_are_learned_again_before_they_are_used() {
    for far in [3000, 1 << 30, 3 << 30] {
        let mut fixture = drained(false);
        skip_some(&mut fixture);
        let (mine, theirs) = (FROM_OUTSIDE.wrapping_add(far), FROM_GUEST.wrapping_add(far));
        let data = |at: u32| Packet {
            seq: mine.wrapping_add(at),
            ack: theirs,
            stamps: Some((far, 700)),
            ..Fixture::open().data(0, 1000)
        };
        let ack = |at: u32| Packet {
            seq: theirs,
            stamps: Some((far, far)),
            ..Fixture::open().ack(far.wrapping_add(at), WINDOW)
        };
        stall(&mut fixture);
        assert_eq!(fixture.deliver(&data(1000)), None);
        assert_eq!(fixture.guest(&ack(1000)), Some(ack(1000)), "{far}: it is forwarded unchanged");
        assert_eq!(fixture.deliver(&data(2000)), None, "the guest has not acknowledged the first noted segment");
        assert_eq!(fixture.early.retained(), 0);
        assert_eq!(fixture.guest(&ack(3000)), Some(ack(3000)));
        let early = fixture.deliver(&data(3000)).expect("the numbers are learned");
        assert_eq!((early.ack, early.seq, early.stamps), (mine.wrapping_add(4000), theirs, Some((far, far))));
    }
}

/// An ACK beyond the noted segments is not used: learning goes on.
#[test]
fn rule_9_an_ack_beyond_the_noted_segments_teaches_nothing() {
    let mut fixture = drained(false);
    skip_some(&mut fixture);
    stall(&mut fixture);
    fixture.deliver(&fixture.data(1000, 1000));
    assert!(fixture.guest(&fixture.ack(9000, WINDOW)).is_some());
    assert_eq!(fixture.deliver(&fixture.data(9000, 1000)), None);
    assert_eq!((fixture.flow().state, fixture.fallbacks(Fallback::AckedUnsent)), (State::Idle, 0));
    assert!(fixture.guest(&fixture.ack(2000, WINDOW)).is_some(), "nor does it raise a later ACK");
}

/// While the numbers are not known, anyone may send a segment with any numbers. It does not prevent early ACKs, and
/// does not keep the guest watched for ever.
#[test]
fn rule_9_segments_outside_the_window_teach_nothing() {
    for (foreign, flags) in [(1 << 29, 0x10), (1 << 29, 0x11), (1 << 31, 0x11), (3 << 30, 0x11), (0, 0x11)] {
        let mut fixture = drained(false);
        skip_some(&mut fixture);
        // Unusual segments are always noted, plain data is sampled.
        let segment = Packet { flags: TcpFlags(flags), ..fixture.data(foreign, 100) };
        while !is_noted(&mut fixture, &segment, Direction::In) {}
        fixture.deliver(&segment);
        fixture.guest(&fixture.ack(1000, WINDOW));
        fixture.guest(&fixture.ack(1000, WINDOW));
        let ack = fixture.ack(1000, WINDOW);
        assert!(noted(&mut fixture, &ack, Direction::Out) < 20, "{foreign:x} {flags:x}: the guest is watched");
        stall(&mut fixture);
        fixture.deliver(&segment);
        fixture.guest(&fixture.ack(1000, WINDOW));
        fixture.deliver(&fixture.data(1000, 1000));
        fixture.guest(&fixture.ack(2000, WINDOW));
        let early = fixture.deliver(&fixture.data(2000, 1000)).map(|ack| ack.ack);
        assert_eq!(early, Some(FROM_OUTSIDE.wrapping_add(3000)), "{foreign:x} {flags:x}");
    }
}

/// Numbers learned before the guest was left alone again are old.
#[test]
fn rule_9_learned_numbers_grow_old_again() {
    let mut fixture = drained(false);
    for round in [0, 10_000] {
        skip_some(&mut fixture);
        stall(&mut fixture);
        let acknowledged = if round == 0 { 0 } else { 2000 };
        fixture.guest(&fixture.ack(acknowledged, WINDOW));
        fixture.deliver(&fixture.data(round + 1000, 1000));
        assert_eq!(fixture.early.retained(), 0, "the data before it is not known");
        fixture.guest(&fixture.ack(round + 2000, WINDOW));
        fixture.observe(0, 9);
        fixture.now += ENGAGED_AFTER_STALL;
    }
}

/// A flow with old numbers is exported as such.
#[test]
fn rule_10_old_numbers_stay_old_after_an_import() {
    let mut fixture = drained(false);
    skip_some(&mut fixture);
    let export = fixture.early.export();
    let mut other = Fixture::with(fixture.place, Mode::Always, Config::default(), leaked(4, 64));
    assert_eq!(other.early.import(&export, other.now), Ok(1));
    assert_eq!(other.deliver(&other.data(1000, 1000)), None, "the data before it is not known");
    other.guest(&other.ack(2000, WINDOW));
    assert_eq!(other.deliver(&other.data(2000, 1000)).map(|ack| ack.ack), Some(FROM_OUTSIDE.wrapping_add(3000)));
}

/// Imported copies are kept even where the guest was left alone.
#[test]
fn rule_10_imported_copies_are_kept_where_a_guest_was_left_alone() {
    let mut source = Fixture::open();
    source.deliver(&source.data(0, 1000)).expect("it is acknowledged early");
    let place = Place { port: 4001, ..source.place };
    let mut target = Fixture::with(place, Mode::Auto, Config::default(), leaked(4, 64));
    target.connect();
    skip_some(&mut target);
    assert_eq!(target.early.import(&source.early.export(), target.now), Ok(1));
    target.place.port = 4000;
    target.guest(&target.ack(400, WINDOW));
    assert_eq!(target.early.retained(), 600);
}
