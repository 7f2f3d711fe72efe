//! A rate limit towards a port's peer: for a tap or a card that accepts frames faster than the link behind it.
//!
//! Frames pass at once while the link's queue, which is computed and not stored, has room for them. So in any time at
//! most `rate` times that time plus one queue (and one frame) passes, and exactly `rate` while the queue does not run
//! empty.

use crate::rate::Link;
use crate::{Batch, Burst, Port, Put, Refusal, Room, Sink, Source, Wrapper};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::ops::Range;

/// A port in front of a link with a rate.
pub struct Paced<P> {
    port: P,
    link: Link,
    backpressure: bool,
}

impl<P: Port> Paced<P> {
    /// Puts `port` in front of a link of `rate` bits a second and a queue of `queue` bytes: about what the link sends
    /// while the worker is busy elsewhere. A full queue refuses frames until half of it has drained, or, without
    /// `backpressure`, drops them. A rate of 0 means no limit.
    pub fn new(port: P, rate: u64, queue: u64, backpressure: bool) -> Paced<P> {
        Paced { port, link: Link::new(Some(rate), queue), backpressure }
    }
}

impl<P: Port> Source for Paced<P> {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.port.offer(burst, budget, now)
    }

    fn consume(&mut self, frames: usize) {
        self.port.consume(frames);
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.port.waiting(now)
    }
}

impl<P: Port> Sink for Paced<P> {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        let sizes = frames.clone().map(|index| batch.bytes(index));
        let before = self.link;
        let admitted = sizes.clone().take_while(|bytes| self.link.admit(*bytes, now).is_some()).count();
        let put = self.port.put(batch, frames.start..frames.start + admitted, now);
        if put.accepted < admitted {
            // The port accepted fewer frames than the link admitted: charge only those.
            self.link = before;
            for bytes in sizes.take(put.accepted) {
                self.link.admit(bytes, now);
            }
            return put;
        }
        let full = if self.backpressure { Refusal::Full } else { Refusal::Never(DropReason::UplinkFull) };
        Put { accepted: admitted, refusal: (admitted < frames.len()).then_some(full) }
    }

    fn room(&mut self, now: Nanos) -> Room {
        match self.link.room(now) {
            Room::Now => self.port.room(now),
            later => later,
        }
    }

    fn ring(&self) -> Ring {
        self.port.ring()
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        self.port.flush(now)
    }
}

impl<P: Port> Wrapper for Paced<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.port
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Queued bytes pass at the new rate.
    fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        self.link.set_rate(rate, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BURST, memory};
    use fairlane_core::packet::Offload;
    use fairlane_core::time::SECOND;
    use proptest::prelude::*;

    fn put(port: &mut impl Port, burst: &mut Burst, sizes: &[usize], now: Nanos) -> Put {
        let frames: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        let mut filler = burst.fill();
        for frame in &frames {
            filler.push(frame, Offload::default());
        }
        let batch = filler.done();
        port.put(&batch, 0..sizes.len(), now)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// A sender that resumes at the time it was told, up to 200 us late, fills every second to within the queue and
        /// a frame.
        #[test]
        fn a_backlogged_link_passes_its_rate(
            rate in 1_000_000..200_000_000u64,
            sizes in prop::collection::vec(60..1515usize, BURST),
            late in prop::collection::vec(0..200_000u64, 64),
        ) {
            let queue = rate / 8 / 500 + 1600;
            let (inner, peer) = memory::pair(usize::MAX);
            let mut port = Paced::new(inner, rate, queue, true);
            let mut burst = Burst::new();
            let mut now = Nanos(0);
            let mut seconds = [0u64; 3];
            for round in 0.. {
                if now.0 >= 3 * SECOND { break }
                let put = put(&mut port, &mut burst, &sizes, now);
                while let Some((frame, _)) = peer.receive() {
                    seconds[(now.0 / SECOND) as usize] += frame.len() as u64;
                }
                if put.refusal == Some(Refusal::Full) {
                    let Room::At(time) = port.room(now) else { return Err(TestCaseError::fail("full, yet there is room")) };
                    now = time + Nanos(late[round % late.len()]);
                }
            }
            for bytes in seconds {
                prop_assert!(bytes.abs_diff(rate / 8) <= queue + 1515, "{bytes} in a second of {}", rate / 8);
            }
            let all: u64 = seconds.iter().sum();
            prop_assert!(all.abs_diff(3 * rate / 8) <= queue + 1515);
        }

        /// Frames that the port refuses do not use up the link's rate.
        #[test]
        fn only_accepted_frames_are_charged(room in 0..BURST, sizes in prop::collection::vec(60..1515usize, BURST)) {
            let (inner, peer) = memory::pair(room);
            let mut port = Paced::new(inner, 8_000_000_000, 1_000_000, true);
            let mut burst = Burst::new();
            prop_assert_eq!(put(&mut port, &mut burst, &sizes, Nanos(0)), Put { accepted: room, refusal: Some(Refusal::Full) });
            prop_assert_eq!(port.room(Nanos(0)), Room::Unknown);
            let mut reference = Link::new(Some(8_000_000_000), 1_000_000);
            let mut finish = Nanos(0);
            while let Some((frame, _)) = peer.receive() {
                finish = reference.admit(frame.len() as u64, Nanos(0)).unwrap();
            }
            prop_assert_eq!(port.link.admit(0, Nanos(0)), Some(finish));
        }
    }

    #[test]
    fn without_backpressure_a_full_queue_drops() {
        let mut port = Paced::new(memory::pair(100).0, 8_000_000_000, 3_000, false);
        let mut burst = Burst::new();
        let full = Some(Refusal::Never(DropReason::UplinkFull));
        assert_eq!(put(&mut port, &mut burst, &[1_000; 5], Nanos(0)), Put { accepted: 3, refusal: full });
        assert_eq!(put(&mut port, &mut burst, &[1_000; 5], Nanos(1_000)), Put { accepted: 1, refusal: full });
    }
}
