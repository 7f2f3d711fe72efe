//! A guest's transmit queue: a burst of frames out of it.
//!
//! Two passes, so that the cache misses on buffers overlap: first the descriptors of all frames are read and their
//! buffers prefetched, then headers and heads are copied and checked.

use super::chain::Direction;
use super::memory::GuestMemory;
use super::ring::Ring;
use super::violation::Violation;
use crate::burst::{BURST, Filler};
use crate::vnet::{self, HEADER};
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;

/// The largest frame: what IP's 16-bit length allows (RFC 791, section 3.1), Ethernet and two VLAN tags.
const MAX_FRAME: u32 = 65535 + 14 + 8;

/// A transmit queue in service.
pub struct Transmit {
    /// The queue.
    pub ring: Ring,
    /// Chains of the last offer, in order.
    heads: [u16; BURST],
}

impl Transmit {
    /// A queue from which nothing was offered yet.
    pub fn new(ring: Ring) -> Transmit {
        Transmit { ring, heads: [0; BURST] }
    }

    /// Fills a burst with the frames that wait, as far as the budget goes.
    ///
    /// # Errors
    /// The rule that the driver broke; the burst is of no use then.
    #[inline]
    pub fn offer(&mut self, memory: &GuestMemory, filler: &mut Filler<'_>, budget: Budget) -> Result<(), Violation> {
        let waiting = self.ring.available(0)?.min(BURST as u16).min(budget.frames.min(BURST as u32) as u16);
        let mut bytes = 0;
        for skip in 0..waiting {
            if bytes >= budget.bytes {
                break;
            }
            let head = self.ring.head(skip)?;
            let first = filler.pieces();
            let mut len: u32 = 0;
            let walked = self.ring.walk(head, Direction::Read, memory, |start, here| {
                prefetch(start);
                len = len.saturating_add(here);
                // SAFETY: the place was checked against `memory`, which the port that hands out the batch keeps mapped
                // while the batch lives.
                if unsafe { filler.piece(start, here) } { Ok(()) } else { Err(Violation::TooManyPieces) }
            });
            match walked {
                // The burst's room for pieces ends before the frame does: it comes first next time.
                Err(Violation::TooManyPieces) if skip > 0 => {
                    filler.abandon(first);
                    break;
                }
                walked => walked?,
            }
            if len <= HEADER as u32 {
                return Err(Violation::NoHeader(len));
            }
            if len > MAX_FRAME + HEADER as u32 {
                return Err(Violation::TooLong(MAX_FRAME));
            }
            self.heads[skip as usize] = head;
            filler.gathered(first, len);
            bytes += u64::from(len) - HEADER as u64;
        }
        for index in 0..filler.len() {
            filler
                .settle::<HEADER, _>(index, |header, len, head| vnet::decode(header, len, head))
                .map_err(Violation::Header)?;
        }
        Ok(())
    }

    /// Publishes what was completed; answers when to do so again ([`Ring::publish`]). Never urgent: the driver waits for it only
    /// where its queue is full, or its sockets' part of it.
    #[inline]
    pub fn publish(&mut self, now: Nanos) -> Nanos {
        self.ring.publish(now, false)
    }

    /// Completes the first `frames` frames of the last offer.
    #[inline]
    pub fn consume(&mut self, frames: usize) {
        for &head in &self.heads[..frames] {
            self.ring.complete(head, 0);
        }
        // What was offered and not consumed is offered again, under other indices.
        self.heads.copy_within(frames.., 0);
    }
}

/// Asks for a cache line that is read soon.
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
