//! A host's virtual clock. It advances by the costs of the backend's work, and between events.

use fairlane_core::time::Nanos;
use fairlane_engine::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time that a reading of the clock takes. So every round takes some, and a worker that has nothing to do cannot stand still.
const READING: u64 = 20;

/// The clock of one worker, shared with its ports. Only one thread uses it.
#[derive(Clone, Default)]
pub(crate) struct Virtual(Arc<Times>);

#[derive(Default)]
struct Times {
    now: AtomicU64,
    /// Time without work.
    idle: AtomicU64,
}

impl Virtual {
    /// The time, without the cost of a reading.
    pub(crate) fn look(&self) -> Nanos {
        Nanos(self.0.now.load(Relaxed))
    }

    /// Work takes so many nanoseconds.
    pub(crate) fn spend(&self, nanos: u64) {
        self.0.now.store(self.look().0 + nanos, Relaxed);
    }

    /// Nothing is done until `time`, if it is later than now.
    pub(crate) fn advance_to(&self, time: Nanos) {
        let idle = time.since(self.look()).0;
        self.0.idle.store(self.0.idle.load(Relaxed) + idle, Relaxed);
        self.spend(idle);
    }
}

impl Clock for Virtual {
    fn now(&self) -> Nanos {
        self.spend(READING);
        self.look()
    }

    fn worked(&self) -> Nanos {
        self.look() - Nanos(self.0.idle.load(Relaxed))
    }
}
