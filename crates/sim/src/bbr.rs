//! BBR, version 1, as Linux has it (draft-cardwell-iccrg-bbr-congestion-control-00, whose sections are named): window and pace follow the
//! bandwidth and the round trip that were measured, not losses. Without its estimate of policers, and without recovery's conservation of
//! segments.

use crate::rate::Sample;
use crate::window::{Answer, FIRST};
use fairlane_core::time::Nanos;

/// Gain until the pipe is full: 2 / ln 2 (4.3.2).
const HIGH: f64 = 2.885;

/// Gains of the pace once it is full, each for a round trip (4.3.4).
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

/// Segments in flight, in those that fill the path, and beyond them: three bursts of two (`bbr_quantization_budget`).
const WINDOW: f64 = 2.0;
const BURSTS: f64 = 6.0;

/// The least window (4.2.3.2).
const LEAST: f64 = 4.0;

/// Rounds of which the highest bandwidth counts (4.1.1.3), and those without a quarter more after which the pipe is full (4.3.2.2).
const ROUNDS: usize = 10;
const SAME: u32 = 3;

/// How long a shortest round trip counts, and how long the pipe is emptied to measure it anew (4.3.5).
const FRESH: Nanos = Nanos::from_millis(10_000);
const EMPTY: Nanos = Nanos::from_millis(200);

/// The lowest bandwidth, in segments a second: Linux's unit (2^-24 a microsecond, `BW_UNIT`). Where half of all is lost each round shows
/// less than the one before, and without an end to that the pace would stand still.
const LOWEST: f64 = 1e6 / (1u64 << 24) as f64;

/// The most that arrives in bursts and is added to the window, in seconds (`bbr_extra_acked_max_us`).
const AGGREGATE: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Start,
    Drain,
    /// A step of the cycle, and since when.
    Cruise(usize, Nanos),
    /// The pipe is emptied, until then once it is.
    Empty(Option<Nanos>),
}

/// The state of a sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bbr {
    phase: Phase,
    /// Segments that may fly.
    pub window: f64,
    /// The highest bandwidth of each of some rounds, in segments a second, and the last one that has any.
    rates: [(usize, f64); ROUNDS],
    last: usize,
    /// Number of rounds, and how many segments had arrived when this one began.
    round: usize,
    began: u32,
    /// Segments that arrived.
    arrived: u64,
    /// The shortest round trip, and when it was seen.
    trip: Nanos,
    seen: Nanos,
    /// The bandwidth of the last round that had a quarter more, and the rounds since.
    best: f64,
    same: u32,
    bursts: Bursts,
}

/// How many segments' answers come at once, beyond what the bandwidth explains.
#[derive(Clone, Copy, Debug)]
struct Bursts {
    /// Since when more came, and how many.
    since: Nanos,
    came: f64,
    /// The most of these rounds and of the ones before, and when these began.
    most: [f64; 2],
    began: usize,
}

impl Bbr {
    pub(crate) fn new() -> Bbr {
        Bbr {
            phase: Phase::Start,
            window: FIRST,
            rates: [(0, 0.0); ROUNDS],
            last: 0,
            round: 0,
            began: 0,
            arrived: 0,
            trip: Nanos::NEVER,
            seen: Nanos(0),
            best: 0.0,
            same: 0,
            bursts: Bursts { since: Nanos(0), came: 0.0, most: [0.0; 2], began: 0 },
        }
    }

    /// The bandwidth, in segments a second; 0 if it is not known.
    fn rate(&self) -> f64 {
        let counts = |(round, _): &&(usize, f64)| round + ROUNDS > self.last;
        self.rates.iter().filter(counts).map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    /// Segments that fill the path.
    fn fill(&self) -> f64 {
        self.rate() * self.trip.as_secs_f64()
    }

    fn is_full(&self) -> bool {
        self.same >= SAME
    }

    /// Segments a second that may be sent; none if no round trip is known.
    pub(crate) fn pace(&self) -> Option<f64> {
        if self.trip == Nanos::NEVER {
            return None;
        }
        let first = FIRST / self.trip.as_secs_f64().max(1e-6);
        let gain = match self.phase {
            Phase::Start => HIGH,
            Phase::Drain => 1.0 / HIGH,
            Phase::Cruise(step, _) => CYCLE[step],
            Phase::Empty(_) => 1.0,
        };
        Some(gain * if self.rate() > 0.0 { self.rate() } else { first })
    }

    /// An answer arrived.
    pub(crate) fn answer(&mut self, answer: &Answer) {
        let Answer { arrived, flew, trip, sample, now, .. } = *answer;
        let flies = f64::from(flew.saturating_sub(arrived));
        self.arrived += u64::from(arrived);
        let is_stale = now.since(self.seen) > FRESH && self.trip != Nanos::NEVER;
        if trip <= self.trip || is_stale {
            (self.trip, self.seen) = (trip, now);
        }
        if let Some(sample) = sample {
            self.measure(&sample);
        }
        self.bursts.answer(f64::from(arrived), self.rate(), self.window, self.round, now);
        self.advance(flies, is_stale, now);
        self.grow(f64::from(arrived));
    }

    /// A sample that took less than any round trip is none, and that of a sender with too little to send counts if it is the highest.
    fn measure(&mut self, sample: &Sample) {
        let begins = sample.before >= self.began;
        if begins {
            (self.round, self.began) = (self.round + 1, sample.before + sample.arrived);
        }
        let rate = (f64::from(sample.arrived) / sample.time.as_secs_f64().max(1e-9)).max(LOWEST);
        if sample.time >= self.trip && (!sample.is_limited || rate >= self.rate()) {
            let most = &mut self.rates[self.round % ROUNDS];
            *most = (self.round, if most.0 == self.round { most.1.max(rate) } else { rate });
            self.last = self.round;
        }
        if begins && !self.is_full() && !sample.is_limited {
            let more = self.rate() >= 1.25 * self.best;
            (self.best, self.same) = if more { (self.rate(), 0) } else { (self.best, self.same + 1) };
        }
    }

    /// Goes on to the next phase.
    fn advance(&mut self, flies: f64, is_stale: bool, now: Nanos) {
        if self.phase == Phase::Start && self.is_full() {
            self.phase = Phase::Drain;
        }
        if self.phase == Phase::Drain && flies <= self.fill() {
            self.phase = Phase::Cruise(2, now);
        }
        if let Phase::Cruise(step, since) = self.phase {
            let is_over = now.since(since) > self.trip;
            let goes_on = match step {
                0 => is_over && flies >= CYCLE[0] * self.fill(),
                1 => is_over || flies <= self.fill(),
                _ => is_over,
            };
            if goes_on {
                self.phase = Phase::Cruise((step + 1) % CYCLE.len(), now);
            }
        }
        match self.phase {
            Phase::Empty(None) if flies <= LEAST => self.phase = Phase::Empty(Some(now + EMPTY.max(self.trip))),
            Phase::Empty(Some(until)) if now >= until => {
                self.seen = now;
                self.phase = if self.is_full() { Phase::Cruise(2, now) } else { Phase::Start };
            }
            Phase::Empty(_) => {}
            _ if is_stale => self.phase = Phase::Empty(None),
            _ => {}
        }
    }

    /// Lets the window follow what fills the path.
    fn grow(&mut self, arrived: f64) {
        let gain = if self.is_full() { WINDOW } else { HIGH };
        let extra = if self.is_full() { self.bursts.extra().min(AGGREGATE * self.rate()) } else { 0.0 };
        let target = gain * self.fill() + extra + BURSTS;
        if self.is_full() {
            self.window = (self.window + arrived).min(target);
        } else if self.window < target || (self.arrived as f64) < FIRST {
            self.window += arrived;
        }
        self.window = self.window.max(LEAST);
        if matches!(self.phase, Phase::Empty(_)) {
            self.window = self.window.min(LEAST);
        }
    }

    /// Nothing was heard for a time-out.
    pub(crate) fn collapse(&mut self) {
        self.window = 1.0;
    }
}

impl Bursts {
    fn answer(&mut self, arrived: f64, rate: f64, window: f64, round: usize, now: Nanos) {
        if round >= self.began + ROUNDS / 2 {
            (self.most, self.began) = ([0.0, self.most[0]], round);
        }
        let explained = |since: Nanos| rate * now.since(since).as_secs_f64();
        if self.came <= explained(self.since) {
            (self.since, self.came) = (now, 0.0);
        }
        self.came += arrived;
        let extra = (self.came - explained(self.since)).min(window);
        self.most[0] = self.most[0].max(extra);
    }

    fn extra(&self) -> f64 {
        self.most[0].max(self.most[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{Flight, Rate};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// An answer for so many segments, of those that flew.
    fn answer(arrived: u32, flew: u32, trip: Nanos, sample: Option<Sample>, now: Nanos) -> Answer {
        Answer { arrived, flew, trip, smoothed: trip, before: 0, next: 0, sample, now }
    }

    /// A path of so many segments a second and this round trip, with a queue; returns the window and the longest queue at the end of
    /// each tenth of a second.
    fn over(speed: f64, trip: Nanos, seconds: f64) -> Vec<(f64, f64)> {
        let (mut bbr, mut rate, mut now) = (Bbr::new(), Rate::default(), Nanos(0));
        // When the path is free, and when each segment's answer arrives.
        let (mut free, mut may) = (0.0f64, 0.0f64);
        let mut flying: VecDeque<(f64, Flight)> = VecDeque::new();
        let (mut seen, mut longest) = (Vec::new(), 0.0f64);
        while now.as_secs_f64() < seconds {
            now += Nanos::from_micros(50);
            let time = now.as_secs_f64();
            while let Some((_, flight)) = flying.front().copied().filter(|(at, _)| *at <= time) {
                flying.pop_front();
                rate.arrive(Some(flight), now);
                let flew = flying.len() as u32 + 1;
                bbr.answer(&answer(1, flew, now.since(flight.sent), rate.sample(now), now));
            }
            while (flying.len() as f64) < bbr.window && may <= time {
                may = may.max(time - 1e-3) + bbr.pace().map_or(0.0, |pace| 1.0 / pace);
                free = free.max(time) + 1.0 / speed;
                longest = longest.max((free - time) * speed);
                flying.push_back((free + trip.as_secs_f64(), rate.send(flying.len() as u32, now)));
            }
            if (time * 10.0) as usize > seen.len() {
                seen.push((bbr.window, longest));
                longest = 0.0;
            }
        }
        seen
    }

    #[test]
    fn it_fills_the_path_and_keeps_the_queue_short() {
        // 200 segments fill the path.
        let seen = over(10_000.0, Nanos::from_millis(20), 5.0);
        for (window, longest) in &seen[10..] {
            assert!((380.0..460.0).contains(window), "{seen:?}");
            assert!(*longest < 120.0, "{seen:?}");
        }
    }

    #[test]
    fn it_empties_the_pipe_once_the_shortest_trip_is_old() {
        let seen = over(2_000.0, Nanos::from_millis(20), 25.0);
        let empty = seen.iter().filter(|(window, _)| *window <= LEAST).count();
        assert!((1..=8).contains(&empty), "{seen:?}");
    }

    #[test]
    fn a_path_that_loses_half_of_every_round_does_not_stop_it() {
        let (mut bbr, mut rate, mut now, trip) = (Bbr::new(), Rate::default(), Nanos(0), Nanos::from_millis(1));
        for round in 1..200 {
            let wait = bbr.pace().map_or(0.0, |pace| 2.0 / pace);
            assert!(wait < 120.0, "round {round}: {wait} s");
            let flight = rate.send(0, now);
            now = now + trip + Nanos((wait * 1e9) as u64);
            rate.arrive(Some(flight), now);
            bbr.answer(&answer(1, 2, trip, rate.sample(now), now));
        }
    }

    proptest! {
        /// Whatever is answered, window and pace are positive numbers.
        #[test]
        fn a_window_stays_a_window(answers in prop::collection::vec((0u32..50, 0u32..100, 1u64..1 << 36, 0u64..1 << 34, any::<bool>()), 1..200)) {
            let (mut bbr, mut now) = (Bbr::new(), Nanos(0));
            for (arrived, more, trip, later, is_limited) in answers {
                now += Nanos(later);
                let (trip, time) = (Nanos(trip), Nanos(later));
                let sample = Sample { before: more, arrived, time, is_limited };
                bbr.answer(&answer(arrived, arrived + more, trip, (arrived > 0).then_some(sample), now));
                prop_assert!(bbr.window >= 1.0 && bbr.window.is_finite(), "{bbr:?}");
                prop_assert!(bbr.pace().is_some_and(|pace| pace > 0.0 && pace.is_finite()), "{bbr:?}");
            }
        }
    }
}
