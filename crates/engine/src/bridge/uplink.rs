//! Service of the uplink, and the worker's time that guests take of it by what they send and receive ([`fairlane_core::inflow`]).

use super::{Bridge, Round, Service};
use crate::clock::Clock;
use crate::forward::{Fabric, UPLINK};
use crate::receivers::Delivered;
use fairlane_core::PortId;
use fairlane_core::inflow::Wants;
use fairlane_core::sched::{After, Budget, Cost};
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use fairlane_port::{BURST, Burst};

/// Most bytes that the uplink delivers before the next scheduled service, and one frame: a burst of full frames.
const UPLINK_BYTES: u64 = 48 << 10;

/// Most bursts that the uplink delivers before the scheduler is asked for the next service.
pub(super) const UPLINK_BURSTS: usize = 4;

/// What the uplink delivered in a round.
pub(super) struct FromUplink {
    /// Whether frames may wait in it.
    pub waits: bool,
    /// Bursts that it delivered.
    pub bursts: usize,
    /// What was delivered from receive queues in the round.
    pub queued: Delivered,
}

impl Bridge {
    /// Reads the clock after frames of the uplink were forwarded, and measures what they took since `before`.
    pub(super) fn measure_uplink(&mut self, before: Nanos, clock: &impl Clock) -> Nanos {
        let now = clock.now();
        self.fabric.receivers.uplink_work.measured(now.since(before).0, || self.worked.take(now, clock));
        now
    }

    /// Tells the receivers' limits how much time the worker has had.
    pub(super) fn tick(&mut self, now: Nanos, clock: &impl Clock) {
        self.worked.refresh(now, clock);
        self.fabric.receivers.inflow.set_now(self.worked.own_time(now));
    }

    /// Reports to the receivers' limits whether the worker had something to do, and what the uplink lost.
    pub(super) fn end_period(&mut self, round: &Round, now: Nanos, clock: &impl Clock) {
        self.tick(now, clock);
        let Fabric { receivers, entries, .. } = &mut self.fabric;
        let uplink = entries[UPLINK.index()].as_deref();
        receivers.inflow.advance(|| uplink.map_or(0, |uplink| uplink.port.lost().get(DropReason::RingFull)));
        // That holds for the time until the next round, so it counts in the period that this time belongs to.
        if round.frames == 0 || !round.busy {
            receivers.inflow.idle();
            self.worked.idle();
        }
        if !self.held.is_empty() {
            receivers.inflow.uplink_full();
        }
    }

    /// Frames from the uplink are not scheduled by their sender: they are served in their order, and some are dropped for their
    /// receivers' limits. Returns how many.
    pub(super) fn serve_uplink(
        &mut self,
        burst: &mut Burst,
        uplink: &mut FromUplink,
        now: &mut Nanos,
        clock: &impl Clock,
    ) -> u64 {
        let mut frames = 0;
        for _ in 0..UPLINK_BURSTS {
            if !uplink.waits || !self.fabric.receivers.inflow.uplink_is_next() {
                break;
            }
            uplink.waits = self.fabric.entry(UPLINK).is_some_and(|entry| entry.has_frames(*now));
            if !uplink.waits {
                break;
            }
            if uplink.queued.busy {
                // Otherwise queues grow although their guests have room.
                *now = self.measure_uplink(*now, clock);
                self.fabric.deliver_next(&mut uplink.queued, burst, now, clock);
            }
            let budget = Budget { bytes: UPLINK_BYTES, frames: BURST as u32 };
            let mut service = Service { port: UPLINK, budget, cost: Cost::default() };
            self.serve(&mut service, burst, *now);
            frames += service.cost.frames;
            uplink.bursts += 1;
            self.fabric.receivers.inflow.uplink_served();
            if self.fabric.receivers.inflow.is_limited() {
                // Some bursts are dropped, and measured together with others they would tell nothing.
                *now = self.measure_uplink(*now, clock);
                self.tick(*now, clock);
            }
            if self.fabric.receivers.flush_due {
                break;
            }
        }
        frames
    }

    /// Whether the uplink is served on before a port that the scheduler chose. One that had more to send when it was served last can
    /// wait for what receivers are due; any other has little to send, and perhaps waits for an answer.
    pub(super) fn uplink_is_before(&mut self, port: PortId, uplink: &FromUplink) -> bool {
        let is_next = uplink.waits && self.fabric.receivers.inflow.uplink_is_next();
        is_next && self.fabric.entry(port).is_some_and(|entry| entry.is_backlogged)
    }

    /// Charges a guest for a service of its ring, and notes whether it has more to send.
    pub(super) fn report_sent(&mut self, port: PortId, nanos: u64, after: After) {
        let Some(entry) = self.fabric.entry(port) else { return };
        entry.is_backlogged = after == After::Backlogged;
        let (owner, limited) = (entry.tx_owner, entry.is_limited);
        let wants = match after {
            After::Backlogged if limited => Wants::Limited,
            After::Backlogged => Wants::All,
            After::Empty if entry.withholds_sent() => Wants::Withheld,
            After::Empty | After::Blocked => Wants::Nothing,
        };
        self.fabric.receivers.inflow.sent(port, owner, nanos, wants);
    }
}
