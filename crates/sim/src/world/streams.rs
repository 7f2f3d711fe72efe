//! Streams: their segments, time-outs, and the beginnings and ends of transfers and incasts.

use super::{Round, What, World};
use crate::flow::at_random;
use crate::frame::{Frame, Kind};
use crate::scenario::Source;
use fairlane_core::time::Nanos;

impl World<'_> {
    /// A segment arrives where it was sent to.
    pub(super) fn segment(&mut self, frame: &Frame) {
        let Some(segment) = frame.segment() else { return };
        let flow = &mut self.flows[segment.flow as usize];
        let (to, index) = (flow.to, flow.traffic);
        let Some(stream) = &mut flow.stream else { return };
        if segment.kind == Kind::Refused {
            stream.sender.stop();
            self.tallies[index].arrived += 1;
            self.tallies[index].reset += 1;
            return;
        }
        if segment.kind.is_back() {
            let was_done = stream.sender.is_done();
            stream.answer(&segment, self.now);
            let is_done = stream.sender.is_done() && !was_done;
            self.tallies[index].arrived += 1;
            if is_done {
                self.sent_all(segment.flow, index);
            }
            self.pump(segment.flow);
            return self.arm(segment.flow);
        }
        let was_received = stream.is_received();
        let answer = stream.receive(&segment, self.now);
        let is_received = stream.is_received() && !was_received;
        self.count(frame, self.now);
        if let Some(answer) = answer {
            self.made(index, false);
            self.transmit(answer, to);
        }
        if is_received {
            self.received_all(segment.flow, index);
        }
    }

    /// Sees to it that a stream's time-out is looked at.
    pub(super) fn arm(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        let timeout = flow.stream.as_ref().and_then(|stream| stream.sender.timeout(self.now));
        if let Some(at) = timeout.filter(|at| *at < flow.timer) {
            flow.timer = at;
            self.at(at, What::Timeout(id));
        }
    }

    /// Looks whether a stream has waited for long enough.
    pub(super) fn timeout(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        if flow.timer != self.now {
            // It was looked at earlier than this: the time-out became shorter.
            return;
        }
        flow.timer = Nanos::NEVER;
        let Some(stream) = &mut flow.stream else { return };
        if stream.sender.is_due(self.now) {
            stream.sender.expire(self.now);
            self.pump(id);
        }
        self.arm(id);
    }

    /// A flow has this round of an incast to send: so many bytes, and the next ones so much later. The round begins when it is due,
    /// whoever of its senders waits for a CPU then.
    pub(super) fn start_round(&mut self, id: u32, traffic: usize, (bytes, interval): (u64, Nanos)) {
        let flow = &mut self.flows[id as usize];
        let due = flow.due();
        flow.follow(interval);
        let round = &mut self.rounds[traffic];
        if round.as_ref().is_none_or(|round| round.start < due) {
            self.tallies[traffic].late += round.as_ref().map_or(0, |round| round.left as u64);
            *round = Some(Round { start: due, left: self.scenario.traffic[traffic].flows.len() });
        }
        if let Some(stream) = &mut flow.stream {
            stream.add(bytes, false, self.now);
        }
    }

    pub(super) fn begin_transfer(&mut self, id: u32, bytes: u64, anew: bool) {
        let flow = &mut self.flows[id as usize];
        flow.began = Some(self.now);
        if let Some(stream) = &mut flow.stream {
            stream.add(bytes, anew, self.now);
        }
    }

    /// A sender knows that all it had to send arrived.
    fn sent_all(&mut self, id: u32, index: usize) {
        match self.scenario.traffic[index].source {
            Source::Incast { .. } => {
                // One that is still at the round before does not count.
                let due = self.flows[id as usize].due();
                let Some(round) = self.rounds[index].as_mut().filter(|round| due > round.start) else { return };
                round.left -= 1;
                if round.left == 0 && round.start >= self.scenario.settle {
                    let _ = self.tallies[index].trips.record(self.now.since(round.start).0);
                }
            }
            Source::Transfer { anew, .. } => {
                let flow = &self.flows[id as usize];
                let from = flow.from;
                let close = flow.stream.as_ref().filter(|_| anew).map(|stream| stream.close(self.now));
                if let Some(began) = flow.began.filter(|began| *began >= self.scenario.settle) {
                    let _ = self.tallies[index].trips.record(self.now.since(began).0);
                }
                if let Some(close) = close {
                    self.made(index, false);
                    self.transmit(close, from);
                }
                self.pause(id, index);
            }
            _ => {}
        }
    }

    /// A receiver has all that its sender had to send.
    fn received_all(&mut self, id: u32, index: usize) {
        let began = self.flows[id as usize].began.filter(|began| *began >= self.scenario.settle);
        if let Some(began) = began {
            let _ = self.tallies[index].received.record(self.now.since(began).0);
        }
        self.pause(id, index);
    }

    /// Once both ends are done with a transfer, the next one follows after a while.
    fn pause(&mut self, id: u32, index: usize) {
        let traffic = &self.scenario.traffic[index];
        let Source::Transfer { pause, .. } = traffic.source else { return };
        let flow = &mut self.flows[id as usize];
        let is_done = flow.stream.as_ref().is_some_and(|stream| stream.sender.is_done() && stream.is_received());
        if is_done && flow.began.take().is_some() {
            let next = self.now + Nanos(at_random(pause.0 as f64, &mut self.random) as u64);
            if next < traffic.time.1 {
                self.at(next, What::Source(id));
            }
        }
    }
}
