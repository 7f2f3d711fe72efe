//! `max_rate` and `max_frames`: token buckets for each limited port, and the ports that wait for tokens.

use super::bucket::Bucket;
use super::heap::Heap;
use super::{BUDGET_FRAMES, Budget, Cost, Share};
use crate::time::Nanos;

/// The buckets of all ports, and a timer for each port without tokens.
#[derive(Default)]
pub(super) struct Throttle {
    /// Few ports have limits, so only those have the memory for them.
    limits: Vec<Option<Box<Limits>>>,
    waiting: Heap,
}

/// A port's buckets.
#[derive(Default)]
struct Limits {
    bytes: Option<Bucket>,
    frames: Option<Bucket>,
}

impl Throttle {
    /// Sets a port's buckets from its share, keeping the tokens or the debt of the previous ones. Returns whether the
    /// port is limited.
    pub(super) fn configure(&mut self, port: u32, share: &Share, now: Nanos) -> bool {
        let ports = port as usize + 1;
        if self.limits.len() < ports {
            self.limits.resize_with(ports, || None);
            self.waiting.grow(ports);
        }
        if !share.is_limited() {
            self.limits[port as usize] = None;
            return false;
        }
        let Limits { bytes, frames } = &mut **self.limits[port as usize].get_or_insert_default();
        Bucket::replace(bytes, Bucket::of_bytes(share, now), now);
        Bucket::replace(frames, Bucket::of_frames(share, now), now);
        true
    }

    /// Removes a port.
    pub(super) fn remove(&mut self, port: u32) {
        self.limits[port as usize] = None;
        self.waiting.remove(port);
    }

    /// What a port may send now; none while it is throttled.
    pub(super) fn room(&mut self, port: u32, now: Nanos) -> Option<Budget> {
        let limits = self.limits[port as usize].as_deref_mut();
        let (bytes, frames) = limits.map_or((None, None), |limits| (limits.bytes.as_mut(), limits.frames.as_mut()));
        let bytes = bytes.map_or(u64::MAX, |bucket| bucket.room(now));
        let frames = frames.map_or(u64::MAX, |bucket| bucket.room(now)).min(BUDGET_FRAMES.into()) as u32;
        (bytes > 0 && frames > 0).then_some(Budget { bytes, frames })
    }

    /// Takes tokens for what a port sent.
    pub(super) fn take(&mut self, port: u32, cost: &Cost, now: Nanos) {
        let Some(Limits { bytes, frames }) = self.limits[port as usize].as_deref_mut() else { return };
        if let Some(bucket) = bytes {
            bucket.take(cost.bytes, now);
        }
        if let Some(bucket) = frames {
            bucket.take(cost.segments, now);
        }
    }

    /// Makes a port wait until it has tokens.
    pub(super) fn hold(&mut self, port: u32) {
        let Some(Limits { bytes, frames }) = self.limits[port as usize].as_deref() else { return };
        if let Some(ready) = [bytes, frames].into_iter().flatten().map(Bucket::ready_at).max() {
            self.waiting.push(port, ready);
        }
    }

    /// Ends a port's wait, whatever its buckets hold.
    pub(super) fn unhold(&mut self, port: u32) {
        self.waiting.remove(port);
    }

    /// Removes and returns a port whose wait is over.
    #[inline]
    pub(super) fn release(&mut self, now: Nanos) -> Option<u32> {
        self.waiting.pop_until(now).map(|(_, port)| port)
    }

    /// When the next wait ends.
    pub(super) fn next_release(&self) -> Option<Nanos> {
        self.waiting.peek().map(|(at, _)| at)
    }
}
