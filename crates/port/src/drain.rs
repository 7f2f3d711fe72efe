//! A port that accepts all frames and offers none, to measure the path to it. Each frame is copied once, as a real
//! receiver would, and counted.

use crate::{Batch, Burst, Control, Put, Room, Sink, Source, Status, Wanted};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The port.
#[derive(Default)]
pub struct Drain {
    scratch: Vec<u8>,
    taken: Arc<Taken>,
}

/// Counters of a [`Drain`], readable from any thread.
#[derive(Debug, Default)]
pub struct Taken {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl Taken {
    /// Frames accepted so far.
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Bytes of those frames.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drain {
    /// A drain with counters at 0.
    pub fn new() -> Drain {
        Drain::default()
    }

    /// Its counters.
    pub fn taken(&self) -> Arc<Taken> {
        self.taken.clone()
    }
}

impl Source for Drain {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, _budget: Budget, _now: Nanos) -> Batch<'a> {
        burst.fill().done()
    }

    fn consume(&mut self, _frames: usize) {}

    fn waiting(&mut self, _now: Nanos) -> bool {
        false
    }
}

impl Sink for Drain {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let (frames, refusal) = batch.fetch(frames);
        let accepted = frames.len();
        let mut bytes = 0;
        for index in frames {
            self.scratch.clear();
            batch.frame(index).read(&mut self.scratch);
            bytes += std::hint::black_box(&self.scratch).len();
        }
        // Relaxed, and no read-modify-write: the counters order nothing and have one writer.
        self.taken.frames.store(self.taken.frames() + accepted as u64, Ordering::Relaxed);
        self.taken.bytes.store(self.taken.bytes() + bytes as u64, Ordering::Relaxed);
        Put { accepted, refusal }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        Room::Now
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Drain {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        wanted.room
    }

    fn status(&self) -> Status {
        Status::Up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::packet::Offload;

    #[test]
    fn accepts_and_counts_everything() {
        let mut drain = Drain::new();
        let taken = drain.taken();
        let frames: Vec<Vec<u8>> = (1..=20).map(|len| vec![7; len * 100]).collect();
        let mut burst = Burst::new();
        let mut filler = burst.fill();
        assert!(frames.iter().all(|frame| filler.push(frame, Offload::default())));
        let batch = filler.done();
        assert_eq!(drain.put(&batch, 5..20, Nanos(0)), Put { accepted: 15, refusal: None });
        assert_eq!(taken.frames(), 15);
        assert_eq!(taken.bytes(), frames[5..].iter().map(|frame| frame.len() as u64).sum::<u64>());
        assert_eq!(drain.scratch, frames[19]);
    }
}
