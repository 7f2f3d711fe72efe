//! What a stream's answers say of the path's bandwidth (draft-cheng-iccrg-delivery-rate-estimation-00; Linux's `tcp_rate.c`): how many
//! segments arrived from when one of them was sent until it was answered, over the time that it took to send them, or to hear of them if
//! that took longer. Else answers that come together would look like a path without limits.

use fairlane_core::time::Nanos;

/// A segment on its way, and what was known when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flight {
    pub sent: Nanos,
    /// When the first of those that count together was sent.
    first: Nanos,
    /// How many segments had arrived, and when the last of them was heard of.
    before: u32,
    heard: Nanos,
    is_limited: bool,
}

/// What one answer says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Segments that had arrived before the one that was answered was sent, and those that arrived since.
    pub before: u32,
    pub arrived: u32,
    /// How long that took.
    pub time: Nanos,
    /// Whether the sender had too little to send.
    pub is_limited: bool,
}

/// The measurement of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    arrived: u32,
    heard: Nanos,
    first: Nanos,
    /// How many will have arrived once what was sent by a sender with too little to send has.
    limited: Option<u32>,
    /// Of those that this answer is for, the one that was sent last.
    newest: Option<Flight>,
}

impl Rate {
    /// A segment is sent while others fly. The time without any does not count.
    pub(crate) fn send(&mut self, flying: u32, now: Nanos) -> Flight {
        if flying == 0 {
            (self.first, self.heard) = (now, now);
        }
        let Rate { arrived, heard, first, limited, .. } = *self;
        Flight { sent: now, first, before: arrived, heard, is_limited: limited.is_some() }
    }

    /// The sender has no more to send than flies.
    pub(crate) fn limit(&mut self, flying: u32) {
        self.limited = Some(self.arrived + flying);
    }

    /// A segment arrived, which was thought lost if there is no flight.
    pub(crate) fn arrive(&mut self, flight: Option<Flight>, now: Nanos) {
        (self.arrived, self.heard) = (self.arrived + 1, now);
        self.newest = self.newest.into_iter().chain(flight).max_by_key(|flight| flight.sent);
    }

    /// What an answer says, once all that it is for is reported; none if that is nothing new.
    pub(crate) fn sample(&mut self, now: Nanos) -> Option<Sample> {
        self.limited = self.limited.filter(|limited| self.arrived <= *limited);
        let Flight { sent, first, before, heard, is_limited } = self.newest.take()?;
        self.first = sent;
        let time = now.since(heard).max(sent.since(first));
        Some(Sample { before, arrived: self.arrived - before, time, is_limited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten segments, a millisecond apart, and answers to all of them at once: a thousand a second, not ten in no time.
    #[test]
    fn answers_at_once_show_no_more_than_was_sent() {
        let mut rate = Rate::default();
        let at = |millis: u32| Nanos::from_millis(100 + u64::from(millis));
        let flights: Vec<Flight> = (0u32..10).map(|millis| rate.send(millis, at(millis))).collect();
        rate.arrive(Some(flights[0]), at(20));
        let Sample { before, arrived, time, is_limited } = rate.sample(at(20)).unwrap();
        assert_eq!((before, arrived, time, is_limited), (0, 1, Nanos::from_millis(20), false));
        let later: Vec<Flight> = (21..31).map(|millis| rate.send(9, at(millis))).collect();
        flights[1..].iter().chain(&later).for_each(|flight| rate.arrive(Some(*flight), at(31)));
        let Sample { before, arrived, time, .. } = rate.sample(at(31)).unwrap();
        assert_eq!((before, arrived, time), (1, 19, Nanos::from_millis(30)));
        assert!(rate.sample(at(31)).is_none(), "it is no news");
    }

    #[test]
    fn a_sender_with_too_little_says_so_and_its_pause_does_not_count() {
        let mut rate = Rate::default();
        let at = Nanos::from_millis;
        let flight = rate.send(0, at(0));
        rate.limit(1);
        rate.arrive(Some(flight), at(5));
        assert!(!rate.sample(at(5)).unwrap().is_limited, "more could have followed when it was sent");
        let flight = rate.send(0, at(1000));
        rate.arrive(Some(flight), at(1005));
        let Sample { time, is_limited, .. } = rate.sample(at(1005)).unwrap();
        assert_eq!((time, is_limited), (at(5), true));
        let flight = rate.send(0, at(2000));
        rate.arrive(Some(flight), at(2005));
        assert!(!rate.sample(at(2005)).unwrap().is_limited);
    }
}
