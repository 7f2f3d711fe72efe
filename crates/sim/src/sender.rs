//! A stream's sender, simplified TCP: every acknowledgement names a segment that arrived, the one that it answers or the last in order
//! (RFC 2018 without its limits). A segment is lost once one that was sent later arrived and is three numbers further, or was sent more
//! than a quarter of a round trip later (RFC 8985, 6.2, without its timer). If nothing arrives for two round trips, the end of what flies
//! is probed (RFC 8985, 7, without the window's reduction after a probe that repaired a loss); if nothing arrives within a time-out of
//! RFC 6298, the window is one segment again. No Nagle; only BBR paces, with a millisecond's segments at once at most.

use crate::rate::{Flight, Rate};
use crate::window::{Answer, Window};
use fairlane_core::time::Nanos;
use std::collections::VecDeque;

/// How much further a segment must be before an earlier one counts as lost.
const REORDERING: u32 = 3;

/// What the time-out is longer than the mean round trip, at least, as Linux has it, and the first one (RFC 6298, 2.1).
const SHORTEST_TIMEOUT: Nanos = Nanos::from_millis(200);
const FIRST_TIMEOUT: Nanos = Nanos::from_millis(1000);
const LONGEST_TIMEOUT: Nanos = Nanos::from_millis(60_000);

/// How far a paced sender may be ahead, as Linux's bursts are (`sk_pacing_shift`).
const BURST: Nanos = Nanos::from_millis(1);

/// What a probe waits for longer than two round trips, as Linux has it (`TCP_TIMEOUT_MIN_US`). The answer to an only segment may be
/// delayed.
const PROBE: Nanos = Nanos::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    Flies(Flight),
    Lost,
    Arrived,
}

/// Whether there is a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Opens,
    Open,
}

/// Whether the end of what flies is probed (RFC 8985, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// It may be.
    No,
    /// The next segment is the probe.
    Due,
    /// It was, and nothing was heard since.
    Sent,
}

/// What a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    /// The beginning of a connection.
    Open,
    /// The segment with this number, and whether it is the last one for now.
    Segment(u32, bool),
}

/// A stream's sender. Numbers count segments.
pub(crate) struct Sender {
    state: State,
    window: Window,
    rate: Rate,
    /// The first number beyond what the receiver allows.
    edge: u32,
    /// Segments from the oldest that is not known to have arrived.
    segments: VecDeque<Segment>,
    oldest: u32,
    flying: u32,
    /// The oldest that may have to be sent again.
    again: u32,
    lost: u32,
    /// The window shrank for losses before this number.
    recover: u32,
    /// Segments to send altogether; no end if absent.
    pub supply: Option<u32>,
    /// The smoothed round trip and its variation, in nanoseconds.
    trip: Option<(f64, f64)>,
    backoff: u32,
    probe: Probe,
    /// When the next segment may be sent.
    paced: Nanos,
    /// When anything arrived last, or the stream started to wait.
    progress: Nanos,
    /// Retransmitted segments.
    pub retransmitted: u64,
}

impl Sender {
    /// A sender without a connection, with so many segments to send altogether.
    pub(crate) fn new(supply: Option<u32>, window: Window) -> Sender {
        Sender {
            state: State::Closed,
            window,
            rate: Rate::default(),
            edge: 0,
            segments: VecDeque::new(),
            oldest: 0,
            flying: 0,
            again: 0,
            lost: 0,
            recover: 0,
            supply,
            trip: None,
            backoff: 0,
            probe: Probe::No,
            paced: Nanos(0),
            progress: Nanos(0),
            retransmitted: 0,
        }
    }

    /// Has so many more segments to send, on a connection of its own or on the present one.
    pub(crate) fn add(&mut self, segments: u32, anew: bool, now: Nanos) {
        if anew {
            self.stop();
        } else if self.flying == 0 && now.since(self.progress) > self.wait() {
            self.window.rest();
        }
        self.supply = self.supply.map(|supply| supply.saturating_add(segments));
    }

    /// Has no connection and nothing to send any more.
    pub(crate) fn stop(&mut self) {
        *self = Sender { retransmitted: self.retransmitted, ..Sender::new(Some(0), self.window.anew()) };
    }

    /// The oldest number that is not known to have arrived.
    pub(crate) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Segments that may fly.
    #[cfg(test)]
    pub(crate) fn window(&self) -> f64 {
        self.window.segments()
    }

    /// The receiver takes numbers below this one.
    pub(crate) fn allow(&mut self, edge: u32) {
        self.edge = self.edge.max(edge);
    }

    /// The receiver agreed to the connection, the beginning of which was sent at `sent`.
    pub(crate) fn opened(&mut self, sent: Nanos, now: Nanos) {
        if self.state == State::Opens {
            (self.state, self.backoff, self.progress) = (State::Open, 0, now);
            self.measure(now.since(sent));
        }
    }

    /// The next new number.
    fn next(&self) -> u32 {
        self.oldest + self.segments.len() as u32
    }

    fn has_more(&self) -> bool {
        self.lost > 0 || self.supply.is_none_or(|supply| self.next() < supply)
    }

    /// Whether the receiver allows a new segment, or one is to be sent again.
    fn is_allowed(&self) -> bool {
        self.lost > 0 || self.next() < self.edge
    }

    fn may_send(&self) -> bool {
        f64::from(self.flying) + 1.0 <= self.window.segments() && self.has_more() && self.is_allowed()
    }

    /// Whether all of its supply arrived.
    pub(crate) fn is_done(&self) -> bool {
        self.supply.is_some_and(|supply| self.oldest >= supply)
    }

    /// What to send now, if anything.
    pub(crate) fn send(&mut self, now: Nanos) -> Option<Send> {
        if self.state == State::Closed && self.has_more() {
            (self.state, self.progress) = (State::Opens, now);
            return Some(Send::Open);
        }
        if self.probe == Probe::Due {
            self.probe = Probe::Sent;
            return Some(Send::Segment(self.send_probe(now), true));
        }
        if self.state != State::Open || !self.may_send() || self.paced > now {
            return None;
        }
        if let Some(pace) = self.window.pace() {
            self.paced = self.paced.max(now - BURST) + Nanos((1e9 / pace) as u64);
        }
        if self.flying == 0 {
            self.progress = now;
        }
        let number = if self.lost > 0 {
            self.again = self.again.max(self.oldest);
            while self.segments[(self.again - self.oldest) as usize] != Segment::Lost {
                self.again += 1;
            }
            self.segments[(self.again - self.oldest) as usize] = Segment::Flies(self.rate.send(self.flying, now));
            self.lost -= 1;
            self.retransmitted += 1;
            self.flying += 1;
            self.again
        } else {
            self.send_new(now)
        };
        if !self.has_more() {
            self.rate.limit(self.flying);
        }
        Some(Send::Segment(number, !self.may_send() || self.paced > now))
    }

    /// Sends a new segment. Returns its number.
    fn send_new(&mut self, now: Nanos) -> u32 {
        self.segments.push_back(Segment::Flies(self.rate.send(self.flying, now)));
        self.flying += 1;
        self.next() - 1
    }

    /// Sends a new segment, or, if there is none or the receiver does not allow one, the last one again. Returns its number.
    fn send_probe(&mut self, now: Nanos) -> u32 {
        let flies = |segment: &Segment| matches!(segment, Segment::Flies(_));
        match self.segments.iter().rposition(flies) {
            Some(last) if !(self.has_more() && self.is_allowed()) => {
                self.segments[last] = Segment::Flies(self.rate.send(self.flying, now));
                self.retransmitted += 1;
                self.oldest + last as u32
            }
            _ => self.send_new(now),
        }
    }

    /// An answer arrived: all before `before` arrived, and the segment `named`, and the last of them was sent at `sent`.
    pub(crate) fn answer(&mut self, before: u32, named: Option<u32>, sent: Nanos, now: Nanos) {
        (self.progress, self.backoff, self.probe) = (now, 0, Probe::No);
        let Some(newest) = named.or(before.checked_sub(1)) else { return };
        let trip = now.since(sent);
        self.measure(trip);
        let mut arrived = self.arrive(newest, now);
        while self.oldest < before && !self.segments.is_empty() {
            arrived += self.arrive(self.oldest, now);
            self.segments.pop_front();
            self.oldest += 1;
        }
        while self.segments.front() == Some(&Segment::Arrived) {
            self.segments.pop_front();
            self.oldest += 1;
        }
        self.window.answer(&Answer {
            arrived,
            flew: self.flying + arrived,
            trip,
            smoothed: self.trip.map_or(trip, |(mean, _)| Nanos(mean as u64)),
            before: self.oldest,
            next: self.next(),
            sample: self.rate.sample(now),
            now,
        });
        self.find_lost(newest, sent, now);
    }

    /// A segment is known to have arrived. Returns how many are new to that.
    fn arrive(&mut self, number: u32, now: Nanos) -> u32 {
        let Some(place) = number.checked_sub(self.oldest) else { return 0 };
        let Some(segment) = self.segments.get_mut(place as usize) else { return 0 };
        let flight = match std::mem::replace(segment, Segment::Arrived) {
            Segment::Flies(flight) => {
                self.flying -= 1;
                Some(flight)
            }
            Segment::Lost => {
                self.lost -= 1;
                None
            }
            Segment::Arrived => return 0,
        };
        self.rate.arrive(flight, now);
        1
    }

    /// Finds segments that were sent before one that arrived, and are well before it.
    fn find_lost(&mut self, arrived: u32, sent: Nanos, now: Nanos) {
        let Some(before) = arrived.checked_sub(self.oldest) else { return };
        let trip = now.since(sent).0;
        let mut newest = None;
        for (segment, number) in self.segments.iter_mut().take(before as usize).zip(self.oldest..) {
            let is_late = |at: Nanos| arrived - number >= REORDERING || now.since(at).0 > trip + trip / 4;
            if matches!(segment, Segment::Flies(flight) if flight.sent < sent && is_late(flight.sent)) {
                *segment = Segment::Lost;
                (self.lost, self.flying) = (self.lost + 1, self.flying - 1);
                self.again = self.again.min(number);
                newest = Some(number);
            }
        }
        if newest.is_some_and(|newest| newest >= self.recover) {
            self.window.lose();
            self.recover = self.next();
        }
    }

    fn measure(&mut self, trip: Nanos) {
        let trip = trip.0 as f64;
        self.trip = Some(match self.trip {
            None => (trip, trip / 2.0),
            Some((mean, variation)) => (0.875 * mean + 0.125 * trip, 0.75 * variation + 0.25 * (mean - trip).abs()),
        });
    }

    /// The time-out.
    fn wait(&self) -> Nanos {
        let base = self.trip.map_or(FIRST_TIMEOUT, |(mean, variation)| {
            Nanos(mean as u64) + Nanos((4.0 * variation) as u64).max(SHORTEST_TIMEOUT)
        });
        Nanos(base.0 << self.backoff.min(8)).min(LONGEST_TIMEOUT)
    }

    /// How long nothing is heard before the end of what flies is probed: not in recovery, and only before a time-out.
    fn until_probe(&self) -> Option<Nanos> {
        let recovers = self.lost > 0 || self.oldest < self.recover;
        let may_probe = self.state == State::Open && self.flying > 0 && !recovers && self.probe == Probe::No;
        let (mean, _) = self.trip.filter(|_| may_probe)?;
        let margin = if self.flying == 1 { SHORTEST_TIMEOUT } else { PROBE };
        Some(Nanos(2 * mean as u64) + margin).filter(|until| *until < self.wait())
    }

    /// When it has something to do without an answer, later than now: its pace allows a segment, or nothing was heard for too long. None
    /// if it waits for nothing.
    pub(crate) fn timeout(&self, now: Nanos) -> Option<Nanos> {
        let paced = Some(self.paced).filter(|at| self.is_paced() && *at > now);
        self.unheard().into_iter().chain(paced).min()
    }

    /// Whether such a time has come.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.is_paced() && self.paced <= now || self.unheard().is_some_and(|at| at <= now)
    }

    /// Whether nothing but its pace may keep it from sending.
    fn is_paced(&self) -> bool {
        self.state == State::Open && self.window.pace().is_some() && self.may_send()
    }

    /// When nothing was heard for too long.
    fn unheard(&self) -> Option<Nanos> {
        let is_shut = self.has_more() && !self.is_allowed();
        let waits = match self.state {
            State::Closed => false,
            State::Opens => true,
            State::Open => self.flying > 0 || is_shut,
        };
        waits.then(|| self.progress + self.until_probe().unwrap_or_else(|| self.wait()))
    }

    /// The time-out is over. If nothing was heard for too long, the end of what flies is probed, or all that flies is lost. A receiver
    /// that allows nothing is asked with one segment (RFC 9293, 3.8.6.1).
    pub(crate) fn expire(&mut self, now: Nanos) {
        if self.unheard().is_none_or(|at| at > now) {
            return;
        }
        if self.until_probe().is_some() {
            (self.probe, self.progress) = (Probe::Due, now);
            return;
        }
        self.backoff += 1;
        self.progress = now;
        if self.state == State::Opens {
            self.state = State::Closed;
            return;
        }
        if self.flying == 0 {
            self.edge = self.edge.max(self.next() + 1);
            return;
        }
        self.window.collapse();
        self.probe = Probe::No;
        for segment in &mut self.segments {
            if matches!(segment, Segment::Flies(_)) {
                *segment = Segment::Lost;
                (self.lost, self.flying) = (self.lost + 1, self.flying - 1);
            }
        }
        (self.again, self.recover) = (self.oldest, self.next());
    }
}
