//! A Xen frontend that breaks the rules: each case disables its own vif, with the reason, leaves nothing mapped, and
//! has no other effect.
//!
//! The cases are those in which Linux netback disables a vif, and grants that cannot be used.

use crate::netfront::*;
use fairlane_core::packet::{Checksum, Offload, checksum};
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use fairlane_port::xen::{FrontendFeatures, Link, QueueSetup};
use fairlane_port::{Burst, Control, Port, Put, Refusal, Sink, Source, Status, Wanted, memory};
use proptest::prelude::*;
use std::sync::Arc;

/// Breaks a rule by `wrong`, and checks that this disables the vif with `reason`, and that the next frontend is served.
#[track_caller]
fn disabled_by(reason: &str, wrong: impl FnOnce(&mut Frontend)) {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    guest.post_buffers(4);
    wrong(&mut guest);
    backend.take();
    backend.put(&frame(0, 1000), Offload::default());
    let Status::Disabled(why) = backend.port.status() else { panic!("it is {:?}", backend.port.status()) };
    assert!(why.contains(reason), "the reason is: {why}");
    assert_eq!(backend.disconnected.try_recv().unwrap().as_ref(), Some(&why));
    assert_eq!([TX, RX].map(|ring| machine.users(1, ring)), [2, 2], "nothing stays mapped");
    let down = backend.put(&frame(0, 100), Offload::default());
    assert_eq!(down.refusal, Some(Refusal::Never(DropReason::ReceiverDown)));
    assert!(backend.take().is_empty());
    let mut next = Frontend::new(&machine, 2);
    backend.connect(&[&next], EVERYTHING);
    next.transmit(&frame(1, 200), 4096, 0, 0, None);
    assert_eq!(backend.take(), [(frame(1, 200), Offload::default())]);
}

#[test]
fn a_producer_index_too_far_ahead() {
    disabled_by("the producer index 257 is not within 256 slots after 0", |guest| guest.set_producer(257));
    disabled_by("the producer index 4294967295", |guest| guest.set_producer(u32::MAX));
    disabled_by("the producer index 300 is not within", |guest| guest.set_receive_producer(300));
}

#[test]
fn a_producer_index_that_moves_back() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    guest.transmit(&frame(0, 100), 4096, 0, 0, None);
    assert_eq!(backend.take().len(), 1);
    guest.set_producer(0);
    assert!(backend.take().is_empty());
    assert!(matches!(backend.port.status(), Status::Disabled(why) if why.contains("producer index 0")));
}

#[test]
fn a_packet_of_more_than_twenty_slots() {
    disabled_by("a packet of more than 20 slots", |guest| guest.transmit(&frame(0, 2100), 100, 0, 0, None));
}

#[test]
fn an_incomplete_packet() {
    disabled_by("continues in slot 1 after its first", |guest| {
        guest.grant(PAGES, 0, &frame(0, 100));
        guest.request(PAGES, 0, MORE, 100);
        guest.publish();
    });
}

#[test]
fn slots_that_cross_a_page() {
    disabled_by("a slot of 200 bytes at offset 4000 crosses", |guest| {
        guest.request(PAGES, 4000, 0, 200);
        guest.publish();
    });
    disabled_by("a slot of 65535 bytes at offset 65535 crosses", |guest| {
        guest.request(PAGES, u16::MAX, 0, u16::MAX);
        guest.publish();
    });
    disabled_by("a slot of 4097 bytes at offset 0 crosses", |guest| {
        guest.grant(PAGES, 0, &frame(0, 100));
        guest.request(PAGES, 0, MORE, 5000);
        guest.request(PAGES, 0, 0, 4097);
        guest.publish();
    });
}

#[test]
fn invalid_extra_info() {
    let with_extra = |kind, flags, size, gso| {
        move |guest: &mut Frontend| {
            guest.grant(PAGES, 0, &tcp_frame(100));
            guest.request(PAGES, 0, EXTRA | BLANK, 154);
            guest.extra(kind, flags, size, gso);
            guest.publish();
        }
    };
    disabled_by("extra info of type 0", with_extra(0, 0, 1448, 1));
    disabled_by("extra info of type 6", with_extra(6, 0, 1448, 1));
    disabled_by("a GSO size of 0", with_extra(1, 0, 0, 1));
    disabled_by("a GSO type of 3", with_extra(1, 0, 1448, 3));
    disabled_by("a GSO type of 0", with_extra(1, 0, 1448, 0));
    disabled_by("announces extra info that the producer index does not cover", with_extra(1, 1, 1448, 1));
    disabled_by("announces extra info that the producer index does not cover", |guest| {
        guest.request(PAGES, 0, EXTRA, 100);
        guest.publish();
    });
}

#[test]
fn a_reference_never_granted() {
    disabled_by("grant reference 77 cannot be used", |guest| {
        guest.request(77, 0, 0, 100);
        guest.publish();
    });
    disabled_by("grant reference 1000 cannot be used", |guest| guest.withdraw(BUFFERS));
    // All pages of a small frame are copied at once.
    disabled_by("grant reference 78 cannot be used", |guest| {
        guest.grant(PAGES, 0, &frame(0, 1000));
        guest.request(PAGES, 0, MORE, 1500);
        guest.request(78, 0, 0, 500);
        guest.publish();
    });
}

/// The head of a large frame was copied, and then the grant of its body is revoked: a reader gets zeros, and the vif is
/// disabled.
#[test]
fn a_grant_revoked_in_flight() {
    disabled_by("grant reference 78 cannot be used", |guest| {
        guest.grant(PAGES, 0, &frame(0, 1000));
        guest.request(PAGES, 0, MORE, 3000);
        guest.request(78, 0, 0, 500);
        guest.publish();
    });
}

#[test]
fn a_senders_bad_grant_is_not_the_receivers_fault() {
    let machine = Arc::new(Machine::default());
    let (mut bad, mut good) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
    let mut from = Backend::connected(&bad, EVERYTHING);
    let mut to = Backend::connected(&good, EVERYTHING);
    good.post_buffers(16);
    bad.transmit(&frame(1, 300), 4096, 0, 0, None);
    bad.grant(PAGES + 50, 0, &frame(0, 1000));
    bad.request(PAGES + 50, 0, MORE, 3000);
    bad.request(78, 0, 0, 500);
    bad.publish();
    let put = from.pass(&mut to);
    assert_eq!((put.accepted, put.refusal), (1, Some(Refusal::Never(DropReason::Malformed))));
    assert!(matches!(from.port.status(), Status::Disabled(why) if why.contains("grant reference 78")));
    assert_eq!(to.port.status(), Status::Up);
    to.put(&frame(9, 100), Offload::default());
    let received: Vec<Vec<u8>> = good.receive().into_iter().map(|(bytes, ..)| bytes).collect();
    assert_eq!(received, [frame(1, 300), frame(9, 100)], "its buffer was not used up");
}

#[test]
fn a_receivers_bad_grant_is_not_the_senders_fault() {
    let machine = Arc::new(Machine::default());
    let (mut good, mut bad) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
    let mut from = Backend::connected(&good, EVERYTHING);
    let mut to = Backend::connected(&bad, EVERYTHING);
    bad.post_buffers(16);
    bad.withdraw(BUFFERS + 1);
    good.transmit(&frame(1, 300), 4096, 0, 0, None);
    good.transmit(&frame(2, 300), 4096, 0, 0, None);
    from.pass(&mut to);
    assert!(matches!(to.port.status(), Status::Disabled(why) if why.contains("grant reference 1001")));
    assert_eq!(from.port.status(), Status::Up);
}

/// A receiver's page that is missing when a frame of `len` bytes is copied to it, and back when the fault is
/// investigated: the frame is lost but no vif is disabled, however often this is done.
fn a_page_that_comes_back_costs_only_its_frame(len: usize, page: u32) {
    for machine in [Machine::default(), Machine::with_self_grants()].map(Arc::new) {
        let (mut sender, mut receiver) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
        let mut from = Backend::connected(&sender, EVERYTHING);
        let mut to = Backend::connected(&receiver, EVERYTHING);
        receiver.post_buffers(64);
        for _ in 0..3 {
            sender.transmit(&frame(1, len), 4096, 0, 0, None);
            machine.miss(2, page);
            let put = from.pass(&mut to);
            assert_eq!((put.accepted, put.refusal), (0, Some(Refusal::Never(DropReason::Malformed))));
            assert_eq!([from.port.status(), to.port.status()], [Status::Up, Status::Up]);
        }
        sender.transmit(&frame(2, len), 4096, 0, 0, None);
        assert_eq!(from.pass(&mut to).accepted, 1);
        assert_eq!(receiver.receive(), [(frame(2, len), 0, None)]);
    }
}

#[test]
fn a_grant_that_is_back_before_the_investigation() {
    a_page_that_comes_back_costs_only_its_frame(300, BUFFERS);
}

/// The body of a large frame is copied from the sender's page: that the receiver's page is back must not put the blame
/// on the sender.
#[test]
fn a_receiver_that_toggles_its_grant_blames_no_sender() {
    a_page_that_comes_back_costs_only_its_frame(6000, BUFFERS + 1);
}

/// A copy that the kernel refused without looking at any page is no guest's fault, on the way out of a ring or into
/// one.
#[test]
fn a_copy_call_that_fails_as_a_whole_blames_nobody() {
    for features in [EVERYTHING, Default::default()] {
        let machine = Arc::new(Machine::default());
        let (mut sender, mut receiver) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
        let mut from = Backend::connected(&sender, EVERYTHING);
        let mut to = Backend::connected(&receiver, features);
        receiver.post_buffers(64);
        sender.transmit(&tcp_frame(1000), 4096, 0, BLANK, None);
        machine.fail(1);
        assert!(from.take().is_empty(), "the frame could not be read");
        assert_eq!(from.port.status(), Status::Up);
        assert_eq!(from.pass(&mut to).accepted, 1, "it stayed in the ring");
        // The copy fails, and so do the trials.
        machine.fail(3);
        let put =
            to.put(&tcp_frame(1000), Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso: None });
        assert_eq!(put.refusal, Some(Refusal::Never(DropReason::Malformed)));
        machine.fail(0);
        assert_eq!([from.port.status(), to.port.status()], [Status::Up, Status::Up]);
        assert_eq!(to.put(&frame(3, 100), Offload::default()).accepted, 1);
        assert_eq!(receiver.receive().len(), 2);
    }
}

/// Frames that cannot be read are not retried all the time: the worker learns when to retry, and sleeps until then.
#[test]
fn frames_that_cannot_be_read_let_the_worker_sleep() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    guest.transmit(&frame(1, 300), 4096, 0, 0, None);
    machine.fail(3);
    let (frames, mut now) = (Wanted { frames: true, room: false }, Nanos(5));
    for _ in 0..3 {
        assert!(backend.port.waiting(now));
        assert!(backend.port.offer(&mut Burst::new(), ALL_FRAMES, now).is_empty());
        assert!(!backend.port.waiting(now) && !backend.port.enable_notifications(frames));
        let again = backend.port.next_event();
        assert!(again > now && again < now + Nanos::from_millis(10));
        now = again;
    }
    assert!(backend.port.waiting(now));
    assert_eq!(backend.port.next_event(), Nanos::NEVER);
    assert_eq!(backend.take(), [(frame(1, 300), Offload::default())]);
    assert!(!backend.port.enable_notifications(frames));
    guest.transmit(&frame(2, 300), 4096, 0, 0, None);
    assert!(backend.port.enable_notifications(frames));
}

/// A large frame's body that cannot be copied on its way to any other receiver: the frame is not delivered, is the only
/// one lost, and nobody is blamed.
#[test]
fn a_body_that_cannot_be_copied_is_not_delivered() {
    const LOST: Option<Refusal> = Some(Refusal::Never(DropReason::Malformed));
    for machine in [Machine::default(), Machine::with_self_grants()].map(Arc::new) {
        let (mut sender, mut receiver) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
        let mut from = Backend::connected(&sender, EVERYTHING);
        // Another Xen guest's frames are copied here if their offloads must be completed.
        let mut plain =
            Backend::connected(&receiver, FrontendFeatures { scatter_gather: true, ..FrontendFeatures::default() });
        receiver.post_buffers(64);
        let (mut other, peer) = memory::pair(10);
        for to in [&mut other as &mut dyn Port, &mut plain.port] {
            sender.transmit(&frame(1, 100), 4096, 0, 0, None);
            (0..3).for_each(|_| sender.transmit(&tcp_frame(5000), 4096, 0, BLANK, None));
            let mut burst = Burst::new();
            let batch = from.port.offer(&mut burst, ALL_FRAMES, Nanos(0));
            machine.fail(0);
            assert_eq!(to.put(&batch, 0..2, Nanos(0)), Put { accepted: 2, refusal: None });
            machine.fail(1);
            assert_eq!(to.put(&batch, 2..4, Nanos(0)), Put { accepted: 0, refusal: LOST });
            assert_eq!(to.put(&batch, 3..4, Nanos(0)), Put { accepted: 1, refusal: None });
            to.flush(Nanos(0));
            from.port.consume(4);
            assert_eq!(from.port.status(), Status::Up);
        }
        let delivered: Vec<Vec<u8>> = std::iter::from_fn(|| peer.receive()).map(|(bytes, _)| bytes).collect();
        assert_eq!(delivered, [frame(1, 100), tcp_frame(5000), tcp_frame(5000)]);
        let received = receiver.receive();
        assert_eq!(received.len(), 3);
        for (bytes, ..) in &received[1..] {
            assert_eq!((checksum::verify(bytes), &bytes[54..]), (Ok(true), &tcp_frame(5000)[54..]));
        }
    }
}

/// A body that its sender revokes before it is copied is not delivered either, and the sender is blamed.
#[test]
fn a_revoked_body_is_not_delivered() {
    let machine = Arc::new(Machine::default());
    let mut sender = Frontend::new(&machine, 1);
    let mut from = Backend::connected(&sender, EVERYTHING);
    let (mut to, peer) = memory::pair(10);
    sender.transmit(&frame(1, 100), 4096, 0, 0, None);
    sender.grant(PAGES + 50, 0, &frame(0, 1000));
    sender.request(PAGES + 50, 0, MORE, 3000);
    sender.request(78, 0, 0, 500);
    sender.publish();
    let mut burst = Burst::new();
    let batch = from.port.offer(&mut burst, ALL_FRAMES, Nanos(0));
    let put = to.put(&batch, 0..2, Nanos(0));
    assert_eq!((put.accepted, put.refusal), (1, Some(Refusal::Never(DropReason::Malformed))));
    from.port.consume(2);
    assert!(matches!(from.port.status(), Status::Disabled(why) if why.contains("grant reference 78")));
    assert_eq!(peer.receive().map(|(bytes, _)| bytes), Some(frame(1, 100)));
    assert!(peer.receive().is_none());
}

/// Packets that no driver sends but that break no rule are dropped and answered with an error; the vif stays up.
#[test]
fn useless_packets_are_answered_with_an_error() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    // 64 KiB and more: the size overflowed.
    guest.grant(PAGES, 0, &frame(0, 4096));
    guest.request(PAGES, 0, MORE, 100);
    guest.request(PAGES, 0, 0, 4096);
    // A blank checksum on a frame without one, and segmentation of a frame that is not TCP.
    guest.transmit(&frame(0, 100), 4096, 0, BLANK, None);
    guest.transmit(&frame(0, 100), 4096, 0, BLANK, Some((50, 1)));
    // Multicast control was not offered.
    guest.request(PAGES, 0, EXTRA, 100);
    guest.extra(2, 0, 0, 0);
    guest.transmit(&frame(3, 100), 4096, 0, 0, None);
    let taken: Vec<Vec<u8>> = backend.take().into_iter().map(|(bytes, _)| bytes).collect();
    assert_eq!(taken, [vec![], vec![], vec![], vec![], frame(3, 100)]);
    let statuses: Vec<i16> = guest.responses().iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [-1, -1, -1, -1, 1, -1, 1, 0]);
}

#[test]
fn grants_and_channels_that_a_frontend_wrote_must_exist() {
    let machine = Arc::new(Machine::default());
    let guest = Frontend::new(&machine, 1);
    let open = |setup| Link::open(machine.clone(), 1, &[setup], EVERYTHING).err().unwrap().to_string();
    assert!(open(QueueSetup { rings: [9, RX], ..guest.setup() }).contains("ring page 9 of domain 1"));
    assert!(open(QueueSetup { channels: [3, 0], ..guest.setup() }).contains("event channel 0 of domain 1"));
    guest.set_producer(1000);
    assert!(open(guest.setup()).contains("the producer index 1000"));
    assert_eq!([TX, RX].map(|ring| machine.users(1, ring)), [2, 2], "nothing stays mapped");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Rings with arbitrary contents: no panic, and received frames are within bounds.
    #[test]
    fn any_ring_is_survived(
        slots in prop::collection::vec((0..6u32, prop_oneof![0..4200u16, any::<u16>()], 0..16u16, prop_oneof![0..4200u16, any::<u16>()], any::<bool>()), 0..64),
        producer in 0..70u32,
        features in any::<bool>(),
    ) {
        let machine = Arc::new(Machine::default());
        let (mut guest, mut other) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
        other.post_buffers(256);
        (0..5).for_each(|page| guest.grant(PAGES + page, 0, &tcp_frame(3000)));
        let mut backend = Backend::connected(&guest, EVERYTHING);
        let mut to = Backend::connected(&other, if features { EVERYTHING } else { Default::default() });
        for (page, offset, flags, size, extra) in slots {
            if extra { guest.extra((page + 1) as u8 % 7, (flags & 1) as u8, size, (offset % 3) as u8) } else { guest.request(PAGES + page, offset, flags, size) }
        }
        guest.set_producer(producer);
        backend.pass(&mut to);
        for (bytes, _) in backend.take() {
            prop_assert!(bytes.len() <= 65535);
        }
        prop_assert_eq!(to.port.status(), Status::Up);
        other.receive();
    }
}
