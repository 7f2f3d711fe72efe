//! A guest that drains its ring is left alone: nothing is acknowledged for it, so segments with only data and an ACK
//! are not noted. These are nearly all segments, and reading and looking up each would cost a running guest more than
//! early ack may cost.
//!
//! So a flow's numbers grow old, except for what the handshake negotiated. Once the guest is [watched](Guest::watch)
//! again, the numbers are learned again from the next segments of both ends. They are not used, and nothing of the flow
//! is retained, until the guest has acknowledged the first noted segment: its ring is first in, first out, so by then
//! the guest has processed everything that was not noted.

use super::flags::Flags;
use super::guest::Guest;
use super::inbound::anomaly;
use super::machine::Event;
use super::segment::Segment;
use super::{EarlyAck, FRAME, Fallback, Flow, State};
use crate::packet::TcpFlags;

impl EarlyAck<'_> {
    /// Whether a flow's numbers are old and must be learned. Not if data is retained: then every segment was noted,
    /// here or where the flow was imported from.
    #[inline]
    pub(super) fn learns(&self, at: usize) -> bool {
        let flow = &self.flows[at];
        let guest = &self.guest;
        let is_open = matches!(flow.state(), State::Idle | State::Active | State::NoBuffer | State::UnexpectedSequence);
        (flow.has(Flags::LEARNS) || is_old(flow, guest)) && is_open && flow.retained() == 0
    }

    /// Learns from a segment to the guest, which is verified unless it is [plain](Segment::is_plain).
    pub(super) fn learn_inbound(&mut self, at: usize, segment: &Segment) {
        self.begin_to_learn(at);
        if let Some(reason) = anomaly(segment) {
            return self.fall_back(at, reason);
        }
        if !segment.flags.contains(TcpFlags::ACK) {
            return;
        }
        let flow = &mut self.flows[at];
        let end = segment.end();
        // Nothing follows a FIN.
        if !flow.has(Flags::FIN) {
            flow.delivered = if flow.has(Flags::MARKED) { flow.delivered.latest(end) } else { end };
        }
        if !flow.has(Flags::MARKED) {
            flow.mark = end;
            flow.flags.set(Flags::MARKED);
        }
        if segment.flags.contains(TcpFlags::FIN) && !flow.has(Flags::FIN) {
            flow.delivered = end;
            self.change(at, |flow| flow.flags.set(Flags::FIN));
        }
    }

    /// Learns from a segment from the guest.
    pub(super) fn learn_outbound(&mut self, at: usize, segment: &Segment) {
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
        flow.adopt(segment);
        flow.step(Event::Learned);
        let is_foreign = flow.delivered.after(flow.edge.plus(FRAME as u32))
            || (flow.has(Flags::FIN) && segment.ack.after(flow.delivered));
        if is_foreign {
            // A noted segment was outside the guest's window or had a false FIN: anyone may have sent it.
            self.change(at, |flow| flow.flags.clear(Flags::MARKED.with(Flags::FIN)));
        }
        let flow = &mut self.flows[at];
        if flow.has(Flags::MARKED) && !segment.ack.before(flow.mark) && !segment.ack.after(flow.delivered) {
            flow.flags.clear(Flags::LEARNS.with(Flags::MARKED));
        }
        self.settle(at);
    }

    /// Starts to learn a flow whose numbers are old.
    fn begin_to_learn(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let guest = &self.guest;
        if is_old(flow, guest) {
            flow.epoch = guest.epoch;
            flow.flags = flow.flags.without(Flags::MARKED).with(Flags::LEARNS);
        }
    }
}

/// Whether segments of a flow may have passed without being noted since its last lookup.
#[inline]
pub(super) fn is_old(flow: &Flow, guest: &Guest) -> bool {
    guest.skips || flow.epoch != guest.epoch
}
