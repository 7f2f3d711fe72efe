//! Two clocks told apart: what the receiver's shows when the sender's shows a given time.
//!
//! Of exchanges (asked, answered with the receiver's time, back) the quickest says most: the receiver read its clock
//! at some moment in between, so the middle is wrong by half the round trip at most (Cristian 1989). Between an offset
//! before and one after, clocks that run at constant rates differ linearly, and so do the errors.

/// One exchange, in seconds: `sent` and `back` on the sender's clock, `there` on the receiver's.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub sent: f64,
    pub there: f64,
    pub back: f64,
}

impl Probe {
    fn trip(&self) -> f64 {
        self.back - self.sent
    }
}

/// A moment told by both clocks, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Offset {
    sender: f64,
    receiver: f64,
    /// The sender's time is right within so much either way.
    uncertainty: f64,
}

impl Offset {
    /// By the quickest of `probes`; none without probes.
    pub fn of(probes: &[Probe]) -> Option<Offset> {
        let quickest = probes.iter().min_by(|a, b| a.trip().total_cmp(&b.trip()))?;
        Some(Offset {
            sender: quickest.sent + quickest.trip() / 2.0,
            receiver: quickest.there,
            uncertainty: quickest.trip() / 2.0,
        })
    }
}

/// What the clocks have to do with each other from one offset to a later one.
#[derive(Clone, Copy, Debug)]
pub struct Relation {
    pub before: Offset,
    pub after: Offset,
}

impl Relation {
    /// What the sender's clock shows when the receiver's shows `receiver`.
    pub fn sender_time(&self, receiver: f64) -> f64 {
        let Relation { before, after } = self;
        let pace = (after.sender - before.sender) / (after.receiver - before.receiver);
        before.sender + (receiver - before.receiver) * pace
    }

    /// Between the two offsets, [`Relation::sender_time`] is right within so many seconds either way.
    pub fn uncertainty(&self) -> f64 {
        self.before.uncertainty.max(self.after.uncertainty)
    }

    /// Seconds that the receiver's clock gains on the sender's in a second.
    pub fn drift(&self) -> f64 {
        (self.after.receiver - self.before.receiver) / (self.after.sender - self.before.sender) - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Probes from `start` on, each with its way there and way back, of clocks that are `offset` apart at zero and
    /// drift apart by `drift`.
    fn probes(start: f64, ways: &[(f64, f64)], offset: f64, drift: f64) -> Vec<Probe> {
        let probe = |(index, (there, back)): (usize, &(f64, f64))| {
            let sent = start + index as f64;
            Probe { sent, there: (sent + there) * (1.0 + drift) + offset, back: sent + there + back }
        };
        ways.iter().enumerate().map(probe).collect()
    }

    fn ways() -> impl Strategy<Value = Vec<(f64, f64)>> {
        prop::collection::vec((1e-6f64..0.1, 1e-6f64..0.1), 1..20)
    }

    proptest! {
        /// Whatever the offset, the drift and the way each probe took, times between the two are right within what is said.
        #[test]
        fn times_are_right_within_the_uncertainty(
            early in ways(),
            late in ways(),
            offset in -1e4f64..1e4,
            drift in -1e-3f64..1e-3,
            part in 0.0f64..1.0,
        ) {
            let before = Offset::of(&probes(0.0, &early, offset, drift)).unwrap();
            let after = Offset::of(&probes(100.0, &late, offset, drift)).unwrap();
            let relation = Relation { before, after };
            let receiver = before.receiver + part * (after.receiver - before.receiver);
            let truth = (receiver - offset) / (1.0 + drift);
            let error = (relation.sender_time(receiver) - truth).abs();
            prop_assert!(error <= relation.uncertainty() + 1e-9, "{error} above {}", relation.uncertainty());
        }

        /// The uncertainty is half of the quickest round trip, and never less than nothing.
        #[test]
        fn the_quickest_counts(ways in ways()) {
            let quickest = ways.iter().map(|(there, back)| there + back).fold(f64::INFINITY, f64::min);
            let offset = Offset::of(&probes(0.0, &ways, 5.0, 0.0)).unwrap();
            prop_assert!((offset.uncertainty - quickest / 2.0).abs() < 1e-9);
        }

        /// Where both ways take the same time, drift and times are exact.
        #[test]
        fn even_ways_leave_no_error(way in 1e-6f64..0.1, offset in -1e4f64..1e4, drift in -1e-3f64..1e-3) {
            let ways = [(way, way)];
            let [before, after] = [0.0, 100.0].map(|start| Offset::of(&probes(start, &ways, offset, drift)).unwrap());
            let relation = Relation { before, after };
            prop_assert!((relation.drift() - drift).abs() < 1e-9);
            prop_assert!((relation.sender_time(50.0 * (1.0 + drift) + offset) - 50.0).abs() < 1e-8);
        }
    }

    #[test]
    fn no_probe_no_offset() {
        assert!(Offset::of(&[]).is_none());
    }
}
