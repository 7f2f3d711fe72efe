//! Counts traffic by source and interval. Time is an argument: the time since counting started.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use crate::{Received, Sample};

#[derive(Clone, Copy, Default)]
struct Tally {
    bytes: u64,
    datagrams: u64,
    skipped: u64,
    late: u64,
}

impl Tally {
    fn sample(self, t: Duration, source: SocketAddr) -> Sample {
        let Tally { bytes, datagrams, skipped, late } = self;
        Sample { t: t.as_secs_f64(), source, bytes, datagrams, skipped, late }
    }

    fn add(&mut self, other: Tally) {
        self.bytes += other.bytes;
        self.datagrams += other.datagrams;
        self.skipped += other.skipped;
        self.late += other.late;
    }
}

#[derive(Default)]
struct Source {
    interval: Tally,
    total: Tally,
    /// One more than the highest sequence number so far.
    expected: u64,
}

/// Divides the traffic into intervals, with a [`Sample`] for each source and interval. A known source has a sample in every
/// later interval, even an empty one.
pub struct Meter {
    interval: Duration,
    /// The end of the current interval.
    boundary: Duration,
    sources: BTreeMap<SocketAddr, Source>,
}

impl Meter {
    /// A meter with intervals of length `interval`; the first starts at zero.
    ///
    /// # Panics
    /// If `interval` is zero.
    pub fn new(interval: Duration) -> Meter {
        assert!(!interval.is_zero(), "a meter's interval must be longer than zero");
        Meter { interval, boundary: interval, sources: BTreeMap::new() }
    }

    /// The end of the current interval.
    pub fn boundary(&self) -> Duration {
        self.boundary
    }

    /// Counts a datagram of `bytes` with sequence number `sequence` (0 for the first, increasing by one).
    pub fn datagram(&mut self, source: SocketAddr, bytes: u64, sequence: u64) {
        let source = self.sources.entry(source).or_default();
        let mut tally = Tally { bytes, datagrams: 1, ..Tally::default() };
        if sequence >= source.expected {
            tally.skipped = sequence - source.expected;
            source.expected = sequence.saturating_add(1);
        } else {
            tally.late = 1;
        }
        source.interval.add(tally);
    }

    /// Counts `bytes` of a stream; with zero it only makes the source known.
    pub fn stream(&mut self, source: SocketAddr, bytes: u64) {
        self.sources.entry(source).or_default().interval.bytes += bytes;
    }

    /// Passes the samples of every interval that ended by `now` to `sink`.
    pub fn advance(&mut self, now: Duration, sink: &mut impl FnMut(Sample)) {
        while now >= self.boundary {
            self.close(self.boundary, sink);
            self.boundary += self.interval;
        }
    }

    /// Ends counting at `now`: passes the remaining samples to `sink`, the last for a shorter interval, and returns the totals.
    pub fn finish(mut self, now: Duration, sink: &mut impl FnMut(Sample)) -> Received {
        self.advance(now, sink);
        if self.boundary - self.interval < now {
            self.close(now, sink);
        }
        let sources = self.sources.iter().map(|(address, source)| source.total.sample(now, *address)).collect();
        Received { seconds: now.as_secs_f64(), sources }
    }

    fn close(&mut self, t: Duration, sink: &mut impl FnMut(Sample)) {
        for (address, source) in &mut self.sources {
            source.total.add(source.interval);
            sink(std::mem::take(&mut source.interval).sample(t, *address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    proptest! {
        /// For any order of arrival, every datagram is counted once, and each source has one sample per interval.
        #[test]
        fn samples_add_up(arrivals in prop::collection::vec((0u64..40, 1u16..4, 0u64..1500, 0u64..50), 0..200)) {
            let interval = Duration::from_millis(100);
            let mut meter = Meter::new(interval);
            let (mut now, mut samples) = (Duration::ZERO, Vec::new());
            let (mut bytes, mut count) = (0, 0);
            for (step, port, size, sequence) in &arrivals {
                now += Duration::from_millis(*step);
                meter.advance(now, &mut |sample| samples.push(sample));
                meter.datagram(source(*port), *size, *sequence);
                bytes += size;
                count += 1;
            }
            let received = meter.finish(now + Duration::from_millis(1), &mut |sample| samples.push(sample));
            prop_assert_eq!(samples.iter().map(|s| s.bytes).sum::<u64>(), bytes);
            prop_assert_eq!(samples.iter().map(|s| s.datagrams).sum::<u64>(), count);
            prop_assert_eq!(received.sources.iter().map(|s| s.bytes).sum::<u64>(), bytes);
            for total in &received.sources {
                let mut times: Vec<f64> = samples.iter().filter(|s| s.source == total.source).map(|s| s.t).collect();
                prop_assert!(times.is_sorted());
                times.dedup();
                prop_assert_eq!(times.len(), samples.iter().filter(|s| s.source == total.source).count());
            }
        }

        /// In a sequence with losses and no reordering, exactly the datagrams removed before the last one are skipped.
        #[test]
        fn losses_are_counted(kept in prop::collection::vec(any::<bool>(), 1..300)) {
            let mut meter = Meter::new(Duration::from_secs(1));
            let last = kept.iter().rposition(|kept| *kept);
            for (sequence, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
                meter.datagram(source(1), 100, sequence as u64);
            }
            let received = meter.finish(Duration::from_millis(1), &mut |_| ());
            let missing = last.map_or(0, |last| kept[..last].iter().filter(|kept| !**kept).count());
            prop_assert_eq!(received.sources.first().map_or(0, Sample::lost), missing as u64);
        }

        /// A permutation has no losses.
        #[test]
        fn reordering_is_no_loss(order in Just((0u64..60).collect::<Vec<_>>()).prop_shuffle()) {
            let mut meter = Meter::new(Duration::from_secs(1));
            order.iter().for_each(|sequence| meter.datagram(source(1), 1, *sequence));
            let received = meter.finish(Duration::from_millis(1), &mut |_| ());
            prop_assert_eq!(received.sources[0].lost(), 0);
            prop_assert_eq!(received.sources[0].late > 0, !order.is_sorted());
        }
    }

    #[test]
    fn a_known_source_has_empty_intervals() {
        let mut meter = Meter::new(Duration::from_millis(100));
        meter.stream(source(1), 5);
        let mut samples = Vec::new();
        meter.finish(Duration::from_millis(250), &mut |sample| samples.push((sample.t, sample.bytes)));
        assert_eq!(samples, [(0.1, 5), (0.2, 0), (0.25, 0)]);
    }
}
