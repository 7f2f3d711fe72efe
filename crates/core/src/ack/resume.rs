//! Goes on where a process ended: what it left in the caller's memory is checked, and what is sound of it is taken up.

use super::flow::{LEARNS, MARKED};
use super::pool::Chain;
use super::{Config, EarlyAck, Fallback, Flow, Memory, Mode, State, seconds};
use crate::PortId;
use crate::time::Nanos;

impl<'m> EarlyAck<'m> {
    /// Takes up the flows and copies that are in the memory, of guests that are [attached](EarlyAck::attach) anew by their old
    /// numbers: those in `guests`.
    ///
    /// A process may have ended at any point. Copies are counted after they are made, and flows let go of blocks before they
    /// are freed, so a flow that stood between two steps is sound as it was before or after. A flow that is not sound, because
    /// the memory was written by someone else, is dropped; its sender is reset if it was told of bytes that are lost.
    pub fn resume(memory: Memory<'m>, config: Config, guests: &[(PortId, Mode)], now: Nanos) -> EarlyAck<'m> {
        let mut early = EarlyAck::empty(memory, config);
        for (guest, mode) in guests {
            early.attach(*guest, *mode);
        }
        let mut kept = vec![false; early.pool.len()];
        for at in (0..early.flows.len()).rev() {
            let flow = early.flows[at];
            let known = guests.iter().any(|(guest, _)| guest.0 == flow.key.guest);
            if flow.state() == State::Free || !known || early.find(&flow.key).is_some() {
                early.flows[at] = Flow::default();
                early.free.push(at as u32);
                continue;
            }
            early.index.insert(flow.key.hash(config.seed), at);
            early.guests[flow.key.guest as usize].flows += 1;
            early.take_up(at, &mut kept, now);
        }
        early.pool.sweep(&kept);
        early
    }

    /// Takes up one flow, whose guest is known.
    fn take_up(&mut self, at: usize, kept: &mut [bool], now: Nanos) {
        let flow = &mut self.flows[at];
        // The clock may be another one.
        (flow.heard, flow.deadline) = (seconds(now), now.0);
        flow.scale = flow.scale.min(14);
        flow.mss = flow.mss.clamp(1, 8960);
        flow.resend = flow.guest_ack;
        // What was judged last may not have gone out, and is judged again: it is news once more.
        flow.told = flow.acked;
        let ordered = !flow.start.before(flow.guest_ack) && !flow.start.after(flow.next);
        let covered = !flow.owes() || (flow.start == flow.guest_ack && flow.holds());
        let chain =
            if ordered && covered { self.pool.check(at as u32, flow.chain, flow.start, flow.next, kept) } else { None };
        match chain {
            Some(chain) => flow.chain = chain,
            None => {
                (flow.chain, flow.start, flow.next) = (Chain::EMPTY, flow.guest_ack, flow.guest_ack);
                flow.fallback = Fallback::Damaged.number();
                flow.set(if flow.owes() { State::Draining } else { State::EndToEnd });
                self.stats.fell_back(Fallback::Damaged);
            }
        }
        // Segments of others may have come by that were not noted.
        flow.epoch = 0;
        flow.flags = flow.flags & !MARKED | if flow.retained() == 0 { LEARNS } else { 0 };
        let guest = &mut self.guests[flow.key.guest as usize];
        guest.retained += u64::from(flow.retained());
        guest.unsettled += u32::from(flow.is_unsettled());
        if flow.owes() {
            self.schedule(at);
        }
    }
}
