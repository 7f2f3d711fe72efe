//! Relates the receiver's clock to the sender's.
//!
//! In an exchange the sender requests the receiver's time. The receiver read its clock at some moment between request and answer, so
//! the middle of the round trip is wrong by at most half of it (Cristian 1989); the quickest exchange is the most precise. Between
//! an offset before and one after, the difference of clocks with constant rates is linear, and so are the errors.

/// One exchange, in seconds: `sent` and `back` on the sender's clock, `there` on the receiver's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub sent: f64,
    pub there: f64,
    pub back: f64,
}

impl Probe {
    fn trip(&self) -> f64 {
        self.back - self.sent
    }
}

/// A moment on both clocks, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offset {
    sender: f64,
    receiver: f64,
    /// The largest error of the sender's time.
    uncertainty: f64,
}

impl Offset {
    /// The offset by the quickest of `probes`; none without probes.
    pub(super) fn of(probes: &[Probe]) -> Option<Offset> {
        let quickest = probes.iter().min_by(|a, b| a.trip().total_cmp(&b.trip()))?;
        Some(Offset {
            sender: quickest.sent + quickest.trip() / 2.0,
            receiver: quickest.there,
            uncertainty: quickest.trip() / 2.0,
        })
    }
}

/// The relation of the clocks from one offset to a later one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relation {
    pub before: Offset,
    pub after: Offset,
}

impl Relation {
    /// The sender's time at the receiver's time `receiver`.
    pub(super) fn sender_time(&self, receiver: f64) -> f64 {
        let Relation { before, after } = self;
        let rate = (after.sender - before.sender) / (after.receiver - before.receiver);
        before.sender + (receiver - before.receiver) * rate
    }

    /// The largest error of [`Relation::sender_time`] between the two offsets, in seconds.
    pub(super) fn uncertainty(&self) -> f64 {
        self.before.uncertainty.max(self.after.uncertainty)
    }

    /// Seconds that the receiver's clock gains on the sender's per second.
    pub(super) fn drift(&self) -> f64 {
        (self.after.receiver - self.before.receiver) / (self.after.sender - self.before.sender) - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Probes from `start` on with the given delays to and from the receiver, of clocks that differ by `offset` at time zero and
    /// drift by `drift`.
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
        /// For any offset, drift and delays, the error of a time between the two offsets is at most the uncertainty.
        #[test]
        fn errors_are_within_the_uncertainty(
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

        /// The uncertainty is half of the quickest round trip.
        #[test]
        fn the_quickest_probe_counts(ways in ways()) {
            let quickest = ways.iter().map(|(there, back)| there + back).fold(f64::INFINITY, f64::min);
            let offset = Offset::of(&probes(0.0, &ways, 5.0, 0.0)).unwrap();
            prop_assert!((offset.uncertainty - quickest / 2.0).abs() < 1e-9);
        }

        /// If both directions take the same time, drift and times are exact.
        #[test]
        fn equal_delays_leave_no_error(way in 1e-6f64..0.1, offset in -1e4f64..1e4, drift in -1e-3f64..1e-3) {
            let ways = [(way, way)];
            let [before, after] = [0.0, 100.0].map(|start| Offset::of(&probes(start, &ways, offset, drift)).unwrap());
            let relation = Relation { before, after };
            prop_assert!((relation.drift() - drift).abs() < 1e-9);
            prop_assert!((relation.sender_time(50.0 * (1.0 + drift) + offset) - 50.0).abs() < 1e-8);
        }
    }

    #[test]
    fn without_probes_there_is_no_offset() {
        assert!(Offset::of(&[]).is_none());
    }
}
