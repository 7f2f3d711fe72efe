//! A guest's transmit ring: reads bursts of frames from it. The fronts of all frames are copied in one call; the bodies
//! of large ones stay in the guest.

use super::bounce_buffer::BounceBuffer;
use super::host::{GrantCopy, Host, PAGE};
use super::netif::{
    self, ERROR, EXTRA_GSO, EXTRA_LAST, EXTRA_MORE, MAX_SLOTS, NULL, OKAY, TX_EXTRA, TX_MORE, TxRequest,
};
use super::ring::{Ring, SLOTS};
use super::violation::Violation;
use crate::burst::{BURST, End, Filler, HEAD, Place};
use fairlane_core::packet::GsoKind;
use fairlane_core::sched::Budget;
use std::sync::Arc;

/// A running transmit ring.
pub(super) struct Transmit {
    ring: Ring<12>,
    domain: u16,
    host: Arc<dyn Host>,
    /// The frames of the last offer.
    pub bounce: BounceBuffer,
    /// Frames of the last offer, in order.
    packets: Vec<Packet>,
    /// The slots of all of them: the id, if the slot had data.
    ids: Vec<Option<u16>>,
    /// The copies of their fronts.
    copies: Vec<GrantCopy>,
    /// The data slots of the current packet.
    slots: Vec<TxRequest>,
}

/// A packet as its slots describe it.
#[derive(Clone, Copy)]
struct Packet {
    /// Slots with and without data.
    slots: usize,
    len: u16,
    flags: u16,
    gso: Option<(u16, GsoKind)>,
    /// Whether it is a valid frame.
    good: bool,
}

impl Transmit {
    /// A ring that has offered nothing yet.
    pub(super) fn new(ring: Ring<12>, domain: u16, host: Arc<dyn Host>) -> Transmit {
        let bounce = BounceBuffer::new(host.clone());
        let (packets, ids) = (Vec::with_capacity(BURST), Vec::with_capacity(SLOTS as usize));
        let (copies, slots) = (Vec::with_capacity(BURST), Vec::with_capacity(MAX_SLOTS));
        Transmit { ring, domain, host, bounce, packets, ids, copies, slots }
    }

    /// Whether a frame waits.
    #[inline]
    pub(super) fn waiting(&self) -> bool {
        self.ring.waiting()
    }

    /// Asks for a notification of the next frame. True if it is there already.
    pub(super) fn enable_notifications(&mut self) -> bool {
        self.ring.enable_notifications(0)
    }

    /// Whether slots wait beyond those of the last offer, where it was from this queue (`shown`), or any. If none do and `notify` is set,
    /// asks to be told of the next.
    pub(super) fn more(&mut self, shown: bool, notify: bool) -> bool {
        let skip = if shown { self.ids.len() as u32 } else { 0 };
        if notify { self.ring.enable_notifications(skip) } else { self.ring.holds_more_than(skip) }
    }

    /// [`Withheld::sent`](crate::Withheld)
    pub(super) fn is_withheld(&self) -> bool {
        self.ring.is_withheld()
    }

    /// Publishes what was consumed. True if the frontend is to be notified.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Fills a burst with waiting frames, as far as the budget allows. False if they could not be read now, which is
    /// nobody's fault.
    ///
    /// # Errors
    /// The rule that the frontend broke; the burst is then invalid.
    pub(super) fn offer(&mut self, filler: &mut Filler<'_>, budget: Budget) -> Result<bool, Violation> {
        self.packets.clear();
        self.ids.clear();
        self.copies.clear();
        self.bounce.clear();
        let most = (budget.frames as usize).min(BURST);
        let mut bytes = 0;
        while self.packets.len() < most && bytes < budget.bytes {
            let skip = self.ids.len() as u32;
            if self.ring.available(skip)? == 0 {
                break;
            }
            let (first, copies) = (filler.segments(), self.copies.len());
            match self.packet(skip, filler)? {
                Some(packet) => {
                    bytes += u64::from(packet.len);
                    filler.gathered(first, if packet.good { packet.len.into() } else { 0 });
                    self.packets.push(packet);
                }
                None => {
                    // The burst has no room for the rest of this frame: the next burst begins with it.
                    filler.abandon(first);
                    self.bounce.truncate(self.packets.len(), first);
                    self.copies.truncate(copies);
                    self.ids.truncate(skip as usize);
                    break;
                }
            }
        }
        self.copy_fronts(filler)
    }

    /// Reads the packet whose first slot is at `skip`; the segments of its body go to the filler. None if they do not
    /// fit.
    fn packet(&mut self, skip: u32, filler: &mut Filler<'_>) -> Result<Option<Packet>, Violation> {
        let first = TxRequest::parse(self.ring.request(skip));
        self.ids.push(Some(first.id));
        let (mut gso, mut good) = (None, true);
        let mut more_extra = first.flags & TX_EXTRA != 0;
        while more_extra {
            let at = self.ids.len() as u32;
            if self.ring.available(at)? == 0 {
                return Err(Violation::MissingExtra);
            }
            let extra = self.ring.request(at);
            self.ids.push(None);
            match extra[0] {
                EXTRA_GSO => match netif::gso(extra) {
                    (0, ..) => return Err(Violation::GsoSize),
                    (_, kind, None) => return Err(Violation::GsoType(kind)),
                    (size, _, Some(kind)) => gso = Some((size, kind)),
                },
                // Multicast control, hashes and XDP belong to features that are not offered.
                2..=EXTRA_LAST => good = false,
                kind => return Err(Violation::ExtraType(kind)),
            }
            more_extra = extra[1] & EXTRA_MORE != 0;
        }
        // The first slot's size field is the packet's, so its own size is known only after all others.
        self.slots.clear();
        self.slots.push(first);
        let mut more = first.flags & TX_MORE != 0;
        while more {
            let at = self.ids.len() as u32;
            if self.ring.available(at)? == 0 {
                return Err(Violation::Incomplete(self.slots.len()));
            }
            if self.slots.len() == MAX_SLOTS {
                return Err(Violation::TooManySlots);
            }
            let slot = TxRequest::parse(self.ring.request(at));
            self.ids.push(Some(slot.id));
            check_place(slot)?;
            self.slots.push(slot);
            more = slot.flags & TX_MORE != 0;
            // Frontends that send 64 KiB and more overflow the size: such a packet is dropped, as in Linux netback.
            good &= slot.size <= self.slots[0].size;
            self.slots[0].size = self.slots[0].size.wrapping_sub(slot.size);
        }
        let total = self.ids.len() - skip as usize;
        let packet = Packet { slots: total, len: first.size, flags: first.flags, gso, good };
        if !good {
            self.bounce.front(0);
            return Ok(Some(packet));
        }
        check_place(self.slots[0])?;
        Ok(self.gather(packet.len.into(), filler).then_some(packet))
    }

    /// Plans the copies of the front of a packet of `len` bytes, and adds the segments of its body. False if there is no
    /// room for these.
    fn gather(&mut self, len: usize, filler: &mut Filler<'_>) -> bool {
        let (mut to, bytes) = self.bounce.front(len);
        let mut left = bytes;
        for slot in &self.slots {
            let place = Place { domain: self.domain, reference: slot.reference, offset: slot.offset };
            let front = usize::from(slot.size).min(left);
            if front > 0 {
                self.copies.push(GrantCopy::new(End::Guest(place), to, front as u16));
                (to, left) = (to.after(front), left - front);
            }
            let rest = slot.size - front as u16;
            if rest > 0 {
                if filler.is_full() {
                    return false;
                }
                let start = self.bounce.push(Place { offset: place.offset + front as u16, ..place }, rest);
                // SAFETY: the bounce buffer has a page for each segment of a burst, and lives as long as the batch.
                unsafe { filler.segment(start, rest.into()) };
            }
        }
        if bytes > HEAD {
            if filler.is_full() {
                return false;
            }
            let start = self.bounce.push_rest(bytes - HEAD);
            // SAFETY: the front has so many bytes after the head, and lives as long as the batch.
            unsafe { filler.segment(start, (bytes - HEAD) as u32) };
        }
        true
    }

    /// Copies the fronts of all frames, then their heads from there, and sets their offloads. False as in
    /// [`Transmit::offer`].
    fn copy_fronts(&mut self, filler: &mut Filler<'_>) -> Result<bool, Violation> {
        // SAFETY: the copies of a frame lie one after the other within its front, which has that many bytes in the
        // bounce buffer.
        unsafe { self.host.copy(&mut self.copies) };
        if let Some(failed) = self.copies.iter().find(|copy| !copy.done()) {
            if let (true, End::Guest(place)) = (failed.refused(), failed.from()) {
                return Err(Violation::Grant(place.reference));
            }
            // The frames stay in the ring and are offered again.
            self.packets.clear();
            self.ids.clear();
            filler.clear();
            return Ok(false);
        }
        for (index, packet) in self.packets.iter_mut().enumerate().filter(|(_, packet)| packet.good) {
            // SAFETY: there are HEAD bytes on either side, and no copy to the bounce buffer is under way.
            unsafe { crate::access::copy(self.bounce.head(index), filler.heads().add(index * HEAD), HEAD) };
            packet.good = filler.decide(index, |len, head| netif::offload(packet.flags, packet.gso, len, head));
        }
        Ok(true)
    }

    /// Responds to the first `frames` frames of the last offer.
    ///
    /// # Errors
    /// A grant was revoked before a receiver copied the frame's bytes.
    pub(super) fn consume(&mut self, frames: usize) -> Result<(), Violation> {
        let mut answered = 0;
        for packet in self.packets.drain(..frames) {
            let status = if packet.good { OKAY } else { ERROR };
            for id in &self.ids[answered..answered + packet.slots] {
                self.ring.respond(id.map_or(netif::tx_response(0, NULL), |id| netif::tx_response(id, status)));
            }
            answered += packet.slots;
        }
        self.ids.drain(..answered);
        self.bounce.withdrawn().map_or(Ok(()), |reference| Err(Violation::Grant(reference)))
    }
}

/// Checks that a slot's bytes lie in one page.
fn check_place(slot: TxRequest) -> Result<(), Violation> {
    let TxRequest { offset, size, .. } = slot;
    let fits = usize::from(offset) + usize::from(size) <= PAGE;
    if fits { Ok(()) } else { Err(Violation::PageCrossing { offset, size }) }
}
