use super::*;
use crate::BURST;
use fairlane_core::packet::{Checksum, Offload};
use proptest::prelude::*;
use std::collections::VecDeque;

const ALL: Budget = Budget { bytes: u64::MAX, frames: BURST as u32 };

fn options(rate: Option<u64>, delay: u64, queue: u64, backpressure: bool) -> Options {
    Options { rate, delay: Nanos(delay), queue, backpressure }
}

/// The n-th frame of a test: its bytes and its offload encode its number.
fn numbered(number: u64, size: usize) -> (Vec<u8>, Offload) {
    let mut bytes = number.to_le_bytes().repeat(size.div_ceil(8));
    bytes.truncate(size);
    let checksum = Checksum::Partial { start: number as u16, offset: 6 };
    (bytes, Offload { checksum, gso: None })
}

fn put(end: &mut End, burst: &mut Burst, frames: &[(Vec<u8>, Offload)], now: Nanos) -> Put {
    let mut filler = burst.fill();
    for (frame, offload) in frames {
        assert!(filler.push(frame, *offload));
    }
    let batch = filler.done();
    let put = end.put(&batch, 0..frames.len(), now);
    end.flush(now);
    put
}

fn receive(end: &mut End, burst: &mut Burst, budget: Budget, now: Nanos) -> Vec<(Vec<u8>, Offload)> {
    let batch = end.offer(burst, budget, now);
    let frames: Vec<_> = batch
        .frames()
        .map(|frame| {
            let mut bytes = Vec::new();
            frame.read(&mut bytes);
            (bytes, frame.offload())
        })
        .collect();
    end.consume(frames.len());
    end.flush(now);
    frames
}

/// Sizes of all kinds: tiny, ordinary, to be segmented.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1..100usize, 100..1515usize, 1515..=FRAME as usize]
}

fn steps() -> impl Strategy<Value = Vec<(u64, Vec<usize>, u32)>> {
    let step = (0..2_000_000u64, prop::collection::vec(size(), 0..BURST), 0..=BURST as u32);
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// With any times of putting and taking: accepted frames arrive, once, in order, unchanged, at the exact time.
    #[test]
    fn accepted_frames_arrive_in_order_on_time(
        steps in steps(), rate in prop_oneof![Just(None), (1_000_000..40_000_000_000u64).prop_map(Some)],
        delay in 0..5_000_000u64, queue in 0..500_000u64, backpressure: bool,
    ) {
        let (mut left, mut right) = pair(options(rate, delay, queue, backpressure)).unwrap();
        let mut burst = Burst::new();
        let mut on_the_way = VecDeque::new();
        let (mut now, mut number) = (Nanos(0), 0);
        // The exact time at which the link is free, in 1/rate nanoseconds.
        let mut free = 0u128;
        for (pause, sizes, taken) in steps {
            now += Nanos(pause);
            let frames: Vec<_> = sizes.iter().enumerate().map(|(at, size)| numbered(number + at as u64, *size)).collect();
            let put = put(&mut left, &mut burst, &frames, now);
            prop_assert_eq!(put.accepted < frames.len(), put.refusal.is_some());
            prop_assert!(put.refusal.is_none_or(|refusal| (refusal == Refusal::Full) == backpressure));
            for frame in frames.into_iter().take(put.accepted) {
                let finish = rate.map_or(u128::from(now.0), |rate| {
                    free = free.max(u128::from(now.0) * u128::from(rate)) + frame.0.len() as u128 * 8_000_000_000;
                    free / u128::from(rate)
                });
                on_the_way.push_back((Nanos(finish as u64 + delay), frame));
                number += 1;
            }
            if let Some((arrival, _)) = on_the_way.front() {
                prop_assert_eq!(right.waiting(now), *arrival <= now);
                if *arrival > now {
                    prop_assert_eq!(right.next_event(), *arrival);
                }
            }
            for frame in receive(&mut right, &mut burst, Budget { frames: taken, ..ALL }, now) {
                let (arrival, expected) = on_the_way.pop_front().unwrap();
                prop_assert!(arrival <= now);
                prop_assert_eq!(frame, expected);
            }
        }
        while let Some((arrival, expected)) = on_the_way.pop_front() {
            if arrival > now {
                prop_assert!(receive(&mut right, &mut burst, ALL, Nanos(arrival.0 - 1)).is_empty());
                now = arrival;
            }
            prop_assert_eq!(receive(&mut right, &mut burst, Budget { frames: 1, ..ALL }, now), vec![expected]);
        }
        prop_assert!(receive(&mut right, &mut burst, ALL, Nanos(u64::MAX - 1)).is_empty());
    }

    /// A sender that resumes when it is told keeps the link busy: every second carries the rate, to within a frame.
    #[test]
    fn the_rate_is_never_exceeded_and_fully_used(
        rate in 1_000_000..100_000_000u64, delay in 0..50_000_000u64, queue in 3_100..100_000u64,
        sizes in prop::collection::vec(60..1515usize, BURST),
    ) {
        let (mut left, mut right) = pair(options(Some(rate), delay, queue, true)).unwrap();
        let mut burst = Burst::new();
        let frames: Vec<_> = sizes.iter().map(|size| numbered(0, *size)).collect();
        let (mut now, mut room) = (Nanos(0), Nanos(0));
        let mut seconds = [0; 2];
        while now.0 < delay + 2 * SECOND {
            if now >= room {
                while put(&mut left, &mut burst, &frames, now).refusal.is_none() {}
                let Room::At(time) = left.room(now) else { return Err(TestCaseError::fail("full, yet room")) };
                room = time;
            }
            for (frame, _) in receive(&mut right, &mut burst, ALL, now) {
                if now.0 >= delay {
                    seconds[((now.0 - delay) / SECOND) as usize] += frame.len() as u64;
                }
            }
            now = room.min(if right.waiting(now) { now } else { right.next_event() });
        }
        for bytes in seconds {
            prop_assert!(bytes.abs_diff(rate / 8) <= 1515, "{bytes} in a second of {}", rate / 8);
        }
        prop_assert!(seconds.iter().sum::<u64>() <= 2 * rate / 8);
    }

    /// Without backpressure exactly those frames are dropped that the queue has no room for.
    #[test]
    fn a_full_queue_drops_the_tail(
        steps in prop::collection::vec((0..3_000u64, prop::collection::vec(1..3_000usize, 1..BURST)), 1..100),
        queue in 0..20_000u64,
    ) {
        // A byte takes a nanosecond, so that the reference is exact.
        let (mut left, mut right) = pair(options(Some(8 * SECOND), 0, queue, false)).unwrap();
        let mut burst = Burst::new();
        let (mut now, mut backlog) = (0u64, 0u64);
        for (pause, sizes) in steps {
            now += pause;
            backlog = backlog.saturating_sub(pause);
            for size in sizes {
                let fits = backlog == 0 || backlog + size as u64 <= queue;
                backlog += if fits { size as u64 } else { 0 };
                let put = put(&mut left, &mut burst, &[numbered(0, size)], Nanos(now));
                let dropped = Put { accepted: 0, refusal: Some(Refusal::Never(DropReason::UplinkFull)) };
                prop_assert_eq!(put, if fits { Put { accepted: 1, refusal: None } } else { dropped });
            }
            receive(&mut right, &mut burst, ALL, Nanos(now));
        }
    }
}

#[test]
fn an_impossible_wire_is_refused() {
    let error = |options| pair(options).err().expect("refused").to_string();
    assert!(error(options(Some(0), 0, 1, true)).contains("0 bit/s"));
    assert!(error(options(Some(u64::MAX), u64::MAX, 1, true)).contains("rate * delay"));
    assert!(error(options(None, 0, u64::MAX, true)).contains("queue"));
}

#[test]
fn a_receiver_that_does_not_consume_fills_the_wire_and_consuming_wakes_the_sender() {
    let (mut left, mut right) = pair(options(None, 0, 100_000, true)).unwrap();
    let (mut burst, poller, mut ready) = (Burst::new(), Poller::new().unwrap(), Vec::new());
    left.register(&poller, Key(3)).unwrap();
    let frames = [numbered(0, 60_000)];
    let accepted = (0..).take_while(|_| put(&mut left, &mut burst, &frames, Nanos(0)).accepted == 1).count();
    assert!((10..20).contains(&accepted), "{accepted} frames of 60000 bytes");
    assert_eq!(left.room(Nanos(0)), Room::Unknown);
    assert!(!left.enable_notifications(Wanted { frames: true, room: true }));

    let mut taken = 0;
    while ready.is_empty() {
        assert_eq!(receive(&mut right, &mut burst, Budget { frames: 1, ..ALL }, Nanos(0)).len(), 1);
        taken += 1;
        poller.wait(Nanos(0), &mut ready).unwrap();
    }
    assert!(taken > accepted / 3, "woken after {taken} of {accepted}: not for each frame");
    assert_eq!(ready, [(Key(3), 0)]);
    left.event(0, &poller, Nanos(0));
    left.disable_notifications();
    assert_eq!(left.room(Nanos(0)), Room::Now);
    assert_eq!(put(&mut left, &mut burst, &frames, Nanos(0)).accepted, 1);
}

#[test]
fn only_a_sleeping_end_is_woken_and_only_by_the_first_frame() {
    let (mut left, mut right) = pair(options(Some(SECOND), 1_000, 10_000, true)).unwrap();
    let (mut burst, poller, mut ready) = (Burst::new(), Poller::new().unwrap(), Vec::new());
    right.register(&poller, Key(0)).unwrap();
    let mut woken = |right: &mut End| {
        poller.wait(Nanos(0), &mut ready).unwrap();
        ready.iter().for_each(|(_, number)| right.event(*number, &poller, Nanos(0)));
        !ready.is_empty()
    };
    let frames = [numbered(0, 100)];
    put(&mut left, &mut burst, &frames, Nanos(0));
    assert!(!woken(&mut right), "it does not sleep");
    assert!(!right.enable_notifications(Wanted { frames: true, room: false }), "nothing arrived");
    assert_eq!(right.next_event(), Nanos(1_800));
    put(&mut left, &mut burst, &frames, Nanos(0));
    assert!(!woken(&mut right), "it knows when the first arrives");
    assert_eq!(receive(&mut right, &mut burst, ALL, Nanos(10_000)).len(), 2);
    assert!(!right.enable_notifications(Wanted { frames: true, room: false }));
    put(&mut left, &mut burst, &frames, Nanos(10_000));
    assert!(woken(&mut right));
    assert!(right.enable_notifications(Wanted { frames: true, room: false }) == right.waiting(Nanos(10_000)));
    assert!(right.waiting(Nanos(20_000)) && right.enable_notifications(Wanted { frames: true, room: false }));
}

#[test]
fn an_end_without_its_peer_is_waiting() {
    let (left, right) = pair(options(None, 0, 1, true)).unwrap();
    assert_eq!(left.status(), Status::Up);
    drop(right);
    assert_eq!(left.status(), Status::Waiting);
}

#[test]
fn a_frame_that_is_too_large_is_never_accepted() {
    let (mut left, _right) = pair(options(None, 0, 1, true)).unwrap();
    let put = put(&mut left, &mut Burst::new(), &[numbered(0, 65_551)], Nanos(0));
    assert_eq!(put, Put { accepted: 0, refusal: Some(Refusal::Never(DropReason::TooLarge)) });
}

/// Two threads that sleep whenever they can: no frame is lost or changed, and neither thread sleeps for ever.
#[test]
fn ends_on_two_threads_lose_nothing() {
    const FRAMES: u64 = 20_000;
    let (mut left, mut right) = pair(options(None, 0, 20_000, true)).unwrap();
    let size = |number: u64| 1 + (number * 7919 % 3000) as usize;
    let sender = std::thread::spawn(move || {
        let (mut burst, poller, mut ready) = (Burst::new(), Poller::new().unwrap(), Vec::new());
        left.register(&poller, Key(0)).unwrap();
        let mut number = 0;
        while number < FRAMES {
            let frames: Vec<_> =
                (number..FRAMES.min(number + 20)).map(|number| numbered(number, size(number))).collect();
            let put = put(&mut left, &mut burst, &frames, Nanos(0));
            number += put.accepted as u64;
            if put.refusal.is_some() {
                if !left.enable_notifications(Wanted { frames: false, room: true }) {
                    poller.wait(Nanos::NEVER, &mut ready).unwrap();
                    left.event(0, &poller, Nanos(0));
                }
                left.disable_notifications();
            }
        }
        left
    });
    let (mut burst, poller, mut ready) = (Burst::new(), Poller::new().unwrap(), Vec::new());
    right.register(&poller, Key(0)).unwrap();
    let mut number = 0;
    while number < FRAMES {
        let frames = receive(&mut right, &mut burst, ALL, Nanos(0));
        if frames.is_empty() {
            if !right.enable_notifications(Wanted { frames: true, room: false }) {
                poller.wait(Nanos::NEVER, &mut ready).unwrap();
                right.event(0, &poller, Nanos(0));
            }
            right.disable_notifications();
        }
        for frame in frames {
            assert_eq!(frame, numbered(number, size(number)));
            number += 1;
        }
    }
    sender.join().unwrap();
}
