//! The end of a bridge: what it has accepted goes to its receivers, and nothing more is accepted.

use super::Bridge;
use crate::clock::Clock;
use fairlane_core::time::Nanos;
use fairlane_port::Burst;

impl Bridge {
    /// Delivers frames from receive queues into rings that have room, and publishes and notifies. Takes no frame from any ring.
    /// Returns when to go on; [`Nanos::NEVER`] if there is nothing left.
    pub fn drain(&mut self, burst: &mut Burst, mut now: Nanos, clock: &impl Clock) -> Nanos {
        self.fabric.deliver_queued(burst, &mut now, clock);
        let later = self.flush(now);
        // Rings that have no room are looked at again, as nothing waits for their events.
        if self.fabric.receivers.pool.is_used() { now } else { later }
    }
}
