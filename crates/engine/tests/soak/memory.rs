//! Resources of the process: allocated bytes and descriptors.

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::fs;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allowed growth in bytes: tables keep their largest size, those of both schedulers of each backend too.
const MORE: u64 = 1 << 20;

/// Resources in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub bytes: u64,
    descriptors: usize,
}

impl Held {
    pub(crate) fn now() -> Held {
        let stats = ALLOCATOR.stats();
        let bytes = (stats.bytes_allocated - stats.bytes_deallocated) as u64;
        Held { bytes, descriptors: fs::read_dir("/proc/self/fd").expect("this is Linux").count() }
    }

    /// Whether it is no more than before, in the same state.
    pub(crate) fn is_flat(&self, before: &Held) {
        assert!(self.bytes <= before.bytes + MORE, "{self:?} are held, and were {before:?} without guests before");
        assert!(self.descriptors <= before.descriptors, "{self:?} are open, and were {before:?} without guests before");
    }
}
