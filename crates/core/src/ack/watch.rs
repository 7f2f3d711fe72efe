//! A guest that drains its ring is let alone: nothing is to be acknowledged for it, so segments that carry nothing but data and ACKs
//! are not noted. That is nearly all there are, and to read each and look its flow up would cost a guest that always runs more than
//! early ack may.
//!
//! So what is known of a flow grows old, except for what its handshake said. Once the guest is [watched](Guest::watch) again, its
//! numbers are learned anew, from what either end says next. They are not relied on, and nothing of the flow is retained, before the
//! guest has acknowledged the first segment for it that was noted: its ring is first in, first out, so what was not noted is
//! behind it then.

use super::flags::Flags;
use super::guest::Guest;
use super::machine::Event;
use super::segment::Segment;
use super::toward::anomaly;
use super::{EarlyAck, FRAME, Fallback, Flow, State};
use crate::packet::TcpFlags;

impl EarlyAck<'_> {
    /// Whether what is known of a flow is old, and is to be learned. Never of one of which something is retained: all of it was noted
    /// since, here or where it was imported from.
    #[inline]
    pub(super) fn learns(&self, at: usize) -> bool {
        let flow = &self.flows[at];
        let guest = &self.guest;
        let is_open = matches!(flow.state(), State::Idle | State::Active | State::NoBuffer | State::UnexpectedSequence);
        (flow.has(Flags::LEARNS) || is_old(flow, guest)) && is_open && flow.retained() == 0
    }

    /// Learns from a segment for the guest, which is verified if it is not [plain](Segment::is_plain).
    pub(super) fn learn_toward(&mut self, at: usize, segment: &Segment) {
        self.begin_to_learn(at);
        if let Some(reason) = anomaly(segment) {
            return self.fall_back(at, reason);
        }
        if !segment.flags.contains(TcpFlags::ACK) {
            return;
        }
        let flow = &mut self.flows[at];
        let end = segment.end();
        // Nothing comes behind a FIN.
        if !flow.has(Flags::FIN) {
            flow.seen = if flow.has(Flags::MARKED) { flow.seen.latest(end) } else { end };
        }
        if !flow.has(Flags::MARKED) {
            flow.mark = end;
            flow.flags.set(Flags::MARKED);
        }
        if segment.flags.contains(TcpFlags::FIN) && !flow.has(Flags::FIN) {
            flow.seen = end;
            self.change(at, |flow| flow.flags.set(Flags::FIN));
        }
    }

    /// Learns from a segment of the guest.
    pub(super) fn learn_from(&mut self, at: usize, segment: &Segment) {
        self.begin_to_learn(at);
        if segment.flags.contains(TcpFlags::RST) {
            return self.fall_back(at, Fallback::Reset);
        }
        if !segment.is_sound {
            return self.fall_back(at, Fallback::Options);
        }
        if !segment.flags.contains(TcpFlags::ACK) {
            return;
        }
        let flow = &mut self.flows[at];
        flow.stand(segment);
        flow.step(Event::Learned);
        let is_foreign =
            flow.seen.after(flow.edge.plus(FRAME as u32)) || (flow.has(Flags::FIN) && segment.ack.after(flow.seen));
        if is_foreign {
            // What was noted was not in the guest's window, or had an end where there is none: anyone may have sent it.
            self.change(at, |flow| flow.flags.clear(Flags::MARKED.with(Flags::FIN)));
        }
        let flow = &mut self.flows[at];
        if flow.has(Flags::MARKED) && !segment.ack.before(flow.mark) && !segment.ack.after(flow.seen) {
            flow.flags.clear(Flags::LEARNS.with(Flags::MARKED));
        }
        self.settle(at);
    }

    /// Forgets what is old.
    fn begin_to_learn(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let guest = &self.guest;
        if is_old(flow, guest) {
            flow.epoch = guest.epoch;
            flow.flags = flow.flags.without(Flags::MARKED).with(Flags::LEARNS);
        }
    }
}

/// Whether segments of a flow were not noted since it was heard of last.
#[inline]
pub(super) fn is_old(flow: &Flow, guest: &Guest) -> bool {
    guest.skips || flow.epoch != guest.epoch
}
