//! A window that follows losses: Reno (RFC 5681), or CUBIC (RFC 9438) with HyStart's delay rule, as Linux has it.

use crate::window::{Answer, FIRST};
use fairlane_core::time::Nanos;

/// The smallest window after a loss (RFC 5681, 3.1).
const SMALLEST: f64 = 2.0;

/// The window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Losses {
    /// Segments that may fly.
    pub segments: f64,
    /// The window from which on it grows slowly.
    threshold: f64,
    /// None for Reno.
    cubic: Option<Cubic>,
    rounds: Rounds,
}

impl Losses {
    /// The window of a new connection.
    pub(crate) fn new(is_cubic: bool) -> Losses {
        let cubic = is_cubic.then(Cubic::default);
        Losses { segments: FIRST, threshold: f64::INFINITY, cubic, rounds: Rounds::default() }
    }

    /// That of the next connection.
    pub(crate) fn anew(&self) -> Losses {
        Losses::new(self.cubic.is_some())
    }

    /// Nothing flew for a time-out: begins again with the first window (RFC 5681, 4.1).
    pub(crate) fn rest(&mut self) {
        self.segments = self.segments.min(FIRST);
        self.end_epoch();
    }

    /// CUBIC's curve begins anew.
    fn end_epoch(&mut self) {
        if let Some(cubic) = &mut self.cubic {
            cubic.epoch = None;
        }
    }

    /// An answer arrived.
    pub(crate) fn answer(&mut self, answer: &Answer) {
        self.measure(answer.trip, (answer.before, answer.next));
        self.grow(answer.arrived, answer.flew, answer.smoothed, answer.now);
    }

    /// A round trip was measured, by an answer before which all segments below `before` arrived; `next` is the next new one.
    fn measure(&mut self, trip: Nanos, (before, next): (u32, u32)) {
        let is_slower = self.rounds.measure(trip, (before, next));
        let starts = self.segments < self.threshold;
        if self.cubic.is_some() && starts && is_slower && self.segments >= Rounds::LEAST {
            self.threshold = self.segments;
        }
    }

    /// So many segments arrived, of `flew` that were in flight; `trip` is the smoothed round trip.
    fn grow(&mut self, arrived: u32, flew: u32, trip: Nanos, now: Nanos) {
        // Only a window that is used grows, as in Linux (`tcp_is_cwnd_limited`).
        let (arrived, flew) = (f64::from(arrived), f64::from(flew));
        if self.segments < self.threshold {
            if self.segments < 2.0 * flew {
                self.segments += arrived;
            }
        } else if flew + 1.0 > self.segments {
            self.segments += match &mut self.cubic {
                None => arrived / self.segments,
                Some(cubic) => cubic.growth(self.segments, arrived, trip, now),
            };
        } else {
            self.end_epoch();
        }
    }

    /// Segments were lost, for the first time in this round trip.
    pub(crate) fn lose(&mut self) {
        self.threshold = self.left();
        self.segments = self.threshold;
    }

    /// Nothing was heard for a time-out.
    pub(crate) fn collapse(&mut self) {
        self.threshold = self.left();
        self.segments = 1.0;
        if let Some(cubic) = &mut self.cubic {
            // The curve begins anew at the window that slow start reaches (RFC 9438, 4.8).
            cubic.most = 0.0;
        }
    }

    /// What a loss leaves of the window.
    fn left(&mut self) -> f64 {
        let part = match &mut self.cubic {
            None => 0.5,
            Some(cubic) => {
                cubic.lose(self.segments);
                Cubic::PART
            }
        };
        (self.segments * part).max(SMALLEST)
    }
}

/// The curve by which a window returns to where it was at the last loss. Names and numbers of sections are RFC 9438's.
#[derive(Clone, Copy, Debug, Default)]
struct Cubic {
    /// The window before the last loss (W_max).
    most: f64,
    epoch: Option<Epoch>,
}

/// A time without losses.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Nanos,
    /// The window at which the curve is flat, and the seconds until then (K).
    flat: f64,
    until: f64,
    /// Reno's window (W_est).
    reno: f64,
}

impl Cubic {
    /// C, in segments per cubic second, and beta (4.1, 4.6).
    const SCALE: f64 = 0.4;
    const PART: f64 = 0.7;
    /// Growth of Reno's window each round trip, so that it has Reno's mean with this beta (4.3).
    const RENO: f64 = 3.0 * (1.0 - Cubic::PART) / (1.0 + Cubic::PART);

    /// How much a window grows when so many segments arrived (4.2 to 4.5).
    fn growth(&mut self, window: f64, arrived: f64, trip: Nanos, now: Nanos) -> f64 {
        let flat = self.most.max(window);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            start: now,
            flat,
            until: ((flat - window) / Cubic::SCALE).cbrt(),
            reno: window,
        });
        let at = |time: Nanos| {
            let seconds = time.since(epoch.start).0 as f64 / 1e9;
            Cubic::SCALE * (seconds - epoch.until).powi(3) + epoch.flat
        };
        let per_trip = if epoch.reno < epoch.flat { Cubic::RENO } else { 1.0 };
        let (curve, target) = (at(now), at(now + trip).clamp(window, 1.5 * window));
        epoch.reno += per_trip * arrived / window;
        // Neither is faster than half a window each round trip.
        let reno = (epoch.reno - window).clamp(0.0, arrived / 2.0);
        if curve < epoch.reno { reno } else { (target - window) / window * arrived }
    }

    /// A loss at this window. One below the last loss's leaves room for others (4.7).
    fn lose(&mut self, window: f64) {
        let fast = if window < self.most { (1.0 + Cubic::PART) / 2.0 } else { 1.0 };
        *self = Cubic { most: window * fast, epoch: None };
    }
}

/// HyStart's delay rule (Ha and Rhee, 2011, as Linux has it): slow start ends when the shortest of a round's first trips is longer
/// than the shortest of all by an eighth, 4 to 16 ms.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    /// The number that ends this round.
    end: u32,
    /// Trips measured in it, and the shortest.
    trips: u32,
    shortest: Nanos,
    /// The shortest of all.
    least: Nanos,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds { end: 0, trips: 0, shortest: Nanos::NEVER, least: Nanos::NEVER }
    }
}

impl Rounds {
    /// The least window that it ends, in segments.
    const LEAST: f64 = 16.0;
    /// Trips of a round that count.
    const TRIPS: u32 = 8;

    /// Whether round trips have become longer.
    fn measure(&mut self, trip: Nanos, (before, next): (u32, u32)) -> bool {
        self.least = self.least.min(trip);
        if before >= self.end {
            (self.end, self.trips, self.shortest) = (next, 0, Nanos::NEVER);
        }
        if self.trips < Rounds::TRIPS {
            self.trips += 1;
            self.shortest = self.shortest.min(trip);
            return false;
        }
        let margin = Nanos(self.least.0 / 8).clamp(Nanos::from_millis(4), Nanos::from_millis(16));
        self.shortest > self.least + margin
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRIP: Nanos = Nanos::from_millis(100);

    /// The window of each round trip after a loss at so many segments, if it is always used.
    fn after_a_loss(is_cubic: bool, segments: f64, trip: Nanos, trips: u64) -> Vec<f64> {
        let mut window = Losses { segments, ..Losses::new(is_cubic) };
        window.lose();
        let mut seen = vec![window.segments];
        for round in 1..=trips {
            let now = Nanos(round * trip.0);
            (0..window.segments as u32).for_each(|_| window.grow(1, window.segments as u32, trip, now));
            seen.push(window.segments);
        }
        seen
    }

    #[test]
    fn reno_halves_and_grows_by_one() {
        let windows = after_a_loss(false, 100.0, TRIP, 50);
        assert_eq!(windows[0], 50.0);
        assert!((98.0..101.0).contains(&windows[50]), "{windows:?}");
    }

    #[test]
    fn cubic_returns_after_its_time_flattens_there_and_goes_on() {
        // K is the cubic root of 0.3 * 1000 / 0.4: 9.1 s.
        let windows = after_a_loss(true, 1000.0, TRIP, 150);
        assert_eq!(windows[0], 700.0);
        assert!((990.0..=1001.0).contains(&windows[91]), "{}", windows[91]);
        assert!(windows[20] - windows[10] > 10.0 * (windows[91] - windows[81]), "{windows:?}");
        // 0.4 * (15 s - K)³ more.
        assert!((1070.0..1090.0).contains(&windows[150]), "{}", windows[150]);
    }

    #[test]
    fn cubic_over_a_short_path_is_as_fast_as_reno_with_its_beta() {
        let windows = after_a_loss(true, 40.0, Nanos::from_millis(1), 24);
        assert!((39.0..42.0).contains(&windows[23]), "{windows:?}");
    }

    #[test]
    fn slow_start_ends_when_trips_become_longer() {
        for is_cubic in [false, true] {
            let mut window = Losses { segments: 20.0, ..Losses::new(is_cubic) };
            let mut measure = |millis| (0..=8).for_each(|_| window.measure(Nanos::from_millis(millis), (0, 30)));
            measure(2);
            assert_eq!(window.threshold, f64::INFINITY);
            let mut measure = |millis| (0..=8).for_each(|_| window.measure(Nanos::from_millis(millis), (30, 60)));
            measure(7);
            let expected = if is_cubic { 20.0 } else { f64::INFINITY };
            assert_eq!(window.threshold, expected, "{is_cubic}");
        }
    }

    proptest! {
        /// Whatever happens, a window is finite, at least a segment, and at most doubled by as many segments as it has.
        #[test]
        fn a_window_stays_a_window(events in prop::collection::vec((0u8..5, 1u32..100, 0u64..10_000_000), 1..300), reno: bool) {
            let mut window = Losses::new(!reno);
            let mut now = Nanos(0);
            for (event, count, nanos) in events {
                now += Nanos(nanos);
                let before = window.segments;
                match event {
                    0 => window.lose(),
                    1 => window.collapse(),
                    2 => window.rest(),
                    3 => window.measure(Nanos(nanos), (count, 2 * count)),
                    _ => window.grow(count, 1_000_000, Nanos(nanos), now),
                }
                prop_assert!(window.segments >= 1.0 && window.segments <= before + f64::from(count), "{before} {window:?}");
                prop_assert!(event > 2 || window.segments <= before.max(SMALLEST), "{before} {window:?}");
            }
        }
    }
}
