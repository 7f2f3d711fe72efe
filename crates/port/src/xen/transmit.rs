//! A guest's transmit ring: a burst of frames out of it. The heads of all are copied in one call, the bodies stay with the
//! guest.

use super::host::{End, Host, PAGE, Place, Segment};
use super::landing::Landing;
use super::netif::{self, ERROR, EXTRA_GSO, EXTRA_LAST, EXTRA_MORE, NULL, OKAY, TX_EXTRA, TX_MORE, TxRequest};
use super::ring::{Ring, SLOTS};
use super::violation::Violation;
use crate::burst::{BURST, Filler, HEAD};
use fairlane_core::packet::GsoKind;
use fairlane_core::sched::Grant;
use std::sync::Arc;

/// Slots of a packet at most. Every backend takes 18 (XEN_NETIF_NR_SLOTS_MIN); for more than 20 Linux netback disables a vif.
pub const MAX_SLOTS: usize = 20;

/// A transmit ring in service.
pub struct Transmit {
    ring: Ring<12>,
    domain: u16,
    host: Arc<dyn Host>,
    /// The bodies of the last offer.
    pub landing: Landing,
    /// Frames of the last offer, in order.
    packets: Vec<Packet>,
    /// The slots of all of them: ids and whether the slot had data.
    ids: Vec<Option<u16>>,
    /// The copies of their heads: whose frame, and where in it.
    parts: Vec<(Segment, usize)>,
    segments: Vec<Segment>,
}

/// A packet as its slots describe it.
#[derive(Clone, Copy)]
struct Packet {
    /// Slots with data and without.
    slots: usize,
    len: u16,
    flags: u16,
    gso: Option<(u16, GsoKind)>,
    /// Whether a frame can be made of it.
    good: bool,
}

impl Transmit {
    /// A ring from which nothing was offered yet.
    pub fn new(ring: Ring<12>, domain: u16, host: Arc<dyn Host>) -> Transmit {
        let landing = Landing::new(host.clone());
        let (packets, ids) = (Vec::with_capacity(BURST), Vec::with_capacity(SLOTS as usize));
        Transmit { ring, domain, host, landing, packets, ids, parts: Vec::new(), segments: Vec::new() }
    }

    /// Whether a frame waits.
    #[inline]
    pub fn waiting(&self) -> bool {
        self.ring.waiting()
    }

    /// Asks to be told of the next frame. True if it is there.
    pub fn arm(&mut self) -> bool {
        self.ring.arm(0)
    }

    /// Publishes what was consumed. True if the frontend is to be told.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Fills a burst with the frames that wait, as far as the grant goes.
    ///
    /// # Errors
    /// The rule that the frontend broke; the burst is of no use then.
    pub fn offer(&mut self, filler: &mut Filler<'_>, grant: Grant) -> Result<(), Violation> {
        self.packets.clear();
        self.ids.clear();
        self.parts.clear();
        self.landing.clear();
        let most = (grant.frames as usize).min(BURST);
        let mut bytes = 0;
        while self.packets.len() < most && bytes < grant.bytes {
            let skip = self.ids.len() as u32;
            if self.ring.available(skip)? == 0 {
                break;
            }
            let (first, parts) = (filler.pieces(), self.parts.len());
            match self.packet(skip, filler)? {
                Some(packet) => {
                    bytes += u64::from(packet.len);
                    filler.gathered(first, if packet.good { packet.len.into() } else { 0 });
                    self.packets.push(packet);
                }
                None => {
                    // The burst's room for pieces ends before the frame does: it comes first next time.
                    filler.abandon(first);
                    self.landing.truncate(first);
                    self.parts.truncate(parts);
                    self.ids.truncate(skip as usize);
                    break;
                }
            }
        }
        self.copy_heads(filler)
    }

    /// Reads the packet whose first slot is at `skip`: its body's pieces go to the filler. None if they do not fit.
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
        // The first slot's size is the packet's, so its own is known when all others are.
        let mut slots = [TxRequest::default(); MAX_SLOTS];
        let mut count = 1;
        slots[0] = first;
        while slots[count - 1].flags & TX_MORE != 0 {
            let at = self.ids.len() as u32;
            if self.ring.available(at)? == 0 {
                return Err(Violation::Incomplete(count));
            }
            if count == MAX_SLOTS {
                return Err(Violation::TooManySlots);
            }
            let slot = TxRequest::parse(self.ring.request(at));
            self.ids.push(Some(slot.id));
            check_place(slot)?;
            slots[count] = slot;
            count += 1;
            // Frontends that send 64 KiB and more overflow the size: such a packet is dropped, as Linux netback does.
            good &= slot.size <= slots[0].size;
            slots[0].size = slots[0].size.wrapping_sub(slot.size);
        }
        let total = self.ids.len() - skip as usize;
        let packet = Packet { slots: total, len: first.size, flags: first.flags, gso, good };
        if !good {
            return Ok(Some(packet));
        }
        check_place(slots[0])?;
        Ok(self.gather(&slots[..count], filler).then_some(packet))
    }

    /// Notes the copies of a packet's head and the pieces of its body. False if there is no room for these.
    fn gather(&mut self, slots: &[TxRequest], filler: &mut Filler<'_>) -> bool {
        let frame = self.packets.len();
        let mut at = 0;
        for slot in slots {
            let place = Place { domain: self.domain, reference: slot.reference, offset: slot.offset };
            let head = usize::from(slot.size).min(HEAD - at);
            if head > 0 {
                // Where to is set when all frames are known.
                let nowhere = End::Ours(std::ptr::without_provenance_mut(at));
                self.parts.push((Segment::new(End::Guest(place), nowhere, head as u16), frame));
            }
            at += head;
            let rest = slot.size - head as u16;
            if rest > 0 {
                let End::Guest(place) = End::Guest(place).after(head) else { return false };
                if filler.is_full() {
                    return false;
                }
                let start = self.landing.push(place, rest);
                // SAFETY: the landing has a page for each piece of a burst, and lives as long as the batch.
                unsafe { filler.piece(start, rest.into()) };
            }
        }
        true
    }

    /// Copies the heads of all frames, and sets what was left to do on each.
    fn copy_heads(&mut self, filler: &mut Filler<'_>) -> Result<(), Violation> {
        let heads = filler.heads();
        let lent = self.landing.heads();
        self.segments.clear();
        self.segments.extend(self.parts.iter().map(|(segment, frame)| {
            let End::Ours(at) = segment.to() else { return *segment };
            // `at` is the place in the head, below HEAD.
            let at = frame * HEAD + at.addr();
            let to = match lent {
                Some((_, page)) => End::Guest(page).after(at),
                None => End::Ours(heads.wrapping_add(at)),
            };
            Segment::new(segment.from(), to, segment.len())
        }));
        // SAFETY: the heads of a burst are BURST times HEAD bytes in a row, and the parts of a frame's head lie within its own.
        unsafe { self.host.copy(&mut self.segments) };
        if let Some(failed) = self.segments.iter().find(|segment| !segment.done()) {
            let End::Guest(place) = failed.from() else { return Ok(()) };
            return Err(Violation::Grant(place.reference));
        }
        if let Some((page, _)) = lent {
            // SAFETY: both have BURST times HEAD bytes, and nobody copies to the page any more.
            unsafe { std::ptr::copy_nonoverlapping(page, heads, self.packets.len() * HEAD) };
        }
        for (index, packet) in self.packets.iter_mut().enumerate().filter(|(_, packet)| packet.good) {
            packet.good = filler.decide(index, |len, head| netif::offload(packet.flags, packet.gso, len, head));
        }
        Ok(())
    }

    /// Answers the first `frames` frames of the last offer.
    ///
    /// # Errors
    /// A grant that did not hold when a receiver wanted the frame's bytes.
    pub fn consume(&mut self, frames: usize) -> Result<(), Violation> {
        let mut answered = 0;
        for packet in self.packets.drain(..frames) {
            let status = if packet.good { OKAY } else { ERROR };
            for id in &self.ids[answered..answered + packet.slots] {
                self.ring.respond(id.map_or(netif::tx_response(0, NULL), |id| netif::tx_response(id, status)));
            }
            answered += packet.slots;
        }
        self.ids.drain(..answered);
        self.landing.withdrawn().map_or(Ok(()), |reference| Err(Violation::Grant(reference)))
    }
}

/// A slot's bytes lie in one page.
fn check_place(slot: TxRequest) -> Result<(), Violation> {
    let TxRequest { offset, size, .. } = slot;
    let fits = usize::from(offset) + usize::from(size) <= PAGE;
    if fits { Ok(()) } else { Err(Violation::PageCrossing { offset, size }) }
}
