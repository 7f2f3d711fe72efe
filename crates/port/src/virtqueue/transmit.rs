//! A guest's transmit queue: reads bursts of frames from it.
//!
//! Two passes, so that the cache misses on buffers overlap: first the descriptors of all frames are read and their
//! buffers prefetched, then headers and heads are copied and checked.

use super::chain::Direction;
use super::format::Format;
use super::memory::GuestMemory;
use super::ring::Ring;
use super::violation::Violation;
use crate::burst::{BURST, Filler};
use crate::vnet::{self, HEADER};
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;

/// The largest frame: what IP's 16-bit length allows (RFC 791, section 3.1), Ethernet and two VLAN tags.
const MAX_FRAME: u32 = 65535 + 14 + 8;

/// A running transmit queue.
pub(crate) struct Transmit<F: Format> {
    /// The queue.
    pub ring: Ring<F>,
    /// The last offer's chains, in order.
    chains: [F::Chain; BURST],
}

impl<F: Format> Transmit<F> {
    /// A queue that has offered nothing yet.
    pub(crate) fn new(ring: Ring<F>) -> Transmit<F> {
        Transmit { ring, chains: [F::Chain::default(); BURST] }
    }

    /// Fills a burst with waiting frames, as far as the budget allows.
    ///
    /// # Errors
    /// The rule that the driver broke; the burst is then invalid.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        memory: &GuestMemory,
        filler: &mut Filler<'_>,
        budget: Budget,
    ) -> Result<(), Violation> {
        let most = BURST.min(budget.frames as usize);
        let (mut bytes, mut frames, mut skip) = (0, 0, 0);
        // The entries known to be available, from the first on. Where they are counted, each may be a frame.
        let mut known = self.ring.available(0)?.min(most as u16);
        while skip < known && bytes < budget.bytes {
            let first = filler.segments();
            let mut len: u32 = 0;
            let walked = self.ring.walk(skip, Direction::Read, memory, |start, here| {
                prefetch(start);
                len = len.saturating_add(here);
                // SAFETY: the place was checked against `memory`, which the port that returns the batch keeps mapped
                // while the batch lives.
                if unsafe { filler.segment(start, here) } { Ok(()) } else { Err(Violation::TooManySegments) }
            });
            let chain = match walked {
                // The burst has no room for the rest of this frame: the next burst begins with it.
                Err(Violation::TooManySegments) if skip > 0 => {
                    filler.abandon(first);
                    break;
                }
                walked => walked?,
            };
            if len <= HEADER as u32 {
                return Err(Violation::NoHeader(len));
            }
            if len > MAX_FRAME + HEADER as u32 {
                return Err(Violation::TooLong(MAX_FRAME));
            }
            self.chains[frames] = chain;
            filler.gathered(first, len);
            bytes += u64::from(len) - HEADER as u64;
            (frames, skip) = (frames + 1, skip + F::entries(chain));
            if !F::COUNTS && frames < most {
                known = skip + self.ring.available(skip)?;
            }
        }
        for index in 0..filler.len() {
            filler
                .settle::<HEADER, _>(index, |header, len, head| vnet::decode(header, len, head))
                .map_err(Violation::Header)?;
        }
        Ok(())
    }

    /// Publishes completed descriptors; returns when to do so again ([`Ring::publish`]). Never urgent: the driver waits
    /// for completions only when its queue is full, or its sockets' share of it.
    #[inline]
    pub(crate) fn publish(&mut self, now: Nanos) -> Nanos {
        self.ring.publish(now, false)
    }

    /// Completes the first `frames` frames of the last offer.
    #[inline]
    pub(crate) fn consume(&mut self, frames: usize) {
        for &chain in &self.chains[..frames] {
            self.ring.complete(chain, 0);
        }
        // Frames offered and not consumed are offered again, from index 0 on.
        self.chains.copy_within(frames.., 0);
    }

    /// Whether frames wait beyond the first `frames` of the last offer, none of which was consumed since. If none do
    /// and `notify` is set, asks the driver to kick for the next one.
    pub(crate) fn more(&mut self, frames: usize, notify: bool) -> bool {
        let entries = self.chains[..frames].iter().map(|chain| F::entries(*chain)).sum();
        if notify { self.ring.enable_notifications(entries) } else { self.ring.holds_more_than(entries) }
    }
}

/// Prefetches a cache line.
#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see, and does not fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
