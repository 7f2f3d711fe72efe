//! A shared ring (xen/include/public/io/ring.h) as the backend sees it: one page, two indices in each direction.
//!
//! Requests are always answered in order, and a response takes its request's slot. So the state of a ring is one
//! number, `rsp_prod`, which a restarted backend finds in the guest's memory.

#[cfg(test)]
mod models;
#[cfg(test)]
mod race;

use super::host::{PAGE, Page};
use super::violation::Violation;
use crate::access::{Processor, Word, Words};
use fairlane_core::ack::Ring as FrontendState;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Slots of a netif ring: the largest power of two of 12 (tx) or 8 (rx) bytes each that fits in a page after the
/// header.
pub(super) const SLOTS: u32 = 256;

/// Words of the ring's header, which is 64 bytes.
const REQUESTS: usize = 0;
const REQUEST_EVENT: usize = 1;
const RESPONSES: usize = 2;
const RESPONSE_EVENT: usize = 3;
const HEADER: usize = 16;

/// Bytes of a word, which is read and written atomically. Requests and responses consist of words.
const WORD: usize = 4;

/// A ring with requests of `N` bytes. Responses are no longer.
pub(super) struct Ring<const N: usize, A: Words = Processor> {
    page: Page,
    words: PhantomData<fn() -> A>,
    /// First request that is not answered yet, which is also the next response to write.
    next: u32,
    /// The frontend's index as last read.
    requested: u32,
    /// Our index as the frontend sees it.
    published: u32,
}

impl<const N: usize> Ring<N> {
    /// A ring that resumes at `rsp_prod`.
    ///
    /// # Errors
    /// The indices in the page are invalid.
    pub(super) fn new(page: Page) -> Result<Ring<N>, Violation> {
        // SAFETY: the page begins at a multiple of its size, and has words of the processor's.
        unsafe { Ring::over(page) }
    }
}

impl<const N: usize, A: Words> Ring<N, A> {
    /// [`Ring::new`] over words of any kind.
    ///
    /// # Safety
    /// The page begins with as many such words as the header and the slots have.
    unsafe fn over(page: Page) -> Result<Ring<N, A>, Violation> {
        let mut ring: Ring<N, A> = Ring { page, words: PhantomData, next: 0, requested: 0, published: 0 };
        let next = ring.word(RESPONSES).load(Ordering::Acquire);
        (ring.next, ring.requested, ring.published) = (next, next, next);
        ring.refresh()?;
        Ok(ring)
    }

    /// A word of the header or of a slot. Atomic: the frontend writes it on another processor.
    #[inline]
    fn word(&self, at: usize) -> &A::Word {
        debug_assert!(at < PAGE / WORD);
        // SAFETY: it is within the page, which lives as long as `self`.
        unsafe { &*self.page.start().cast::<A::Word>().add(at) }
    }

    /// The first word of a slot. The header and 256 slots of at most 12 bytes lie within the page.
    #[inline]
    fn slot(index: u32) -> usize {
        HEADER + N / WORD * (index % SLOTS) as usize
    }

    /// How many requests there are from `next + skip` on.
    ///
    /// # Errors
    /// The frontend's index is further ahead than the ring has slots, or moved back.
    #[inline]
    pub(super) fn available(&mut self, skip: u32) -> Result<u32, Violation> {
        let seen = self.requested.wrapping_sub(self.next);
        if seen > skip {
            return Ok(seen - skip);
        }
        self.refresh()?;
        Ok(self.requested.wrapping_sub(self.next).saturating_sub(skip))
    }

    /// Reads the frontend's index.
    #[inline]
    fn refresh(&mut self) -> Result<(), Violation> {
        // Acquire: pairs with the frontend's write barrier before it moved the index, so that requests read from here
        // on are at least as new.
        let index = self.word(REQUESTS).load(Ordering::Acquire);
        let ahead = index.wrapping_sub(self.next);
        if ahead > SLOTS {
            return Err(Violation::Producer { index, next: self.next });
        }
        if ahead < self.requested.wrapping_sub(self.next) {
            return Err(Violation::Producer { index, next: self.requested });
        }
        self.requested = index;
        Ok(())
    }

    /// Whether a request waits, without touching shared memory if one is known of.
    #[inline]
    pub(super) fn waiting(&self) -> bool {
        self.requested != self.next || self.word(REQUESTS).load(Ordering::Relaxed) != self.next
    }

    /// Whether more than `count` requests are there.
    #[inline]
    pub(super) fn holds_more_than(&self, count: u32) -> bool {
        self.word(REQUESTS).load(Ordering::Relaxed).wrapping_sub(self.next) > count
    }

    /// Copies the request at `next + skip`, which [`Ring::available`] reported.
    #[inline]
    pub(super) fn request(&self, skip: u32) -> [u8; N] {
        const { assert!(N.is_multiple_of(WORD)) };
        let slot = Self::slot(self.next.wrapping_add(skip));
        let mut request = [0; N];
        for (at, word) in request.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
            // The frontend may write to it meanwhile: each word is read once, and only the copy is used.
            *word = self.word(slot + at).load(Ordering::Relaxed).to_ne_bytes();
        }
        request
    }

    /// Answers the next request. The frontend sees it after [`Ring::publish`].
    #[inline]
    pub(super) fn respond<const M: usize>(&mut self, response: [u8; M]) {
        const { assert!(M <= N && M.is_multiple_of(WORD)) };
        let slot = Self::slot(self.next);
        for (at, word) in response.as_chunks::<WORD>().0.iter().enumerate() {
            self.word(slot + at).store(u32::from_ne_bytes(*word), Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// The state of the frontend: responses that it has not taken, and a value that changes whenever it takes some. It
    /// asks for a notification of the response after those it took (RING_FINAL_CHECK_FOR_RESPONSES).
    pub(super) fn frontend_state(&self) -> FrontendState {
        let event = self.word(RESPONSE_EVENT).load(Ordering::Relaxed);
        let requests = self.word(REQUESTS).load(Ordering::Relaxed);
        let taken = event.wrapping_sub(1);
        FrontendState { waiting: self.published.wrapping_sub(taken), taken: taken.wrapping_add(requests) }
    }

    /// Whether responses that are not published fill half of the ring ([`Withheld`](crate::Withheld)).
    pub(super) fn is_withheld(&self) -> bool {
        self.next.wrapping_sub(self.published) >= SLOTS / 2
    }

    /// Publishes all responses. True if the frontend is to be notified (RING_PUSH_RESPONSES_AND_CHECK_NOTIFY).
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let before = self.published;
        if before == self.next {
            return false;
        }
        self.published = self.next;
        // Release: responses, and the bytes in the guest's buffers, are visible before the index that publishes them.
        self.word(RESPONSES).store(self.next, Ordering::Release);
        // The index must be visible before the frontend's request for a notification is read: otherwise the frontend
        // could ask, see the old index and sleep, while we read its old request.
        A::fence(Ordering::SeqCst);
        let event = self.word(RESPONSE_EVENT).load(Ordering::Relaxed);
        self.next.wrapping_sub(event) < self.next.wrapping_sub(before)
    }

    /// Asks the frontend for a notification of the request at `next + skip` (RING_FINAL_CHECK_FOR_REQUESTS). True if it
    /// is there already.
    ///
    /// It need not be taken back: the frontend passes that index once.
    pub(super) fn enable_notifications(&mut self, skip: u32) -> bool {
        self.word(REQUEST_EVENT).store(self.next.wrapping_add(skip).wrapping_add(1), Ordering::Relaxed);
        // Our request must be visible before the index is read, the mirror image of `publish`.
        A::fence(Ordering::SeqCst);
        self.word(REQUESTS).load(Ordering::Relaxed).wrapping_sub(self.next) > skip
    }
}
