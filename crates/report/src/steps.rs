//! Whether delays come in steps of a scheduler's slice: judged by the data, not by eye.
//!
//! Who waits for a CPU that others use in slices waits for whole slices. A packet that comes somewhere in that time waits
//! for the rest of it, so the delays of all packets are spread evenly; those of packets that are [`first`] to find the
//! receiver away, as where each is sent when the one before has come, gather at multiples of the slice. Seen as angles of a circle that is one slice long, such delays point one way, and delays of any other origin
//! point all ways. That is Rayleigh's test with a known direction, the V test (Mardia and Jupp, "Directional Statistics",
//! 2000, section 6.3.1).

use std::f64::consts::TAU;

use crate::stats;

/// The least strength that counts as steps. All delays at multiples have 1; delays spread evenly about each multiple
/// over a third of the slice either side still have 0.41.
pub const STRENGTH: f64 = 0.3;
/// The least score: chance alone reaches it once in a thousand.
pub const SCORE: f64 = 3.09;
/// How far delays gather at multiples of a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// The share of delays that exceed the least delay by half a slice or more: those that waited. 0 to 1.
    pub waited: f64,
    /// The mean cosine of the angles of those that waited: 1 if all are at multiples of the slice, 0 if they are spread
    /// evenly, -1 if all are half-way between. 0 if none waited.
    pub strength: f64,
    /// The strength in standard deviations of what chance makes of as many delays.
    pub score: f64,
}

impl Steps {
    /// Whether steps of this slice are there: those that waited gather, and not by chance.
    pub fn present(&self) -> bool {
        self.strength >= STRENGTH && self.score >= SCORE
    }
}

/// Measures steps of `slice` in delays of the same unit. What a delay has without waiting, the 5% quantile, is taken off
/// first. Samples that are not finite count as not measured.
///
/// `None` without samples, or where the slice is no length.
pub fn steps(delays: &[f64], slice: f64) -> Option<Steps> {
    if !(slice.is_finite() && slice > 0.0) {
        return None;
    }
    let base = stats::quantile(delays, 0.05)?;
    let slices: Vec<f64> =
        delays.iter().map(|delay| (delay - base) / slice).filter(|slices| slices.is_finite()).collect();
    let cosines: Vec<f64> = slices.iter().filter(|slices| **slices >= 0.5).map(|slices| (slices * TAU).cos()).collect();
    let strength = stats::mean(&cosines).unwrap_or(0.0);
    let waited = cosines.len() as f64;
    Some(Steps { waited: waited / slices.len().max(1) as f64, strength, score: strength * (2.0 * waited).sqrt() })
}

/// The delays of packets that were sent after all before them had come: of those that one absence of the receiver holds
/// up, the first alone. Where packets follow each other closely, its delay is the absence's length.
///
/// `sent` gives time of sending and delay in one unit, in the order of sending; a time before the last one begins anew. A
/// delay that is not finite is a packet that never came.
pub fn first(sent: impl IntoIterator<Item = [f64; 2]>) -> Vec<f64> {
    let (mut last, mut all_came) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    let mut delays = Vec::new();
    for [at, delay] in sent {
        if at < last {
            all_came = f64::NEG_INFINITY;
        }
        last = at;
        if delay.is_finite() {
            if at >= all_came {
                delays.push(delay);
            }
            all_came = all_came.max(at + delay);
        }
    }
    delays
}

/// The step that delays gather at best, of those from `least` to `most`, and how well. Of steps that do nearly as well (a
/// half of the right one does) the longest is it.
///
/// `None` where no step between the two is [`Steps::present`].
pub fn best(delays: &[f64], least: f64, most: f64) -> Option<(f64, Steps)> {
    /// Candidates from `least` to `most`.
    const CANDIDATES: u32 = 240;
    let candidate = |index: u32| least + (most - least) * f64::from(index) / f64::from(CANDIDATES);
    let found: Vec<(f64, Steps)> = (0..=CANDIDATES)
        .filter_map(|index| Some((candidate(index), steps(delays, candidate(index))?)))
        .filter(|(_, steps)| steps.present())
        .collect();
    let strongest = found.iter().map(|(_, steps)| steps.strength).fold(0.0, f64::max);
    // Neighbours of the longest good candidate may be better: the best within a tenth of it.
    let (longest, _) = *found.iter().rev().find(|(_, steps)| steps.strength >= 0.9 * strongest)?;
    found
        .into_iter()
        .filter(|(step, _)| *step >= 0.9 * longest)
        .max_by(|(_, a), (_, b)| a.strength.total_cmp(&b.strength))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Delays in steps: a way of `base`, `k` slices of waiting, and noise of at most `noise` slices either side.
    fn stepped(slice: f64, base: f64, noise: f64) -> impl Strategy<Value = Vec<f64>> {
        let delay = (0u32..4, -noise..=noise)
            .prop_map(move |(k, off)| base + (f64::from(k) * slice + off.max(-base / slice) * slice).max(0.0));
        prop::collection::vec(delay, 150..300)
    }

    proptest! {
        /// Delays that gather at multiples are found, whatever the slice, the way and a noise of a tenth.
        #[test]
        fn steps_are_found(delays in (5.0..50.0f64, 0.0..5.0f64).prop_flat_map(|(slice, base)| {
            stepped(slice, base, 0.1).prop_map(move |delays| (slice, delays))
        })) {
            let (slice, delays) = delays;
            let found = steps(&delays, slice).unwrap();
            prop_assert!(found.present(), "{found:?}");
            let (step, _) = best(&delays, slice / 2.2, slice * 1.8).expect("a step");
            prop_assert!((step / slice - 1.0).abs() < 0.1, "{step} for {slice}");
        }

        /// Delays spread evenly over whole slices have no steps: what is found stays within chance.
        #[test]
        fn an_even_spread_has_none(places in Just((0..300).collect::<Vec<u32>>()).prop_shuffle(), slice in 5.0..50.0f64) {
            let delays: Vec<f64> = places.iter().map(|place| f64::from(*place) / 100.0 * slice).collect();
            prop_assert!(!steps(&delays, slice).unwrap().present());
        }

        /// A receiver that is away for one or two slices at a time, and packets at even intervals: of all delays there is no
        /// step to be seen, of the first ones there is.
        #[test]
        fn absences_are_seen_in_the_first_that_met_them(
            stays in prop::collection::vec((0.2..1.5f64, 1u32..3), 120..200), interval in 0.5..2.0f64,
        ) {
            let slice = 30.0;
            // Turns of running and being away, each a length; a packet that meets an absence comes at its end.
            let mut ends = Vec::new();
            let mut at = 0.0;
            for (run, away) in stays {
                let from = at + run * slice;
                at = from + f64::from(away) * slice;
                ends.push((from, at));
            }
            let delay = |sent: f64| {
                let absence = ends.iter().find(|(_, end)| *end > sent).filter(|(from, _)| *from <= sent);
                absence.map_or(0.1, |(_, end)| end - sent)
            };
            let packets = (0..(at / interval) as u32).map(|k| f64::from(k) * interval);
            let sent: Vec<[f64; 2]> = packets.map(|sent| [sent, delay(sent)]).collect();
            let all: Vec<f64> = sent.iter().map(|point| point[1]).collect();
            prop_assert!(!steps(&all, slice).unwrap().present());
            let (step, _) = best(&first(sent), 10.0, 50.0).expect("a step");
            prop_assert!((step - slice).abs() < 3.0, "{step}");
        }

        /// Neither the unit nor the order matters, and whatever is put in, the measures stay in their ranges.
        #[test]
        fn measures_stay_in_range(delays in prop::collection::vec(any::<f64>(), 0..50), slice in any::<f64>()) {
            if let Some(found) = steps(&delays, slice) {
                prop_assert!((0.0..=1.0).contains(&found.waited) && found.strength.abs() <= 1.0);
            }
        }
    }

    #[test]
    fn without_waiting_there_are_no_steps() {
        let quick: Vec<f64> = (0..1000).map(|i| f64::from(i % 17) * 0.1).collect();
        let found = steps(&quick, 30.0).unwrap();
        assert_eq!((found.waited, found.present()), (0.0, false));
        assert_eq!(best(&quick, 10.0, 60.0), None);
        assert_eq!((steps(&[], 30.0), steps(&[1.0], 0.0)), (None, None));
    }
}
