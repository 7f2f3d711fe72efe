//! A stream with a window, like TCP's, simplified: every acknowledgement names the segment that it answers, so a sender knows what
//! arrived (RFC 2018 without its limits); a segment is lost once one that was sent later and is three numbers further arrived (RFC
//! 8985's rule and RFC 5681's distance); the window grows and halves as in RFC 5681; nothing arrives within a time-out of RFC 6298,
//! and the window is one segment again. There is no handshake, no Nagle, and no pacing.

use fairlane_core::time::Nanos;
use std::collections::{BTreeSet, VecDeque};

/// The first window, in segments (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;

/// How much further a segment must be before an earlier one counts as lost.
const REORDERING: u32 = 3;

/// The shortest time-out, as Linux has it, and the first one (RFC 6298, 2.1).
const SHORTEST_TIMEOUT: Nanos = Nanos::from_millis(200);
const FIRST_TIMEOUT: Nanos = Nanos::from_millis(1000);
const LONGEST_TIMEOUT: Nanos = Nanos::from_millis(60_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    Flies(Nanos),
    Lost,
    Arrived,
}

/// Both ends of a stream. Numbers count segments.
pub(crate) struct Stream {
    /// Most segments in flight.
    most: f64,
    window: f64,
    /// The window from which on it grows slowly.
    threshold: f64,
    /// Segments from the oldest that is not known to have arrived.
    segments: VecDeque<Segment>,
    oldest: u32,
    flying: u32,
    /// The oldest that may have to be sent again.
    again: u32,
    lost: u32,
    /// The window was halved for losses before this number.
    recover: u32,
    /// Segments to send altogether; no end if absent.
    pub supply: Option<u32>,
    /// The smoothed round trip and its variation, in nanoseconds.
    trip: Option<(f64, f64)>,
    backoff: u32,
    /// When anything arrived last, or the stream started to wait.
    progress: Nanos,
    /// Retransmitted segments.
    pub retransmitted: u64,
    /// The receiver: all before this arrived, and these after it.
    expected: u32,
    ahead: BTreeSet<u32>,
    unanswered: u32,
}

impl Stream {
    /// A stream that has at most this many segments in flight.
    pub(crate) fn new(most: u32, supply: Option<u32>) -> Stream {
        Stream {
            most: f64::from(most.max(1)),
            window: FIRST_WINDOW.min(f64::from(most.max(1))),
            threshold: f64::INFINITY,
            segments: VecDeque::new(),
            oldest: 0,
            flying: 0,
            again: 0,
            lost: 0,
            recover: 0,
            supply,
            trip: None,
            backoff: 0,
            progress: Nanos(0),
            retransmitted: 0,
            expected: 0,
            ahead: BTreeSet::new(),
            unanswered: 0,
        }
    }

    fn next(&self) -> u32 {
        self.oldest + self.segments.len() as u32
    }

    fn has_more(&self) -> bool {
        self.lost > 0 || self.supply.is_none_or(|supply| self.next() < supply)
    }

    fn window_open(&self) -> bool {
        f64::from(self.flying) + 1.0 <= self.window
    }

    /// Whether all of its supply arrived.
    pub(crate) fn is_done(&self) -> bool {
        self.supply.is_some_and(|supply| self.oldest >= supply)
    }

    /// The number of the segment to send now, and whether it is the last one for now. None if the window is closed.
    pub(crate) fn send(&mut self, now: Nanos) -> Option<(u32, bool)> {
        if !self.window_open() || !self.has_more() {
            return None;
        }
        if self.flying == 0 {
            self.progress = now;
        }
        let number = if self.lost > 0 {
            self.again = self.again.max(self.oldest);
            while self.segments[(self.again - self.oldest) as usize] != Segment::Lost {
                self.again += 1;
            }
            self.segments[(self.again - self.oldest) as usize] = Segment::Flies(now);
            self.lost -= 1;
            self.retransmitted += 1;
            self.again
        } else {
            self.segments.push_back(Segment::Flies(now));
            self.next() - 1
        };
        self.flying += 1;
        Some((number, !self.window_open() || !self.has_more()))
    }

    /// A segment arrived at the receiver. Returns whether it answers, and up to which number all arrived.
    pub(crate) fn receive(&mut self, number: u32, is_last: bool) -> Option<u32> {
        let in_order = number == self.expected && self.ahead.is_empty();
        if number == self.expected {
            self.expected += 1;
            while self.ahead.remove(&self.expected) {
                self.expected += 1;
            }
        } else if number > self.expected {
            self.ahead.insert(number);
        }
        self.unanswered += 1;
        (!in_order || is_last || self.unanswered >= 2).then(|| {
            self.unanswered = 0;
            self.expected
        })
    }

    /// An answer arrived: all before `before` arrived, and the segment `number`, which was sent at `sent`.
    pub(crate) fn answer(&mut self, before: u32, number: u32, sent: Nanos, now: Nanos) {
        self.measure(now.since(sent));
        (self.progress, self.backoff) = (now, 0);
        let mut arrived = self.arrive(number);
        while self.oldest < before && !self.segments.is_empty() {
            arrived += self.arrive(self.oldest);
            self.segments.pop_front();
            self.oldest += 1;
        }
        while self.segments.front() == Some(&Segment::Arrived) {
            self.segments.pop_front();
            self.oldest += 1;
        }
        self.grow(arrived);
        self.find_lost(number, sent);
    }

    /// A segment is known to have arrived. Returns how many are new to that.
    fn arrive(&mut self, number: u32) -> u32 {
        let Some(place) = number.checked_sub(self.oldest) else { return 0 };
        let Some(segment) = self.segments.get_mut(place as usize) else { return 0 };
        match std::mem::replace(segment, Segment::Arrived) {
            Segment::Flies(_) => self.flying -= 1,
            Segment::Lost => self.lost -= 1,
            Segment::Arrived => return 0,
        }
        1
    }

    fn grow(&mut self, arrived: u32) {
        let arrived = f64::from(arrived);
        self.window += if self.window < self.threshold { arrived } else { arrived / self.window };
        self.window = self.window.min(self.most);
    }

    /// Finds segments that were sent before one that arrived, and are well before it.
    fn find_lost(&mut self, arrived: u32, sent: Nanos) {
        let Some(before) = arrived.checked_sub(self.oldest + REORDERING - 1) else { return };
        let mut newest = None;
        for (segment, number) in self.segments.iter_mut().take(before as usize).zip(self.oldest..) {
            if matches!(segment, Segment::Flies(at) if *at < sent) {
                *segment = Segment::Lost;
                (self.lost, self.flying) = (self.lost + 1, self.flying - 1);
                self.again = self.again.min(number);
                newest = Some(number);
            }
        }
        if newest.is_some_and(|newest| newest >= self.recover) {
            self.threshold = (self.window / 2.0).max(2.0);
            (self.window, self.recover) = (self.threshold, self.next());
        }
    }

    fn measure(&mut self, trip: Nanos) {
        let trip = trip.0 as f64;
        self.trip = Some(match self.trip {
            None => (trip, trip / 2.0),
            Some((mean, variation)) => (0.875 * mean + 0.125 * trip, 0.75 * variation + 0.25 * (mean - trip).abs()),
        });
    }

    /// When nothing was heard for too long; none if nothing flies.
    pub(crate) fn timeout(&self) -> Option<Nanos> {
        let base = self
            .trip
            .map_or(FIRST_TIMEOUT, |(mean, variation)| Nanos((mean + 4.0 * variation) as u64).max(SHORTEST_TIMEOUT));
        let wait = Nanos(base.0 << self.backoff.min(8)).min(LONGEST_TIMEOUT);
        (self.flying > 0).then(|| self.progress + wait)
    }

    /// Nothing was heard for too long: all that flies is lost.
    pub(crate) fn expire(&mut self, now: Nanos) {
        self.threshold = (self.window / 2.0).max(2.0);
        self.window = 1.0;
        self.backoff += 1;
        self.progress = now;
        for segment in &mut self.segments {
            if matches!(segment, Segment::Flies(_)) {
                *segment = Segment::Lost;
                (self.lost, self.flying) = (self.lost + 1, self.flying - 1);
            }
        }
        (self.again, self.recover) = (self.oldest, self.next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    proptest! {
        /// Over a path that loses any of the segments and answers, everything arrives, and the window stays within its bound.
        #[test]
        fn everything_arrives(seed: u64, loss in 0.0..0.5, most in 1u32..50, supply in 1u32..300) {
            let mut stream = Stream::new(most, Some(supply));
            let mut random = StdRng::seed_from_u64(seed);
            let mut is_lost = || random.random::<f64>() < loss;
            let (mut now, mut path) = (Nanos(0), VecDeque::new());
            for _ in 0..100_000 {
                now += Nanos::from_micros(100);
                while let Some((number, is_last)) = stream.send(now) {
                    prop_assert!(stream.flying <= most);
                    if !is_lost() {
                        path.push_back((number, is_last, now));
                    }
                }
                match path.pop_front() {
                    Some((number, is_last, sent)) => {
                        if let Some(before) = stream.receive(number, is_last).filter(|_| !is_lost()) {
                            stream.answer(before, number, sent, now);
                        }
                    }
                    None => match stream.timeout() {
                        Some(at) => {
                            now = now.max(at);
                            stream.expire(now);
                        }
                        None => break,
                    },
                }
            }
            prop_assert!(stream.is_done(), "{} of {supply}", stream.oldest);
            prop_assert_eq!((stream.flying, stream.lost), (0, 0));
        }
    }

    #[test]
    fn a_loss_halves_the_window_once() {
        let mut stream = Stream::new(1000, None);
        let sent: Vec<u32> = std::iter::from_fn(|| stream.send(Nanos(1))).map(|(number, _)| number).collect();
        assert_eq!(sent, (0..10).collect::<Vec<_>>());
        for number in 2..10 {
            let before = stream.receive(number, false).unwrap();
            stream.answer(before, number, Nanos(1 + u64::from(number)), Nanos(1000));
        }
        assert_eq!(stream.lost, 2);
        assert!(stream.window < 8.0 && stream.window >= 5.0, "{}", stream.window);
        assert_eq!(stream.send(Nanos(1001)), Some((0, false)));
        assert_eq!(stream.retransmitted, 1);
    }
}
