//! `max_rate`: a token bucket for each limited port, and the ports that wait for tokens.

use super::bucket::Bucket;
use super::heap::Heap;
use super::{BUDGET_BYTES, Share};
use crate::time::Nanos;

/// The buckets of all ports, and a timer for each port without tokens.
#[derive(Default)]
pub(super) struct Throttle {
    buckets: Vec<Option<Bucket>>,
    waiting: Heap,
}

impl Throttle {
    /// Sets a port's bucket from its share, keeping the tokens or the debt of the previous one. Returns whether the
    /// port is limited.
    pub(super) fn configure(&mut self, port: u32, share: &Share, now: Nanos) -> bool {
        let ports = port as usize + 1;
        if self.buckets.len() < ports {
            self.buckets.resize_with(ports, || None);
            self.waiting.grow(ports);
        }
        let mut bucket = Bucket::new(share, BUDGET_BYTES, now);
        let old = self.buckets[port as usize].take();
        if let (Some(bucket), Some(old)) = (&mut bucket, old) {
            bucket.inherit(old, now);
        }
        self.buckets[port as usize] = bucket;
        self.buckets[port as usize].is_some()
    }

    /// Removes a port.
    pub(super) fn remove(&mut self, port: u32) {
        self.buckets[port as usize] = None;
        self.waiting.remove(port);
    }

    /// Bytes a port may send now: 0 while it is throttled, `u64::MAX` without a limit.
    pub(super) fn room(&mut self, port: u32, now: Nanos) -> u64 {
        self.buckets[port as usize].as_mut().map_or(u64::MAX, |bucket| bucket.room(now))
    }

    /// Takes tokens for bytes that a port sent.
    pub(super) fn take(&mut self, port: u32, bytes: u64, now: Nanos) {
        if let Some(bucket) = &mut self.buckets[port as usize] {
            bucket.take(bytes, now);
        }
    }

    /// Makes a port wait until it has tokens.
    pub(super) fn hold(&mut self, port: u32) {
        if let Some(bucket) = &self.buckets[port as usize] {
            self.waiting.push(port, bucket.ready_at());
        }
    }

    /// Ends a port's wait, whatever its bucket holds.
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
