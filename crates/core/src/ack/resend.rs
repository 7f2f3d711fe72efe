//! Retransmits to the guest what was acknowledged early: by a timer, and on the guest's duplicate ACKs.

use super::flags::Flags;
use super::machine::Event;
use super::segment::Segment;
use super::sequence::Seq;
use super::{EarlyAck, Fallback, Verdict};
use crate::packet::{Compose, TcpFlags};
use crate::time::Nanos;

/// The timeout of the first retransmission; it doubles with each further one. This is Linux's least timeout: a running
/// guest answers within the 40 ms of a delayed ACK. Time in which the ring makes no progress does not count.
pub const RETRANSMIT: Nanos = Nanos::from_millis(200);

/// The longest timeout between two retransmissions.
const MAX_TIMEOUT: Nanos = Nanos::from_millis(30_000);

/// Retransmissions after which a running guest that does not accept the data is given up: 111 s, where RFC 9293, 3.8.3
/// requires at least 100 s.
pub const GIVE_UP: u8 = 10;

/// Segments per round of retransmission.
const ROUND: u32 = 2;

/// How many resets both ends get without having sent a segment.
const RESETS: u8 = 5;

/// The time between the first and the second reset; it doubles with each further one.
const RESET_AGAIN: Nanos = Nanos::from_millis(1_000);

/// The state of a flow before its last retransmission.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    at: u32,
    resend: Seq,
    recover: Seq,
    tries: u8,
}

impl EarlyAck<'_> {
    /// When [`EarlyAck::on_timeout`] must be called.
    pub fn poll_timeout(&self) -> Nanos {
        self.timers.peek().map_or(Nanos::NEVER, |(at, _)| at)
    }

    /// The next frame that is due to be put into the guest's ring, with complete checksums; `None` if no more are due.
    /// If the ring has no room for it, the caller must call [`EarlyAck::refused`].
    pub fn on_timeout(&mut self, now: Nanos) -> Option<&[u8]> {
        while let Some((_, at)) = self.timers.pop_until(now) {
            let at = at as usize;
            let flow = &mut self.flows[at];
            self.attempt =
                Some(Attempt { at: at as u32, resend: flow.resend, recover: flow.recover, tries: flow.tries });
            if flow.has(Flags::RESET) {
                self.reset_both(at, now);
                return Some(&self.out);
            }
            if !flow.owes() {
                continue;
            }
            if self.guest.stalls(now) {
                flow.deadline = flow.deadline.max((now + RETRANSMIT).0);
            }
            let deadline = Nanos(flow.deadline);
            if deadline > now {
                self.timers.push(at as u32, deadline);
                continue;
            }
            if flow.tries >= GIVE_UP || !flow.holds() {
                self.give_up(at, now);
                continue;
            }
            self.retransmit(at, now);
            self.timers.push(at as u32, Nanos(self.flows[at].deadline));
            return Some(&self.out);
        }
        None
    }

    /// Reports that the guest's ring had no room for the last frame: it does not count as a try and is sent again
    /// later.
    pub fn refused(&mut self, now: Nanos) {
        let Some(Attempt { at, resend, recover, tries }) = self.attempt.take() else { return };
        let flow = &mut self.flows[at as usize];
        (flow.resend, flow.recover, flow.tries) = (resend, recover, tries);
        flow.deadline = (now + RETRANSMIT).0;
        self.timers.remove(at);
        self.timers.push(at, Nanos(flow.deadline));
    }

    /// Sets the timer of a flow to its deadline, unless the timer expires earlier; the deadline is then checked again.
    pub(super) fn schedule(&mut self, at: usize) {
        let (number, deadline) = (at as u32, Nanos(self.flows[at].deadline));
        if self.timers.time_of(number).is_some_and(|time| time <= deadline) {
            return;
        }
        self.timers.remove(number);
        self.timers.push(number, deadline);
    }

    /// The guest answers with a closed window. It may do so for ever (RFC 9293, 3.8.6.1), so it is probed less often
    /// but not given up.
    pub(super) fn answered_closed(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        flow.tries = flow.tries.min(GIVE_UP - 1);
    }

    /// Writes the next segment of a round, and sets the deadline of the one after it.
    fn retransmit(&mut self, at: usize, now: Nanos) {
        let flow = &mut self.flows[at];
        let starts_round = !flow.resend.after(flow.guest_ack) || flow.resend.after(flow.acked);
        if starts_round {
            (flow.resend, flow.recover) = (flow.guest_ack, flow.acked);
            flow.tries += 1;
        }
        let mss = u32::from(flow.mss);
        let len = flow.acked.since(flow.resend).min(mss);
        let segment = Compose {
            link: flow.inbound_link.bytes(),
            source: flow.key.outside(),
            destination: flow.key.inside(),
            sequence: flow.resend.0,
            acknowledgment: flow.sender_ack.0,
            flags: TcpFlags::ACK.with(TcpFlags::PSH),
            window: flow.sender_window,
            // The latest timestamps, not the original segment's: the guest may have seen later ones (PAWS, RFC 7323,
            // 5.3).
            timestamps: flow.stamps().then_some((flow.sender_stamp, flow.sender_echo)),
        };
        let (pool, chain, from) = (&self.pool, flow.chain, flow.resend);
        segment.write(&mut self.out, |out| pool.copy(chain, from, len as usize, out));
        flow.resend = flow.resend.plus(len);
        flow.retransmissions = flow.retransmissions.wrapping_add(1);
        self.stats.retransmissions += 1;

        let next = flow.resend.plus(flow.acked.since(flow.resend).min(mss));
        let more =
            flow.resend != flow.acked && flow.resend.since(flow.guest_ack) < ROUND * mss && !next.after(flow.edge);
        if more {
            flow.deadline = now.0;
        } else {
            flow.resend = flow.guest_ack;
            let wait = Nanos(RETRANSMIT.0 << flow.tries.saturating_sub(1).min(16));
            flow.deadline = (now + wait.min(MAX_TIMEOUT)).0;
        }
    }

    /// Resets both ends, as the sender got ACKs for data that the guest does not accept: a failure must not be silent.
    /// The flow stays for a while, as a reset may be lost.
    fn give_up(&mut self, at: usize, now: Nanos) {
        self.change(at, |flow| {
            flow.fallback = Fallback::GaveUp.number();
            flow.flags.set(Flags::RESET);
            flow.step(Event::GivenUp);
            flow.tries = 0;
            flow.deadline = now.0;
            // The exact number that the sender expects, unless it sends another.
            flow.sender_ack = flow.guest_next;
        });
        self.drop_copies(at);
        self.stats.fell_back(Fallback::GaveUp);
        self.stats.resets += 1;
        self.schedule(at);
    }

    /// Resets both ends, and schedules the next reset.
    fn reset_both(&mut self, at: usize, now: Nanos) {
        self.queue_frame(at);
        self.write_reset(at, true);
        let flow = &mut self.flows[at];
        flow.tries = flow.tries.saturating_add(1);
        if flow.tries < RESETS {
            flow.deadline = (now + Nanos(RESET_AGAIN.0 << (flow.tries - 1))).0;
            self.schedule(at);
        }
    }

    /// Resets the sender again when it continues after a reset, which was lost or not accepted (RFC 5961, 3.2).
    #[cold]
    pub(super) fn reset_again(&mut self, at: usize, segment: &Segment) {
        if segment.flags.contains(TcpFlags::RST) {
            return;
        }
        if segment.flags.contains(TcpFlags::ACK) {
            self.flows[at].sender_ack = segment.ack;
        }
        self.queue_frame(at);
    }

    /// Resets the guest again when it continues after a reset. Of its frames only its own resets are forwarded.
    #[cold]
    pub(super) fn reset_guest_again(&mut self, at: usize, segment: &Segment, now: Nanos) -> Verdict {
        if segment.flags.contains(TcpFlags::RST) {
            return Verdict::Pass;
        }
        let flow = &mut self.flows[at];
        if segment.flags.contains(TcpFlags::ACK) {
            flow.guest_ack = segment.ack;
        }
        (flow.tries, flow.deadline) = (RESETS - 1, now.0);
        self.schedule(at);
        Verdict::Drop
    }

    /// Writes a reset with the exact number that is expected, as no other is accepted (RFC 5961, 3.2).
    pub(super) fn write_reset(&mut self, at: usize, to_guest: bool) {
        let flow = &self.flows[at];
        let (link, source, destination) = if to_guest {
            (flow.inbound_link.bytes(), flow.key.outside(), flow.key.inside())
        } else {
            (flow.outbound_link.bytes(), flow.key.inside(), flow.key.outside())
        };
        let (sequence, acknowledgment) =
            if to_guest { (flow.guest_ack, flow.guest_next) } else { (flow.sender_ack, flow.acked) };
        let reset = Compose {
            link,
            source,
            destination,
            sequence: sequence.0,
            acknowledgment: acknowledgment.0,
            flags: TcpFlags::RST.with(TcpFlags::ACK),
            window: 0,
            timestamps: None,
        };
        reset.write(&mut self.out, |_| {});
    }
}
