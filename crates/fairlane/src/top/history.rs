//! The history of readings over a minute.

use fairlane_engine::reading::Reading;
use std::collections::{HashMap, VecDeque};

/// Length of a [`History`], in nanoseconds.
const MINUTE: u64 = 60_000_000_000;

/// The rate that each vif sent during the last minute.
#[derive(Default)]
pub(super) struct History {
    /// End of the last sample, nanoseconds since the backend started.
    now: u64,
    vifs: HashMap<String, VecDeque<Sample>>,
}

/// A mean rate over an interval.
struct Sample {
    from: u64,
    to: u64,
    sent: f64,
}

impl History {
    /// Adds a reading of the time since `from`. Vifs that are gone are removed.
    pub(super) fn add(&mut self, from: u64, reading: &Reading) {
        self.now = reading.time;
        let mut old = std::mem::take(&mut self.vifs);
        for vif in &reading.vifs {
            let mut samples = old.remove(&vif.seen.name).unwrap_or_default();
            samples.push_back(Sample { from, to: reading.time, sent: vif.sent_rate });
            let begin = self.now.saturating_sub(MINUTE);
            while samples.front().is_some_and(|sample| sample.to <= begin) {
                samples.pop_front();
            }
            self.vifs.insert(vif.seen.name.clone(), samples);
        }
    }

    /// The mean rates of `count` equal parts of the minute, the latest last; none for parts without samples.
    pub(super) fn means(&self, vif: &str, count: u64) -> Vec<Option<f64>> {
        let samples = self.vifs.get(vif);
        // Times are shifted by a minute, so that the first minute of a backend does not begin below zero.
        let begin = |part: u64| self.now + MINUTE * part / count;
        let mean = |part| {
            let (mut bits, mut time) = (0.0, 0.0);
            for sample in samples.into_iter().flatten() {
                let (from, to) = (sample.from + MINUTE, sample.to + MINUTE);
                let overlap = to.min(begin(part + 1)).saturating_sub(from.max(begin(part))) as f64;
                bits += sample.sent * overlap;
                time += overlap;
            }
            (time > 0.0).then(|| bits / time)
        };
        (0..count).map(mean).collect()
    }
}
