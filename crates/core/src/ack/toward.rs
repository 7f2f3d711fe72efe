//! What was put into a guest's ring: noted, retained, acknowledged early.

use super::flow::FIN;
use super::segment::Segment;
use super::{EarlyAck, FRAME, Fallback, Frame, RETRANSMIT, Sight, State, are_near};
use crate::packet::{Checksum, Compose, TcpFlags, checksum};
use crate::time::Nanos;

impl EarlyAck<'_> {
    /// Notes a frame that was put into a guest's ring, as it was [looked at](EarlyAck::look). Returns the ACK to be sent where
    /// the frame came from, if it may be acknowledged early: at once, before what the guest sends later.
    ///
    /// Every frame of a burst in which something is to be noted is told, once and in order; what was dropped instead is not.
    pub fn delivered<F: Frame + ?Sized>(
        &mut self,
        sight: &Sight,
        frame: &F,
        checksum: Checksum,
        now: Nanos,
    ) -> Option<&[u8]> {
        let (segment, at) = self.recall(sight)?;
        if segment.flags.contains(TcpFlags::SYN) {
            self.syn_toward(segment, frame.head(), now);
            return None;
        }
        let at = at?;
        if self.learns(at) {
            self.learn_toward(at, segment);
            return None;
        }
        let is_sound = self.note_toward(at, segment);
        let flow = &self.flows[at];
        let takes = matches!(flow.state(), State::Idle | State::Active | State::NoBuffer | State::UnexpectedSequence);
        let is_engaged = self.guests[segment.key.guest as usize].is_engaged(now);
        if !is_sound || !takes || !is_engaged || segment.payload == 0 || segment.is_several {
            return None;
        }
        let early = self.is_told_of(at, segment) || self.retain(at, segment, frame, checksum, now);
        early.then(|| self.early_ack(at, segment))
    }

    /// Notes what a segment says of its sender, and what is wrong with it. Whether it can be of this connection.
    fn note_toward(&mut self, at: usize, segment: &Segment) -> bool {
        let flow = &mut self.flows[at];
        if flow.state() == State::Opening {
            self.opened_toward(at, segment);
        }
        let flow = &mut self.flows[at];
        let state = flow.state();
        let plausible = are_near(segment.end(), flow.guest_ack) && are_near(segment.ack, flow.guest_next);
        if matches!(state, State::Free | State::Opening | State::EndToEnd)
            || !plausible
            || !segment.flags.contains(TcpFlags::ACK)
        {
            // A reset needs no ACK (RFC 9293, 3.5.2).
            if segment.flags.contains(TcpFlags::RST) && state != State::Free && plausible {
                self.fall_back(at, Fallback::Reset);
            }
            return false;
        }
        flow.seen = flow.seen.latest(segment.end());
        if !segment.ack.before(flow.sender_ack) {
            (flow.sender_ack, flow.sender_window) = (segment.ack, segment.window);
        }
        if let Some((value, echo)) = segment.timestamps()
            && value.wrapping_sub(flow.sender_stamp) as i32 >= 0
        {
            (flow.sender_stamp, flow.sender_echo) = (value, echo);
        }
        if segment.flags.contains(TcpFlags::FIN) {
            self.change(at, |flow| flow.flags |= FIN);
        }
        if let Some(reason) = anomaly(segment) {
            self.fall_back(at, reason);
        }
        true
    }

    /// Whether all of a segment was acknowledged early already, and is retained yet: then the ACK was lost, and is said again.
    fn is_told_of(&self, at: usize, segment: &Segment) -> bool {
        let flow = &self.flows[at];
        let end = segment.seq.plus(segment.payload);
        flow.owes() && !segment.seq.before(flow.guest_ack) && !end.after(flow.acked)
    }

    /// Retains the data of a segment, if they may be acknowledged one day. Whether they may be now.
    fn retain<F: Frame + ?Sized>(
        &mut self,
        at: usize,
        segment: &Segment,
        frame: &F,
        checksum: Checksum,
        now: Nanos,
    ) -> bool {
        let flow = &mut self.flows[at];
        let guest = &mut self.guests[flow.key.guest as usize];
        let end = segment.seq.plus(segment.payload);
        let begin = segment.seq.latest(flow.guest_ack);
        let is_chain = flow.retained() > 0;
        let next = if is_chain { flow.next } else { begin };
        if !end.after(next) {
            return false;
        }
        // A first copy is of what the guest waits for, or of what nothing delivered comes behind.
        let fits = is_chain || begin == flow.guest_ack || end == flow.seen;
        if segment.seq.after(next) || !fits || !is_current(flow, segment) {
            flow.set(State::UnexpectedSequence);
            return false;
        }
        let bytes = end.since(next);
        let full = flow.retained() + bytes > self.config.flow_bytes
            || guest.retained + u64::from(bytes) > self.config.guest_bytes;
        if end.after(flow.edge) || full || frame.len() > FRAME {
            flow.set(State::NoBuffer);
            return false;
        }
        self.whole.clear();
        frame.append_to(&mut self.whole);
        if checksum == Checksum::Present && checksum::verify(&self.whole) != Ok(true) {
            return false;
        }
        let data = &self.whole[segment.body()][next.since(segment.seq) as usize..];
        if !self.pool.append(at as u32, &mut flow.chain, next, data) {
            flow.set(State::NoBuffer);
            return false;
        }
        if !is_chain {
            flow.start = next;
        }
        flow.next = end;
        flow.toward = segment.link(frame.head());
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
        flow.set(State::Active);
        true
    }

    /// Writes the ACK of all that was acknowledged early.
    fn early_ack(&mut self, at: usize, segment: &Segment) -> &[u8] {
        let flow = &mut self.flows[at];
        let window = flow.window(flow.acked, flow.edge);
        flow.told = flow.acked.plus(u32::from(window) << flow.scale);
        flow.early_acks = flow.early_acks.wrapping_add(1);
        self.stats.early_acks += 1;
        let echo = segment.timestamps().map_or(0, |(value, _)| value);
        let ack = Compose {
            link: flow.from.bytes(),
            source: flow.key.inside(),
            destination: flow.key.outside(),
            sequence: flow.guest_next.0,
            acknowledgment: flow.acked.0,
            flags: TcpFlags::ACK,
            window,
            timestamps: flow.stamps().then_some((flow.guest_stamp, echo)),
        };
        ack.write(&mut self.out, |_| {});
        &self.out
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

/// Whether a segment is no old duplicate, by its timestamp (RFC 7323, 5.2; stricter: beside the latest that was seen).
fn is_current(flow: &super::Flow, segment: &Segment) -> bool {
    match segment.timestamps() {
        Some((value, _)) => !flow.stamps() || value.wrapping_sub(flow.sender_stamp) as i32 >= 0,
        None => !flow.stamps(),
    }
}
