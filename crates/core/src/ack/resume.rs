//! Resumes the flows that a process left in the caller's memory, after checking them.

use super::flags::Flags;
use super::handshake::SCALE;
use super::machine::Event;
use super::pool::Chain;
use super::{Config, EarlyAck, Fallback, Flow, Memory, Mode, State, seconds};
use crate::time::Nanos;

impl<'m> EarlyAck<'m> {
    /// Resumes the flows and copies in the memory.
    ///
    /// A process may have ended between any two stores. Every block has its owner and range, and the numbers of a flow
    /// are stored in an order that keeps it consistent after each store. An inconsistent flow, in memory that someone
    /// else wrote, is dropped; its ends are reset if the sender got ACKs for data that is lost.
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
            early.resume_flow(at, &owned[begin..begin + len], &mut kept, now);
        }
        early.pool.sweep(&kept);
        early.set_mode(mode);
        early
    }

    /// Resumes a flow with the blocks that it owns.
    fn resume_flow(&mut self, at: usize, owned: &[(u32, u32)], kept: &mut [bool], now: Nanos) {
        let flow = &mut self.flows[at];
        // The new process may have another clock.
        (flow.last_seen, flow.deadline) = (seconds(now), now.0);
        (flow.scale, flow.sender_scale) = (flow.scale.min(SCALE), flow.sender_scale.min(SCALE));
        flow.mss = flow.mss.clamp(1, 8960);
        let is_opening = flow.state() == State::Opening;
        flow.acked = if is_opening { flow.guest_ack } else { flow.acked.latest(flow.guest_ack) };
        flow.resend = flow.guest_ack;
        // The last frame may not have been sent. It will be judged again, and must count as news again.
        flow.advertised = flow.acked;
        let needs_copies = flow.state() != State::EndToEnd && !flow.has(Flags::RESET);
        let found = if needs_copies { self.pool.join(owned, flow.guest_ack) } else { None };
        (flow.chain, flow.start, flow.next) = match found {
            Some((chain, start, end)) => (chain, start.latest(flow.guest_ack), end),
            None => (Chain::EMPTY, flow.guest_ack, flow.guest_ack),
        };
        let is_consistent =
            flow.retained() <= self.config.flow_bytes && (!flow.owes() || flow.holds() || flow.has(Flags::RESET));
        if is_consistent {
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
        flow.delivered = flow.delivered.latest(flow.next).latest(flow.acked);
        // Segments may have passed without being noted.
        flow.epoch = 0;
        flow.flags.clear(Flags::TRANSIENT);
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
