//! Frames that were put into the guest's ring: noted, retained, acknowledged early.

use super::flags::Flags;
use super::machine::Event;
use super::segment::Segment;
use super::{EarlyAck, FRAME, Fallback, Frame, LookupBatch, RETRANSMIT, State};
use crate::packet::{Checksum, Compose, TcpFlags, checksum};
use crate::time::Nanos;

impl EarlyAck<'_> {
    /// Notes a frame that was put into the guest's ring, with its [lookup](EarlyAck::look_up). If it can be
    /// acknowledged early, [`EarlyAck::next_ack`] returns the ACK, to be sent at once, before the guest's next frame.
    ///
    /// If any frame of a burst has to be noted, every frame is reported, once and in order, except those that were
    /// dropped.
    pub fn delivered<F: Frame + ?Sized>(&mut self, lookup: &LookupBatch, frame: &F, checksum: Checksum, now: Nanos) {
        let Some((segment, at)) = self.recall(lookup) else { return };
        if segment.flags.contains(TcpFlags::SYN) {
            // Its options hold for the whole connection.
            if self.verify(frame, checksum) {
                self.syn_inbound(segment, frame.head(), now);
            }
            return;
        }
        let Some(at) = at else { return };
        if self.flows[at].has(Flags::RESET) {
            return self.reset_again(at, segment);
        }
        let is_engaged = self.guest.is_engaged(now);
        let is_verified = is_engaged || self.flows[at].retained() > 0 || !segment.is_plain();
        if is_verified && !self.verify(frame, checksum) {
            return self.note_end(at, segment);
        }
        if self.learns(at) {
            return self.learn_inbound(at, segment);
        }
        if self.flows[at].state() == State::Opening {
            self.opened_inbound(at, segment);
        }
        self.note_end(at, segment);
        if !is_verified {
            return;
        }
        let is_answered =
            self.note_inbound(at, segment) && self.acknowledge(at, segment, frame.head(), is_engaged, now);
        let flow = &mut self.flows[at];
        if !is_answered && flow.owes() && flow.is_probe(segment) {
            // The guest answers, whether it accepts the segment or not, and its answer is forwarded.
            flow.flags.set(Flags::ASKED);
        }
    }

    /// Notes the end of a segment that the guest may accept, so that its ACK is not taken for one of unsent data. Some
    /// guests accept a whole segment that only begins in their window, or in a window that they have shrunk since.
    fn note_end(&mut self, at: usize, segment: &Segment) {
        let flow = &mut self.flows[at];
        let is_open = !matches!(flow.state(), State::Free | State::Opening | State::EndToEnd);
        let (end, most) = (segment.end(), flow.edge.plus(FRAME as u32));
        let may_be_taken = !segment.seq.after(most) && !end.before(flow.guest_ack);
        // Nothing follows a FIN.
        if is_open && may_be_taken && !flow.has(Flags::FIN) {
            flow.delivered = flow.delivered.latest(if end.after(most) { most } else { end });
        }
    }

    /// Copies a frame into contiguous memory. Returns whether its checksums are right, if complete.
    fn verify<F: Frame + ?Sized>(&mut self, frame: &F, checksum: Checksum) -> bool {
        if frame.len() > FRAME {
            return false;
        }
        self.whole.clear();
        frame.append_to(&mut self.whole) && (checksum != Checksum::Present || checksum::verify(&self.whole) == Ok(true))
    }

    /// Notes the sender's state from a verified segment, and any anomaly. Returns whether the guest accepts the
    /// segment.
    fn note_inbound(&mut self, at: usize, segment: &Segment) -> bool {
        let flow = &mut self.flows[at];
        if matches!(flow.state(), State::Free | State::Opening | State::EndToEnd) || !flow.is_in_window(segment) {
            return false;
        }
        if segment.flags.contains(TcpFlags::RST) {
            // It needs no ACK (RFC 9293, 3.5.2).
            self.fall_back(at, Fallback::Reset);
            return false;
        }
        if !segment.flags.contains(TcpFlags::ACK) || !flow.accepts_ack(segment.ack) {
            return false;
        }
        flow.largest_window = flow.largest_window.max(u32::from(segment.window) << flow.sender_scale);
        if flow.retained() == 0 || !segment.ack.before(flow.sender_ack) {
            (flow.sender_ack, flow.sender_window) = (segment.ack, segment.window);
        }
        // The guest takes timestamps from segments in order (RFC 7323, 4.3), and so do we.
        if let Some((value, echo)) = segment.timestamps()
            && !segment.seq.after(flow.next)
            && value.wrapping_sub(flow.sender_stamp) as i32 >= 0
        {
            (flow.sender_stamp, flow.sender_echo) = (value, echo);
        }
        if segment.flags.contains(TcpFlags::FIN) && !flow.has(Flags::FIN) {
            // Nothing follows it, except that a sender may set FIN in data that it sent before.
            flow.delivered = segment.end().latest(flow.next);
            self.change(at, |flow| flow.flags.set(Flags::FIN));
        }
        if let Some(reason) = anomaly(segment) {
            self.fall_back(at, reason);
        }
        true
    }

    /// Acknowledges a segment early, if possible, or retains it until the guest has acknowledged the data before it.
    /// Returns whether it is acknowledged now.
    fn acknowledge(&mut self, at: usize, segment: &Segment, head: &[u8], is_engaged: bool, now: Nanos) -> bool {
        let flow = &self.flows[at];
        let is_open = matches!(flow.state(), State::Idle | State::Active | State::NoBuffer | State::UnexpectedSequence);
        let has_data = is_engaged && segment.payload > 0 && !segment.is_merged;
        let is_acknowledged =
            is_open && (self.is_repeat(at, segment) || (has_data && self.retain(at, segment, head, now)));
        if is_acknowledged {
            self.queue_frame(at);
        }
        is_acknowledged
    }

    /// Whether all of a segment was acknowledged early and is still retained: then the ACK was lost and is sent again.
    fn is_repeat(&self, at: usize, segment: &Segment) -> bool {
        let flow = &self.flows[at];
        let end = segment.seq.plus(segment.payload);
        let owes = flow.owes() && !flow.has(Flags::FROZEN);
        owes && !segment.seq.before(flow.guest_ack) && segment.seq.before(flow.acked) && !end.after(flow.acked)
    }

    /// Retains the data of a segment that was just verified, if it can be acknowledged early now or later. Returns
    /// whether it can be now.
    fn retain(&mut self, at: usize, segment: &Segment, head: &[u8], now: Nanos) -> bool {
        let flow = &mut self.flows[at];
        let guest = &mut self.guest;
        let end = segment.seq.plus(segment.payload);
        let begin = segment.seq.latest(flow.guest_ack);
        let is_chain = flow.retained() > 0;
        let next = if is_chain { flow.next } else { begin };
        if !end.after(next) {
            return false;
        }
        // The first copy holds the next data that the guest expects, or the last that was delivered.
        let fits = is_chain || begin == flow.guest_ack || end == flow.delivered;
        let is_after_fin = flow.has(Flags::FIN) && !end.before(flow.delivered);
        if segment.seq.after(next) || !fits || is_after_fin || !is_current(flow, segment) || segment.is_marked(head) {
            flow.step(Event::Gap);
            return false;
        }
        let bytes = end.since(next);
        let full = flow.retained() + bytes > self.config.flow_bytes
            || guest.retained + u64::from(bytes) > self.config.guest_bytes;
        if end.after(flow.edge) || full {
            flow.step(Event::Full);
            return false;
        }
        let data = &self.whole[segment.body()][next.since(segment.seq) as usize..];
        if !self.pool.append(at as u32, &mut flow.chain, next, data) {
            flow.step(Event::Full);
            return false;
        }
        if !is_chain {
            flow.start = next;
        }
        flow.next = end;
        segment.note_link(head, &mut flow.inbound_link);
        guest.retained += u64::from(bytes);
        // The guest itself must acknowledge the data before the first copy.
        if flow.start != flow.guest_ack || flow.next.after(flow.edge) {
            return false;
        }
        if !flow.owes() {
            (flow.resend, flow.recover) = (flow.guest_ack, flow.guest_ack);
            flow.deadline = (now + RETRANSMIT).0;
            self.schedule(at);
        }
        let flow = &mut self.flows[at];
        flow.acked = end;
        flow.step(Event::Acknowledged);
        true
    }

    /// Queues a frame for outside: one per flow, however often this is called before it is sent.
    pub(super) fn queue_frame(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        if !flow.has(Flags::PENDING) {
            flow.flags.set(Flags::PENDING);
            self.pending.push_back(at as u32);
        }
    }

    /// Whether frames wait to be sent.
    #[inline]
    pub fn has_acks(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next frame for outside: an early ACK of everything that can be acknowledged by now, or a reset. A flow has
    /// at most one frame waiting.
    pub fn next_ack(&mut self) -> Option<&[u8]> {
        let at = loop {
            let at = self.pending.pop_front()? as usize;
            let flow = &mut self.flows[at];
            let is_waiting = flow.has(Flags::PENDING) && !matches!(flow.state(), State::Free | State::EndToEnd);
            flow.flags.clear(Flags::PENDING);
            if is_waiting {
                break at;
            }
        };
        if self.flows[at].has(Flags::RESET) {
            self.write_reset(at, false);
        } else {
            self.write_ack(at);
        }
        Some(&self.out)
    }

    /// Writes an ACK of everything acknowledged early.
    fn write_ack(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let window = flow.window(flow.acked, flow.edge);
        flow.advertised = flow.acked.plus(u32::from(window) << flow.scale);
        flow.early_acks = flow.early_acks.wrapping_add(1);
        flow.flags.clear(Flags::ASKED);
        self.stats.early_acks += 1;
        let ack = Compose {
            link: flow.outbound_link.bytes(),
            source: flow.key.inside(),
            destination: flow.key.outside(),
            sequence: flow.guest_next.0,
            acknowledgment: flow.acked.0,
            flags: TcpFlags::ACK,
            window,
            timestamps: flow.stamps().then_some((flow.guest_stamp, flow.sender_stamp)),
        };
        ack.write(&mut self.out, |_| {});
    }
}

/// The reason why a segment to the guest makes its flow end-to-end, if any.
pub(super) fn anomaly(segment: &Segment) -> Option<Fallback> {
    match segment.flags {
        flags if flags.contains(TcpFlags::RST) => Some(Fallback::Reset),
        flags if flags.contains(TcpFlags::URG) => Some(Fallback::Urgent),
        _ => (!segment.is_sound).then_some(Fallback::Options),
    }
}

/// Whether a segment's timestamp shows that it is no old duplicate (RFC 7323, 5.2).
fn is_current(flow: &super::Flow, segment: &Segment) -> bool {
    match segment.timestamps() {
        Some((value, _)) => !flow.stamps() || value.wrapping_sub(flow.sender_stamp) as i32 >= 0,
        None => !flow.stamps(),
    }
}
