//! Goes on where a process ended: what it left in the caller's memory is checked, and what is sound of it is taken up.

use super::flags::Flags;
use super::handshake::SCALE;
use super::machine::Event;
use super::pool::Chain;
use super::{Config, EarlyAck, Fallback, Flow, Memory, Mode, State, seconds};
use crate::time::Nanos;

impl<'m> EarlyAck<'m> {
    /// Takes up the flows and copies that are in the memory.
    ///
    /// A process may have ended at any store. Every block says whose it is and what it has, and a flow's numbers are stored in the
    /// order in which each is true, so a flow that stood between two stores is sound as it was before or after. A flow that is
    /// not sound, because the memory was written by someone else, is dropped; its sender is reset if it was told of bytes that are lost.
    pub fn resume(memory: Memory<'m>, config: Config, mode: Mode, now: Nanos) -> EarlyAck<'m> {
        let mut early = EarlyAck::empty(memory, config, mode);
        let mut kept = vec![false; early.pool.len()];
        let owned = early.pool.owned();
        for at in (0..early.flows.len()).rev() {
            let flow = early.flows[at];
            if flow.state() == State::Free || early.find(&flow.key).is_some() {
                early.flows[at] = Flow::default();
                early.free.push(at as u32);
                continue;
            }
            early.index.insert(flow.key.hash(&early.secrets), at);
            early.guest.flows += 1;
            let begin = owned.partition_point(|(owner, _)| *owner < at as u32);
            let len = owned[begin..].partition_point(|(owner, _)| *owner == at as u32);
            early.take_up(at, &owned[begin..begin + len], &mut kept, now);
        }
        early.pool.sweep(&kept);
        early.set_mode(mode);
        early
    }

    /// Takes up one flow with the blocks that say they are its.
    fn take_up(&mut self, at: usize, owned: &[(u32, u32)], kept: &mut [bool], now: Nanos) {
        let flow = &mut self.flows[at];
        // The clock may be another one.
        (flow.heard, flow.deadline) = (seconds(now), now.0);
        (flow.scale, flow.sender_scale) = (flow.scale.min(SCALE), flow.sender_scale.min(SCALE));
        flow.mss = flow.mss.clamp(1, 8960);
        let begins = flow.state() == State::Opening;
        flow.acked = if begins { flow.guest_ack } else { flow.acked.latest(flow.guest_ack) };
        flow.resend = flow.guest_ack;
        // What was judged last may not have gone out, and is judged again: it is news once more.
        flow.told = flow.acked;
        let keeps = flow.state() != State::EndToEnd && !flow.has(Flags::RESET);
        let found = if keeps { self.pool.join(owned, flow.guest_ack) } else { None };
        (flow.chain, flow.start, flow.next) = match found {
            Some((chain, start, end)) => (chain, start.latest(flow.guest_ack), end),
            None => (Chain::EMPTY, flow.guest_ack, flow.guest_ack),
        };
        let is_sound =
            flow.retained() <= self.config.flow_bytes && (!flow.owes() || flow.holds() || flow.has(Flags::RESET));
        if is_sound {
            self.pool.keep(flow.chain, kept);
        } else {
            (flow.chain, flow.start, flow.next) = (Chain::EMPTY, flow.guest_ack, flow.guest_ack);
            flow.fallback = Fallback::Damaged.number();
            flow.step(Event::Anomaly);
            if !flow.owes() {
                flow.step(Event::Repaid);
            }
            self.stats.fell_back(Fallback::Damaged);
        }
        flow.seen = flow.seen.latest(flow.next).latest(flow.acked);
        // Segments of others may have come by that were not noted.
        flow.epoch = 0;
        flow.flags.clear(Flags::PASSING);
        if flow.retained() == 0 {
            flow.flags.set(Flags::LEARNS);
        }
        let guest = &mut self.guest;
        guest.retained += u64::from(flow.retained());
        guest.unsettled += u32::from(flow.is_unsettled());
        if flow.has(Flags::FROZEN) {
            guest.freeze();
        } else if flow.owes() {
            self.schedule(at);
        }
        if self.flows[at].state() == State::Opening {
            self.opening.push(at as u32, now);
        }
    }
}
