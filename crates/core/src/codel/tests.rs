use super::*;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::VecDeque;
use std::ops::Range;

#[derive(Clone, Copy)]
struct Frame {
    id: u32,
    stamp: u64,
    len: u64,
}

/// A queue with its bytes counted.
#[derive(Clone, Default)]
struct Queue {
    frames: VecDeque<Frame>,
    bytes: u64,
}

impl Queue {
    fn push(&mut self, frame: Frame) {
        self.bytes += frame.len;
        self.frames.push_back(frame);
    }

    fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len;
        Some(frame)
    }
}

/// RFC 8289, section 5, as it stands there: it owns the queue, drops, and counts time in floating point, times being
/// whole nanoseconds as `time_t` is whole.
#[derive(Default)]
struct Rfc {
    queue: Queue,
    first_above_time: f64,
    drop_next: f64,
    count: u32,
    lastcount: u32,
    dropping: bool,
}

impl Rfc {
    const TARGET: f64 = 5e6;
    const INTERVAL: f64 = 100e6;
    const MAXPACKET: u64 = 1514;

    fn control_law(t: f64, count: u32) -> f64 {
        t + (Rfc::INTERVAL / f64::from(count).sqrt()).floor()
    }

    fn dodequeue(&mut self, now: f64) -> (Option<Frame>, bool) {
        let Some(frame) = self.queue.pop() else {
            self.first_above_time = 0.0;
            return (None, false);
        };
        let mut ok_to_drop = false;
        let sojourn_time = now - frame.stamp as f64;
        if sojourn_time < Rfc::TARGET || self.queue.bytes <= Rfc::MAXPACKET {
            self.first_above_time = 0.0;
        } else if self.first_above_time == 0.0 {
            self.first_above_time = now + Rfc::INTERVAL;
        } else if now >= self.first_above_time {
            ok_to_drop = true;
        }
        (Some(frame), ok_to_drop)
    }

    fn deque(&mut self, now: f64) -> Option<u32> {
        let (mut frame, mut ok_to_drop) = self.dodequeue(now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                self.count += 1;
                (frame, ok_to_drop) = self.dodequeue(now);
                if !ok_to_drop {
                    self.dropping = false;
                } else {
                    self.drop_next = Rfc::control_law(self.drop_next, self.count);
                }
            }
        } else if ok_to_drop {
            (frame, _) = self.dodequeue(now);
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && now - self.drop_next < 16.0 * Rfc::INTERVAL {
                self.count = delta;
            }
            self.drop_next = Rfc::control_law(now, self.count);
            self.lastcount = self.count;
        }
        frame.map(|frame| frame.id)
    }
}

/// A queue whose owner drops what is congested.
#[derive(Default)]
struct Ours {
    queue: Queue,
    codel: Codel,
}

impl Ours {
    fn deque(&mut self, now: u64) -> Option<u32> {
        while let Some(frame) = self.queue.pop() {
            if self.codel.dequeue(Nanos(now - frame.stamp), self.queue.bytes, Nanos(now)) == Verdict::Pass {
                return Some(frame.id);
            }
        }
        None
    }
}

/// For a while frames arrive and are served, each in random gaps around a mean, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Phase {
    arrival: u64,
    service: u64,
    millis: u64,
    len: u64,
}

fn phase() -> impl Strategy<Value = Phase> {
    let len = prop_oneof![Just(60u64), Just(1514), 60u64..1514, 1515u64..65_000];
    (100u64..3_000, 100u64..3_000, 1u64..1_500, len).prop_map(|(arrival, service, millis, len)| Phase {
        arrival,
        service,
        millis,
        len,
    })
}

proptest! {
    /// The same frames pass as of the RFC's queue, however they arrive and are served.
    #[test]
    fn as_the_rfc(phases in prop::collection::vec(phase(), 1..10), seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut ours, mut rfc) = (Ours::default(), Rfc::default());
        let (mut now, mut next) = (1_000_000, 0);
        for phase in phases {
            let end = now + phase.millis * 1_000_000;
            let mut gap = |mean: u64| random.random_range(1..2_000 * mean);
            let (mut arrival, mut service) = (now + gap(phase.arrival), now + gap(phase.service));
            while now < end {
                now = arrival.min(service);
                if arrival < service {
                    let frame = Frame { id: next, stamp: now, len: phase.len };
                    ours.queue.push(frame);
                    rfc.queue.push(frame);
                    next += 1;
                    arrival += gap(phase.arrival);
                } else {
                    prop_assert_eq!(ours.deque(now), rfc.deque(now as f64), "at {} ns", now);
                    service += gap(phase.service);
                }
            }
        }
    }

    /// The clock never goes back nor faster than time, and a stamp is never later than what it shows next.
    #[test]
    fn the_clock_runs_a_gap_at_most(gaps in prop::collection::vec((0u64..3_000_000, 0u64..40_000_000), 1..50)) {
        let mut running = Running::default();
        let (mut real, mut shown) = (0, running.advance(Nanos(0)));
        for (before, after) in gaps {
            let stamp = running.at(Nanos(real + before));
            real += before + after;
            let next = running.advance(Nanos(real));
            prop_assert_eq!(next.since(shown).0, (before + after).min(1_000_000));
            prop_assert_eq!(stamp.since(shown).0, before.min(1_000_000));
            prop_assert!(stamp <= next);
            shown = next;
        }
    }
}

#[test]
fn the_control_law_is_exact() {
    for count in (1..20_000).chain([1 << 20, 1 << 24, u32::MAX - 1, u32::MAX]) {
        let Nanos(step) = control_law(Nanos(0), count);
        let square = |n: u64| u128::from(n).pow(2) * u128::from(count);
        let interval = u128::from(INTERVAL.0).pow(2);
        assert!(square(step) <= interval && interval < square(step + 1), "{step} ns for {count}");
    }
}

/// Asks every 0.1 ms for a frame that waited `sojourn` ms with plenty behind: when it was congested, all in 0.1 ms.
fn congested(codel: &mut Codel, sojourn: u64, when: Range<u64>) -> Vec<u64> {
    let mut ask = |tenth: u64| codel.dequeue(Nanos::from_millis(sojourn), 100_000, Nanos::from_micros(100 * tenth));
    when.filter(|tenth| ask(*tenth) == Verdict::Congested).collect()
}

#[test]
fn senders_are_told_after_an_interval_and_then_more_and_more_often() {
    let mut codel = Codel::default();
    // From 1 ms on, at 101 ms and then by 100 ms / sqrt(1), sqrt(2), sqrt(3) ...
    assert_eq!(congested(&mut codel, 5, 10..4500), [1010, 2010, 2718, 3295, 3795, 4242]);
    assert_eq!(congested(&mut codel, 4, 4500..4510), []);
    assert_eq!(congested(&mut codel, 5, 4510..5510), [], "it begins with an interval again");
    // Five were told after the first: it is taken up there, at 100 ms / sqrt(5).
    assert_eq!(congested(&mut codel, 5, 5510..6500), [5510, 5958, 6366]);
}

#[test]
fn it_is_taken_up_where_it_was_if_more_than_one_was_told_after_the_first() {
    // 100 ms / sqrt(1), and 100 ms / sqrt(2).
    for (until, told, second) in [(1500, 1, 1_000), (2500, 2, 1_000), (3000, 3, 708)] {
        let mut codel = Codel::default();
        assert_eq!(congested(&mut codel, 5, 10..until).len(), told);
        assert_eq!(congested(&mut codel, 4, until..until + 10), []);
        assert_eq!(congested(&mut codel, 5, 4_000..6_001), [5_000, 5_000 + second][..], "after {told}");
    }
}

/// For 16 intervals from when the next sender was due, the count is taken up. After one is told, the next is due only once
/// another frame has waited too long (RFC 8289, 5.5).
#[test]
fn what_it_took_long_ago_says_nothing() {
    let (resumed, anew) = (448, 1_000);
    for (above, again, second) in [
        // Due at 465.0 ms, a step behind the sixth's 424.2 ms.
        (10..4500, 20_649, resumed),
        (10..4500, 20_650, anew),
        // The frame behind the sixth waited less: what was due is the sixth itself.
        (10..4243, 20_241, resumed),
        (10..4243, 20_242, anew),
    ] {
        let mut codel = Codel::default();
        let below = above.end..above.end + 1;
        assert_eq!(congested(&mut codel, 5, above).len(), 6);
        assert_eq!(congested(&mut codel, 4, below), []);
        let told = congested(&mut codel, 5, again - 1_000..again + 2_000);
        assert_eq!((told[0], told[1] - told[0]), (again, second));
    }
}

#[test]
fn who_has_no_frame_behind_it_never_waits_too_long() {
    let mut codel = Codel::default();
    for tenth in 0..50_000 {
        let verdict = codel.dequeue(Nanos::from_millis(500), MTU, Nanos::from_micros(tenth * 100));
        assert_eq!(verdict, Verdict::Pass, "at {tenth}");
    }
}

/// In what simulated queues count time: a full frame takes it on 121 Mbit/s.
const TICK: u64 = 100_000;

/// Four connections of a round trip of 20 ms send into a queue that passes a frame a tick, together at twice its rate at
/// first. A mark halves its sender's window, once a round trip (RFC 3168, 6.1.2); each other frame adds its part of one.
#[test]
fn senders_who_heed_marks_leave_a_delay_near_the_target() {
    const ROUND_TRIP: usize = 200;
    let mut windows = [2.0 * ROUND_TRIP as f64 / 4.0; 4];
    let (mut flight, mut heeded) = ([0; 4], [0; 4]);
    // What is acknowledged, a place a tick: the sender, and whether its frame was marked.
    let mut acks: VecDeque<Option<(usize, bool)>> = VecDeque::from([None; ROUND_TRIP]);
    let mut ours = Ours::default();
    let mut waits = Vec::new();
    for tick in 1..400_000u64 {
        if let Some((sender, marked)) = acks.pop_front().flatten() {
            flight[sender] -= 1;
            if !marked {
                windows[sender] += 1.0 / windows[sender];
            } else if tick > heeded[sender] + ROUND_TRIP as u64 {
                (windows[sender], heeded[sender]) = (windows[sender] / 2.0, tick);
            }
        }
        for (sender, window) in windows.iter().enumerate() {
            if f64::from(flight[sender] + 1) <= *window {
                flight[sender] += 1;
                ours.queue.push(Frame { id: sender as u32, stamp: tick * TICK, len: 1514 });
            }
        }
        acks.push_back(ours.queue.pop().map(|frame| {
            let wait = tick * TICK - frame.stamp;
            waits.push(wait);
            let verdict = ours.codel.dequeue(Nanos(wait), ours.queue.bytes, Nanos(tick * TICK));
            (frame.id as usize, verdict == Verdict::Congested)
        }));
    }
    let first = *waits[..2_000].iter().max().unwrap();
    assert!(first > TARGET.0 * 4, "{first} ns are waited at first");
    let settled = &waits[200_000..];
    assert!(waits.len() > 399_000, "the queue is seldom empty: {} frames", waits.len());
    let mean = settled.iter().sum::<u64>() / settled.len() as u64;
    assert!((TARGET.0 / 2..TARGET.0 * 2).contains(&mean), "{mean} ns are waited in the mean");
    let most = *settled.iter().max().unwrap();
    assert!(most < TARGET.0 * 4, "{most} ns are waited at most");
}

/// A guest that is away and running in turn, in ticks.
#[derive(Clone, Copy)]
struct Guest {
    away: u64,
    run: u64,
    /// Frames it takes in a tick while it runs.
    takes: u64,
    /// Frames that come for it in a second.
    arrive: u64,
    /// Frames that wait at first.
    queued: u64,
}

impl Guest {
    /// Frames that are congested in a minute: by the clock that runs while it takes frames, and by the wall clock.
    fn congested(self) -> (usize, usize) {
        let (mut running, mut by_running, mut by_wall) = (Running::default(), Codel::default(), Codel::default());
        let mut queue: VecDeque<(Nanos, Nanos)> = VecDeque::new();
        let (mut told, mut told_by_wall, mut due) = (0, 0, self.queued * 1_000_000_000);
        for tick in 1..600_000u64 {
            let wall = Nanos(tick * TICK);
            due += self.arrive * TICK;
            while due >= 1_000_000_000 {
                due -= 1_000_000_000;
                queue.push_back((running.at(wall), wall));
            }
            if tick % (self.away + self.run) < self.away || queue.is_empty() {
                continue;
            }
            let now = running.advance(wall);
            for _ in 0..self.takes {
                let Some((stamp, came)) = queue.pop_front() else { break };
                let behind = queue.len() as u64 * 200;
                told += usize::from(by_running.dequeue(now - stamp, behind, now) == Verdict::Congested);
                told_by_wall += usize::from(by_wall.dequeue(wall - came, behind, wall) == Verdict::Congested);
            }
        }
        (told, told_by_wall)
    }
}

/// Away for 60 ms of each 90, as under Xen's credit scheduler with two others.
const SLICES: Guest = Guest { away: 600, run: 300, takes: 20, arrive: 20_000, queued: 0 };

#[test]
fn a_guest_off_its_cpu_is_no_congestion() {
    assert_eq!(SLICES.congested().0, 0, "1,200 frames gather and are taken in 7 ms");
    // In 2 ms of each 62 it takes what came in as many, and as much waits behind: nobody waits less than 60 ms.
    let brief = Guest { away: 600, run: 20, takes: 62, arrive: 20_000, queued: 1_240 };
    let (told, told_by_wall) = brief.congested();
    assert_eq!(told, 0);
    assert!(told_by_wall > 100, "{told_by_wall}: a wall clock takes it for congestion");
}

#[test]
fn a_guest_that_is_too_slow_while_it_runs_is_congested() {
    // It takes 66,667 frames a second and 70,000 come.
    let (told, _) = Guest { arrive: 70_000, ..SLICES }.congested();
    assert!(told > 100, "{told}");
}
