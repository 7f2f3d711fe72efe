//! Brings to the guest what was acknowledged for it and did not stay: by a timer, and on the guest's equal ACKs.

use super::flags::Flags;
use super::machine::Event;
use super::segment::Segment;
use super::sequence::Seq;
use super::{EarlyAck, Fallback, Verdict};
use crate::packet::{Compose, TcpFlags};
use crate::time::Nanos;

/// How long the guest's ACK is waited for before the first retransmission; each further one waits twice as long. Linux's
/// least timeout: a guest that runs answers within its delayed ACK's 40 ms. Time in which the ring stands still does not count.
pub const RETRANSMIT: Nanos = Nanos::from_millis(200);

/// The longest wait between two retransmissions.
const LONGEST: Nanos = Nanos::from_millis(30_000);

/// Retransmissions after which a guest that runs and does not take the data is given up: 111 s, and RFC 9293, 3.8.3 asks for
/// 100 s at least.
pub const GIVE_UP: u8 = 10;

/// Segments of one round.
const ROUND: u32 = 2;

/// How often both ends are reset unasked; they are again whenever they say something.
const RESETS: u8 = 5;

/// How long after the first reset the second goes; each further one waits twice as long.
const RESET_AGAIN: Nanos = Nanos::from_millis(1_000);

/// A flow before a frame of it was sent to the guest.
#[derive(Clone, Copy)]
pub struct Attempt {
    at: u32,
    resend: Seq,
    recover: Seq,
    tries: u8,
}

impl EarlyAck<'_> {
    /// When [`EarlyAck::on_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Nanos {
        self.timers.peek().map_or(Nanos::NEVER, |(at, _)| at)
    }

    /// The next frame that is due in the guest's ring, all its checksums complete; none if nothing is, or nothing more. If the ring has no
    /// room for it, that is to be [said](EarlyAck::refused).
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

    /// The last frame found no room in the guest's ring: it was no try, and goes again later.
    pub fn refused(&mut self, now: Nanos) {
        let Some(Attempt { at, resend, recover, tries }) = self.attempt.take() else { return };
        let flow = &mut self.flows[at as usize];
        (flow.resend, flow.recover, flow.tries) = (resend, recover, tries);
        flow.deadline = (now + RETRANSMIT).0;
        self.timers.remove(at);
        self.timers.push(at, Nanos(flow.deadline));
    }

    /// Has the timer of a flow run out at its deadline, or before: it is looked at again then.
    pub(super) fn schedule(&mut self, at: usize) {
        let (number, deadline) = (at as u32, Nanos(self.flows[at].deadline));
        if self.timers.time_of(number).is_some_and(|time| time <= deadline) {
            return;
        }
        self.timers.remove(number);
        self.timers.push(number, deadline);
    }

    /// The guest answers, and takes nothing: it may do so for ever (RFC 9293, 3.8.6.1), so it is asked less often, and not
    /// given up.
    pub(super) fn answered_closed(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        flow.tries = flow.tries.min(GIVE_UP - 1);
    }

    /// Writes the next segment of a round, and says when the one after it is due.
    fn retransmit(&mut self, at: usize, now: Nanos) {
        let flow = &mut self.flows[at];
        let begins = !flow.resend.after(flow.guest_ack) || flow.resend.after(flow.acked);
        if begins {
            (flow.resend, flow.recover) = (flow.guest_ack, flow.acked);
            flow.tries += 1;
        }
        let mss = u32::from(flow.mss);
        let len = flow.acked.since(flow.resend).min(mss);
        let segment = Compose {
            link: flow.toward.bytes(),
            source: flow.key.outside(),
            destination: flow.key.inside(),
            sequence: flow.resend.0,
            acknowledgment: flow.sender_ack.0,
            flags: TcpFlags::ACK.with(TcpFlags::PSH),
            window: flow.sender_window,
            // The latest, not the copied segment's: the guest may have seen later ones (PAWS, RFC 7323, 5.3).
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
            flow.deadline = (now + wait.min(LONGEST)).0;
        }
    }

    /// Resets both ends, as the sender was told that its data arrived: a clear failure, not a silent one. The flow stays for a while,
    /// as either may not hear of it at once.
    fn give_up(&mut self, at: usize, now: Nanos) {
        self.change(at, |flow| {
            flow.fallback = Fallback::GaveUp.number();
            flow.flags.set(Flags::RESET);
            flow.step(Event::GivenUp);
            flow.tries = 0;
            flow.deadline = now.0;
            // Just the number that the sender expects, unless it says another.
            flow.sender_ack = flow.guest_next;
        });
        self.give_up_copies(at);
        self.stats.fell_back(Fallback::GaveUp);
        self.stats.resets += 1;
        self.schedule(at);
    }

    /// Resets both ends, and later once more.
    fn reset_both(&mut self, at: usize, now: Nanos) {
        self.pend(at);
        self.write_reset(at, true);
        let flow = &mut self.flows[at];
        flow.tries = flow.tries.saturating_add(1);
        if flow.tries < RESETS {
            flow.deadline = (now + Nanos(RESET_AGAIN.0 << (flow.tries - 1))).0;
            self.schedule(at);
        }
    }

    /// The sender goes on after it was reset, and is reset again: it did not hear, or did not believe it (RFC 5961, 3.2).
    #[cold]
    pub(super) fn reset_again(&mut self, at: usize, segment: &Segment) {
        if segment.flags.contains(TcpFlags::RST) {
            return;
        }
        if segment.flags.contains(TcpFlags::ACK) {
            self.flows[at].sender_ack = segment.ack;
        }
        self.pend(at);
    }

    /// The guest goes on after it was reset, and is reset again. Nothing of it goes out but a reset of its own.
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

    /// Writes a reset with just the number that is expected, or it is not believed (RFC 5961, 3.2).
    pub(super) fn write_reset(&mut self, at: usize, to_guest: bool) {
        let flow = &self.flows[at];
        let (link, source, destination) = if to_guest {
            (flow.toward.bytes(), flow.key.outside(), flow.key.inside())
        } else {
            (flow.from.bytes(), flow.key.inside(), flow.key.outside())
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
