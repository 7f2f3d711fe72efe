//! Counts by source and interval. Time is an argument: the time since counting began.

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
    /// The lowest sequence number above all that were seen.
    expected: u64,
}

/// Splits what arrives into intervals, a [`Sample`] a source and interval. A source once seen has a sample
/// in every later interval, even an empty one.
pub struct Meter {
    interval: Duration,
    /// The end of the interval being counted.
    boundary: Duration,
    sources: BTreeMap<SocketAddr, Source>,
}

impl Meter {
    /// A meter whose intervals are `interval` long; the first begins at zero.
    ///
    /// # Panics
    /// If `interval` is zero.
    pub fn new(interval: Duration) -> Meter {
        assert!(!interval.is_zero(), "an interval of a meter is longer than zero");
        Meter { interval, boundary: interval, sources: BTreeMap::new() }
    }

    /// The end of the interval being counted.
    pub fn boundary(&self) -> Duration {
        self.boundary
    }

    /// Counts a datagram of `bytes` with sequence number `sequence` (from 0, one more each datagram).
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

    /// Counts `bytes` of a stream; zero makes the source known.
    pub fn stream(&mut self, source: SocketAddr, bytes: u64) {
        self.sources.entry(source).or_default().interval.bytes += bytes;
    }

    /// Gives `sink` the samples of every interval that ended by `now`.
    pub fn advance(&mut self, now: Duration, sink: &mut impl FnMut(Sample)) {
        while now >= self.boundary {
            self.close(self.boundary, sink);
            self.boundary += self.interval;
        }
    }

    /// Ends counting at `now`: gives `sink` what is left, the last interval cut short, and answers the totals.
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
        /// Whatever the order of arrival, nothing is counted twice or forgotten, and each sample stands in its interval.
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

        /// A sequence with losses and no reordering: exactly what was removed below the last one is skipped.
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

        /// A permutation loses nothing.
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
