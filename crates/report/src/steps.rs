//! A test of whether delays come in steps of a scheduler's time slice.
//!
//! A guest that waits for a CPU which others use in slices waits for whole slices. A packet that arrives at some moment of that wait
//! is delayed for the rest of it, so the delays of all packets are spread evenly. But the delays of packets that are the [`first`] to
//! find the receiver waiting, as when each is sent after the one before has arrived, cluster at multiples of the slice. As angles on
//! a circle with the circumference of a slice, such delays have a common direction; delays of another origin do not. This is
//! Rayleigh's test with a known direction, the V test (Mardia and Jupp, "Directional Statistics", 2000, section 6.3.1).

use std::f64::consts::TAU;

use crate::stats;

/// The least strength that counts as steps. It is 1 if all delays are multiples of the slice, and still 0.41 if they are spread
/// evenly over a third of the slice on either side of each multiple.
pub const STRENGTH: f64 = 0.3;
/// The least score that counts as steps: random delays reach it with a probability of 1 in 1000.
pub const SCORE: f64 = 3.09;
/// How strongly delays cluster at multiples of a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// The share of packets that waited: their delays exceed the least delay by half a slice or more. 0 to 1.
    pub waited: f64,
    /// The mean cosine of the angles of those that waited: 1 if all are at multiples of the slice, 0 if they are spread evenly, -1 if
    /// all are half-way between multiples. 0 if none waited.
    pub strength: f64,
    /// The strength in standard deviations of that of as many random delays.
    pub score: f64,
}

impl Steps {
    /// Whether the delays have steps of this slice: they cluster, and not by chance.
    pub fn present(&self) -> bool {
        self.strength >= STRENGTH && self.score >= SCORE
    }
}

/// Measures steps of `slice` in delays, both in the same unit. The delay without waiting, taken as the 5% quantile, is subtracted
/// first. Samples that are not finite count as not measured.
///
/// `None` without samples, or if the slice is not positive and finite.
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

/// The delays of packets that were sent after all earlier ones had arrived: only the first packet of those that one absence of the
/// receiver delays. If packets follow each other closely, its delay is the length of the absence.
///
/// `sent` gives the time of sending and the delay in the same unit, in the order of sending; an earlier time than the last one starts
/// another repeat. A delay that is not finite is a lost packet.
pub fn first(sent: impl IntoIterator<Item = [f64; 2]>) -> Vec<f64> {
    let (mut last, mut all_arrived) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    let mut delays = Vec::new();
    for [at, delay] in sent {
        if at < last {
            all_arrived = f64::NEG_INFINITY;
        }
        last = at;
        if delay.is_finite() {
            if at >= all_arrived {
                delays.push(delay);
            }
            all_arrived = all_arrived.max(at + delay);
        }
    }
    delays
}

/// The step from `least` to `most` at whose multiples delays cluster best, and how strongly. Of steps that are nearly as good (half
/// of the true step is) it is the longest.
///
/// `None` if no step in the range is [`Steps::present`].
pub fn best(delays: &[f64], least: f64, most: f64) -> Option<(f64, Steps)> {
    /// Candidates from `least` to `most`.
    const CANDIDATES: u32 = 240;
    let candidate = |index: u32| least + (most - least) * f64::from(index) / f64::from(CANDIDATES);
    let found: Vec<(f64, Steps)> = (0..=CANDIDATES)
        .filter_map(|index| Some((candidate(index), steps(delays, candidate(index))?)))
        .filter(|(_, steps)| steps.present())
        .collect();
    let strongest = found.iter().map(|(_, steps)| steps.strength).fold(0.0, f64::max);
    // Takes the best candidate within a tenth of the longest good one, as its neighbours may be better.
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

    /// Delays in steps: `base`, plus `k` slices of waiting, plus or minus at most `noise` slices.
    fn stepped(slice: f64, base: f64, noise: f64) -> impl Strategy<Value = Vec<f64>> {
        let delay = (0u32..4, -noise..=noise)
            .prop_map(move |(k, off)| base + (f64::from(k) * slice + off.max(-base / slice) * slice).max(0.0));
        prop::collection::vec(delay, 150..300)
    }

    proptest! {
        /// Steps are found for any slice and base, with a noise of a tenth of a slice.
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

        /// Delays spread evenly over whole slices have no steps.
        #[test]
        fn an_even_spread_has_none(places in Just((0..300).collect::<Vec<u32>>()).prop_shuffle(), slice in 5.0..50.0f64) {
            let delays: Vec<f64> = places.iter().map(|place| f64::from(*place) / 100.0 * slice).collect();
            prop_assert!(!steps(&delays, slice).unwrap().present());
        }

        /// The receiver is absent for one or two slices at a time, and packets are sent at even intervals: all delays together have no
        /// steps, but those of the first packets have.
        #[test]
        fn absences_give_steps_in_the_first_delays_only(
            stays in prop::collection::vec((0.2..1.5f64, 1u32..3), 120..200), interval in 0.5..2.0f64,
        ) {
            let slice = 30.0;
            // Alternating times of running and absence; a packet sent during an absence arrives at its end.
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

        /// The measures stay in their ranges for any input.
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
