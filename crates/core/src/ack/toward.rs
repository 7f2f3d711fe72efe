//! What was put into a guest's ring: noted, retained, acknowledged early.

use super::flags::Flags;
use super::machine::Event;
use super::segment::Segment;
use super::{EarlyAck, FRAME, Fallback, Frame, LookupBatch, RETRANSMIT, State};
use crate::packet::{Checksum, Compose, TcpFlags, checksum};
use crate::time::Nanos;

impl EarlyAck<'_> {
    /// Notes a frame that was put into the guest's ring, as it was [looked at](EarlyAck::look). If it may be acknowledged early,
    /// that is what [`EarlyAck::next_ack`] has next: for outside, at once, before what the guest sends later.
    ///
    /// Every frame of a burst in which something is to be noted is told, once and in order; what was dropped instead is not.
    pub fn delivered<F: Frame + ?Sized>(&mut self, sight: &LookupBatch, frame: &F, checksum: Checksum, now: Nanos) {
        let Some((segment, at)) = self.recall(sight) else { return };
        if segment.flags.contains(TcpFlags::SYN) {
            // What it says holds for all of its connection.
            if self.verify(frame, checksum) {
                self.syn_toward(segment, frame.head(), now);
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
            return self.learn_toward(at, segment);
        }
        if self.flows[at].state() == State::Opening {
            self.opened_toward(at, segment);
        }
        self.note_end(at, segment);
        if !is_verified {
            return;
        }
        let is_answered = self.note_toward(at, segment) && self.acknowledge(at, segment, frame.head(), is_engaged, now);
        let flow = &mut self.flows[at];
        if !is_answered && flow.owes() && flow.is_probe(segment) {
            // The guest answers, whether it takes the segment or not, and is heard.
            flow.flags.set(Flags::ASKED);
        }
    }

    /// Notes where a segment ends that the guest may take, so that its ACK of it is none of what was never sent. Some take a segment
    /// whole that only begins in their window, or begins in one that they have taken back.
    fn note_end(&mut self, at: usize, segment: &Segment) {
        let flow = &mut self.flows[at];
        let is_open = !matches!(flow.state(), State::Free | State::Opening | State::EndToEnd);
        let (end, most) = (segment.end(), flow.edge.plus(FRAME as u32));
        let may_be_taken = !segment.seq.after(most) && !end.before(flow.guest_ack);
        // Nothing comes behind a FIN.
        if is_open && may_be_taken && !flow.has(Flags::FIN) {
            flow.seen = flow.seen.latest(if end.after(most) { most } else { end });
        }
    }

    /// Reads a frame in one piece. Whether its checksums are right, as far as they are there.
    fn verify<F: Frame + ?Sized>(&mut self, frame: &F, checksum: Checksum) -> bool {
        if frame.len() > FRAME {
            return false;
        }
        self.whole.clear();
        frame.append_to(&mut self.whole) && (checksum != Checksum::Present || checksum::verify(&self.whole) == Ok(true))
    }

    /// Notes what a verified segment says of its sender, and what is wrong with it. Whether the guest takes what is in it.
    fn note_toward(&mut self, at: usize, segment: &Segment) -> bool {
        let flow = &mut self.flows[at];
        if matches!(flow.state(), State::Free | State::Opening | State::EndToEnd) || !flow.is_in_window(segment) {
            return false;
        }
        if segment.flags.contains(TcpFlags::RST) {
            // It needs no ACK (RFC 9293, 3.5.2).
            self.fall_back(at, Fallback::Reset);
            return false;
        }
        if !segment.flags.contains(TcpFlags::ACK) || !flow.takes_ack(segment.ack) {
            return false;
        }
        flow.largest_window = flow.largest_window.max(u32::from(segment.window) << flow.sender_scale);
        if flow.retained() == 0 || !segment.ack.before(flow.sender_ack) {
            (flow.sender_ack, flow.sender_window) = (segment.ack, segment.window);
        }
        // The guest's latest is of what comes in order (RFC 7323, 4.3), and so is ours.
        if let Some((value, echo)) = segment.timestamps()
            && !segment.seq.after(flow.next)
            && value.wrapping_sub(flow.sender_stamp) as i32 >= 0
        {
            (flow.sender_stamp, flow.sender_echo) = (value, echo);
        }
        if segment.flags.contains(TcpFlags::FIN) && !flow.has(Flags::FIN) {
            // Nothing comes behind it, but where a sender says so of what it sent already.
            flow.seen = segment.end().latest(flow.next);
            self.change(at, |flow| flow.flags.set(Flags::FIN));
        }
        if let Some(reason) = anomaly(segment) {
            self.fall_back(at, reason);
        }
        true
    }

    /// Has a segment acknowledged, now or when the guest did so with what comes before it. Whether it is now.
    fn acknowledge(&mut self, at: usize, segment: &Segment, head: &[u8], is_engaged: bool, now: Nanos) -> bool {
        let flow = &self.flows[at];
        let takes = matches!(flow.state(), State::Idle | State::Active | State::NoBuffer | State::UnexpectedSequence);
        let has_data = is_engaged && segment.payload > 0 && !segment.is_several;
        let early = takes && (self.is_told_of(at, segment) || (has_data && self.retain(at, segment, head, now)));
        if early {
            self.pend(at);
        }
        early
    }

    /// Whether all of a segment was acknowledged early already, and is retained yet: then the ACK was lost, and is said again.
    fn is_told_of(&self, at: usize, segment: &Segment) -> bool {
        let flow = &self.flows[at];
        let end = segment.seq.plus(segment.payload);
        let owes = flow.owes() && !flow.has(Flags::FROZEN);
        owes && !segment.seq.before(flow.guest_ack) && segment.seq.before(flow.acked) && !end.after(flow.acked)
    }

    /// Retains the data of a segment that was just verified, if they may be acknowledged one day. Whether they may be now.
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
        // A first copy is of what the guest waits for, or of what nothing delivered comes behind.
        let fits = is_chain || begin == flow.guest_ack || end == flow.seen;
        let is_behind_fin = flow.has(Flags::FIN) && !end.before(flow.seen);
        if segment.seq.after(next) || !fits || is_behind_fin || !is_current(flow, segment) || segment.is_marked(head) {
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
        segment.note_link(head, &mut flow.toward);
        guest.retained += u64::from(bytes);
        // What came before the first copy is the guest's to acknowledge.
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

    /// Has a frame go out for a flow: one, however often it is asked for until it goes.
    pub(super) fn pend(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        if !flow.has(Flags::PENDING) {
            flow.flags.set(Flags::PENDING);
            self.pending.push_back(at as u32);
        }
    }

    /// Whether frames wait to go out.
    #[inline]
    pub fn has_acks(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next frame for outside: an early ACK of all that may be acknowledged by now, or a reset. It is a flow's only one, so
    /// none displaces another's.
    pub fn next_ack(&mut self) -> Option<&[u8]> {
        let at = loop {
            let at = self.pending.pop_front()? as usize;
            let flow = &mut self.flows[at];
            let waits = flow.has(Flags::PENDING) && !matches!(flow.state(), State::Free | State::EndToEnd);
            flow.flags.clear(Flags::PENDING);
            if waits {
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

    /// Writes the ACK of all that was acknowledged early.
    fn write_ack(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let window = flow.window(flow.acked, flow.edge);
        flow.told = flow.acked.plus(u32::from(window) << flow.scale);
        flow.early_acks = flow.early_acks.wrapping_add(1);
        flow.flags.clear(Flags::ASKED);
        self.stats.early_acks += 1;
        let ack = Compose {
            link: flow.from.bytes(),
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

/// What about a segment for a guest leaves its flow to its ends.
pub(super) fn anomaly(segment: &Segment) -> Option<Fallback> {
    match segment.flags {
        flags if flags.contains(TcpFlags::RST) => Some(Fallback::Reset),
        flags if flags.contains(TcpFlags::URG) => Some(Fallback::Urgent),
        _ => (!segment.is_sound).then_some(Fallback::Options),
    }
}

/// Whether a segment is no old duplicate, by its timestamp (RFC 7323, 5.2).
fn is_current(flow: &super::Flow, segment: &Segment) -> bool {
    match segment.timestamps() {
        Some((value, _)) => !flow.stamps() || value.wrapping_sub(flow.sender_stamp) as i32 >= 0,
        None => !flow.stamps(),
    }
}
