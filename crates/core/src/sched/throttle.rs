//! `max_rate`: a bucket for each port that has one, and the ports that wait for theirs.

use super::bucket::Bucket;
use super::heap::Heap;
use super::{BUDGET_BYTES, Share};
use crate::time::Nanos;

/// The buckets of all ports, and a timer for those out of tokens.
#[derive(Default)]
pub struct Throttle {
    buckets: Vec<Option<Bucket>>,
    waiting: Heap,
}

impl Throttle {
    /// Gives a port the bucket of its share; says whether it has one. What an earlier bucket had left, or owed, stays.
    pub fn configure(&mut self, port: u32, share: &Share, now: Nanos) -> bool {
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

    /// Forgets a port.
    pub fn remove(&mut self, port: u32) {
        self.buckets[port as usize] = None;
        self.waiting.remove(port);
    }

    /// Bytes a port may pass now: none while it is throttled, all without a limit.
    pub fn room(&mut self, port: u32, now: Nanos) -> u64 {
        self.buckets[port as usize].as_mut().map_or(u64::MAX, |bucket| bucket.room(now))
    }

    /// Takes what a port passed.
    pub fn take(&mut self, port: u32, bytes: u64, now: Nanos) {
        if let Some(bucket) = &mut self.buckets[port as usize] {
            bucket.take(bytes, now);
        }
    }

    /// Lets a port wait until it has room.
    pub fn hold(&mut self, port: u32) {
        if let Some(bucket) = &self.buckets[port as usize] {
            self.waiting.push(port, bucket.ready_at());
        }
    }

    /// Ends a port's wait, whatever its bucket says.
    pub fn unhold(&mut self, port: u32) {
        self.waiting.remove(port);
    }

    /// A port whose wait is over; it waits no more.
    #[inline]
    pub fn release(&mut self, now: Nanos) -> Option<u32> {
        self.waiting.pop_until(now).map(|(_, port)| port)
    }

    /// When the next wait is over.
    pub fn next_release(&self) -> Option<Nanos> {
        self.waiting.peek().map(|(at, _)| at)
    }
}
