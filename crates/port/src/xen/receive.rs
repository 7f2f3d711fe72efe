//! A guest's receive ring: writes frames into the pages that the frontend posted, all of a burst in one call.

use super::host::{GrantCopy, Host, PAGE, Packing, SelfGranted};
use super::netif::{self, RX_EXTRA, RX_MORE};
use super::ring::{Ring, SLOTS};
use super::violation::Violation;
use crate::burst::{BURST, Batch, End, Frame, Place};
use crate::software_offload::SoftwareOffload;
use crate::{Put, Refusal};
use fairlane_core::ack::Ring as FrontendState;
use fairlane_core::packet::{Checksum, GsoKind, Offload};
use fairlane_core::stats::DropReason;
use std::ops::Range;
use std::sync::Arc;

/// The offloads of the frontend's driver, as it wrote them in xenstore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontendFeatures {
    /// It receives frames of more than one page (feature-sg).
    pub scatter_gather: bool,
    /// It receives large TCP frames over IPv4 (feature-gso-tcpv4) and over IPv6 (feature-gso-tcpv6).
    pub gso: [bool; 2],
    /// It receives blank checksums over IPv4 (not feature-no-csum-offload) and over IPv6 (feature-ipv6-csum-offload).
    pub checksum: [bool; 2],
}

impl FrontendFeatures {
    /// The flags of the first slot, if the frame can be passed on unchanged.
    #[inline]
    fn flags(self, frame: &Frame<'_>) -> Option<u16> {
        let offload = frame.offload();
        if offload == Offload::default() {
            return Some(0);
        }
        let six = usize::from(frame.head().get(12..14) == Some(&[0x86, 0xdd]));
        if let Some(gso) = offload.gso
            && (gso.ecn || !self.scatter_gather || !self.gso[usize::from(gso.kind == GsoKind::Tcp6)])
        {
            return None;
        }
        if offload.checksum != Checksum::Present && !self.checksum[six] {
            return if offload.checksum == Checksum::Valid { Some(0) } else { None };
        }
        netif::rx_flags(offload, frame.head())
    }
}

/// A running receive ring.
pub(super) struct Receive {
    ring: Ring<8>,
    domain: u16,
    host: Arc<dyn Host>,
    features: FrontendFeatures,
    /// Self-granted memory, where small frames and heads are assembled.
    granted: Option<SelfGranted>,
    /// The allocation of places in it.
    packing: Packing,
    /// Requests that were too few for a frame; 0 if the last frame found room.
    short: u32,
    /// Frames whose copies are not made yet: the number of copies before each frame's end, and of responses.
    planned: Vec<(usize, usize)>,
    /// The planned copies, and the sender's segment that each is of.
    copies: Vec<GrantCopy>,
    segments: Vec<usize>,
    responses: Vec<[u8; 8]>,
}

/// The frame is larger than all pages that the ring can hold, or than the frontend accepts.
const TOO_LARGE: Refusal = Refusal::Never(DropReason::TooLarge);

/// Bytes of the largest frame that is assembled in self-granted memory: one more copy takes less time than looking up
/// the pages that the frame lies in.
const SMALL: usize = PAGE / 2;

/// Stands for no segment of the sender's: bytes of ours.
const OURS: usize = usize::MAX;

impl Receive {
    /// A ring into which nothing was put yet.
    pub(super) fn new(ring: Ring<8>, domain: u16, host: Arc<dyn Host>, features: FrontendFeatures) -> Receive {
        let (packing, planned, copies, segments, responses) = Default::default();
        let granted = host.self_grant(BURST * SMALL / PAGE);
        Receive { ring, domain, host, features, granted, packing, short: 0, planned, copies, segments, responses }
    }

    /// Publishes what was put. True if the frontend is to be notified.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// [`Withheld::received`](crate::Withheld)
    pub(super) fn is_withheld(&self) -> bool {
        self.ring.is_withheld()
    }

    /// The state of the frontend ([`Ring::frontend_state`]).
    pub(super) fn frontend_state(&self) -> FrontendState {
        self.ring.frontend_state()
    }

    /// Whether there are more pages than when a frame last found too few.
    pub(super) fn has_room(&mut self) -> Result<bool, Violation> {
        Ok(self.ring.available(self.short)? > 0)
    }

    /// Asks for a notification when there are more pages. True if there are already.
    pub(super) fn enable_notifications(&mut self) -> bool {
        self.ring.enable_notifications(self.short)
    }

    /// Copies frames into the guest's pages until one is refused.
    ///
    /// # Errors
    /// The rule that the frontend broke.
    pub(super) fn put(
        &mut self,
        batch: &Batch<'_>,
        frames: Range<usize>,
        software: &mut SoftwareOffload,
    ) -> Result<Put, Violation> {
        let Range { start, end } = frames;
        // Frames from `first` on are planned; those before are in the guest's pages.
        let (mut first, mut next, mut refusal) = (start, start, None);
        while next < end && refusal.is_none() {
            let frame = batch.frame(next);
            match self.features.flags(&frame) {
                Some(flags) => refusal = self.plan(&frame, batch.whole(next), flags)?,
                None => {
                    // The software offload's buffers hold one frame at a time.
                    let done = self.commit(batch, first..next)?;
                    if done.refusal.is_some() {
                        return Ok(Put { accepted: first - start + done.accepted, ..done });
                    }
                    let (_, lost) = batch.fetch(next..next + 1);
                    refusal = if lost.is_some() { lost } else { self.put_with_software_offload(&frame, software)? };
                    first = next + usize::from(refusal.is_none());
                }
            }
            next += usize::from(refusal.is_none());
        }
        let done = self.commit(batch, first..next)?;
        Ok(Put { accepted: first - start + done.accepted, refusal: done.refusal.or(refusal) })
    }

    /// Plans the copies and the responses of a frame, which may be contiguous at `whole`.
    fn plan(&mut self, frame: &Frame<'_>, whole: Option<End>, flags: u16) -> Result<Option<Refusal>, Violation> {
        let len = frame.bytes() as usize;
        if let Some(refusal) = self.room(len, frame.offload())? {
            return Ok(Some(refusal));
        }
        let (front, bytes) = match whole {
            Some(place) => (place, len),
            None => self.assemble(frame),
        };
        let mut page = Pages::new(self, len, flags, frame.offload());
        page.write(front, bytes, OURS);
        if bytes < len {
            for (segment, from, len) in frame.segments() {
                page.write(from, len as usize, segment);
            }
        }
        self.planned.push((self.copies.len(), self.responses.len()));
        Ok(None)
    }

    /// Assembles a small frame, or the head of one whose body is in a guest, in self-granted memory, if there is any.
    /// Returns where the contiguous front of the frame is, and its bytes.
    fn assemble(&mut self, frame: &Frame<'_>) -> (End, usize) {
        let head = frame.head();
        let small = frame.is_here() && frame.bytes() <= SMALL as u64;
        let bytes = if small { frame.bytes() as usize } else { head.len() };
        let Some(granted) = self.granted.as_ref().filter(|_| small || !frame.is_here()) else {
            return (End::Ours(head.as_ptr().cast_mut()), head.len());
        };
        let at = self.packing.place(bytes);
        let (page, offset) = (at / PAGE, at % PAGE);
        let to = granted.start(page).wrapping_add(offset);
        if small {
            // SAFETY: `bytes` bytes from `to` on lie within the page, and belong to this frame until its copy is made.
            // At least two frames fit in a page, so there are enough pages for a burst.
            unsafe { frame.copy_to(to) };
        } else {
            // SAFETY: as above, and a head is no longer than that.
            unsafe { crate::access::copy(head.as_ptr(), to, bytes) };
        }
        (End::Guest(granted.place(page)).after(offset), bytes)
    }

    /// Why a frame cannot be put now, if it cannot.
    fn room(&mut self, len: usize, offload: Offload) -> Result<Option<Refusal>, Violation> {
        let slots = (len.div_ceil(PAGE).max(1) + usize::from(offload.gso.is_some())) as u32;
        if (slots > 1 && !self.features.scatter_gather) || slots > SLOTS {
            return Ok(Some(TOO_LARGE));
        }
        let skip = self.responses.len() as u32;
        if self.ring.available(skip)? < slots {
            self.short = slots - 1;
            return Ok(Some(Refusal::Full));
        }
        self.short = 0;
        Ok(None)
    }

    /// Makes the planned copies and answers the requests of all frames before the first whose copy failed.
    fn commit(&mut self, batch: &Batch<'_>, frames: Range<usize>) -> Result<Put, Violation> {
        // SAFETY: our own ends are heads of the batch's frames and bodies in memory, readable while the batch is
        // borrowed; they are only copied from.
        unsafe { self.host.copy(&mut self.copies) };
        let failed = self.copies.iter().position(|copy| !copy.done());
        let good = failed.map_or(self.planned.len(), |failed| {
            self.planned.iter().take_while(|(copies, _)| *copies <= failed).count()
        });
        let answered = good.checked_sub(1).map_or(0, |last| self.planned[last].1);
        let blame = failed.map(|failed| (self.copies[failed], self.segments[failed]));
        for response in self.responses.drain(..).take(answered) {
            self.ring.respond(response);
        }
        self.planned.clear();
        self.packing = Packing::default();
        self.copies.clear();
        self.segments.clear();
        let mut put = Put { accepted: good, refusal: None };
        if let Some((copy, segment)) = blame {
            // Each side is tried on its own: that one works now does not prove that the other failed.
            if let End::Guest(place) = copy.to()
                && self.refuses(place, true)
            {
                return Err(Violation::Grant(place.reference));
            }
            if let End::Guest(place) = copy.from()
                && segment != OURS
                && self.refuses(place, false)
            {
                batch.frame(frames.start + good).withdraw(segment);
            }
            put.refusal = Some(Refusal::Never(DropReason::Malformed));
        }
        Ok(put)
    }

    /// Whether copying to, or from, a guest's page fails by itself.
    #[cold]
    fn refuses(&self, place: Place, to: bool) -> bool {
        let mut byte = 0u8;
        let (ours, theirs) = (End::Ours(&raw mut byte), End::Guest(place));
        let mut trial = [if to { GrantCopy::new(ours, theirs, 1) } else { GrantCopy::new(theirs, ours, 1) }];
        // SAFETY: one byte of ours is read or written.
        unsafe { self.host.copy(&mut trial) };
        trial[0].refused()
    }

    /// Copies a frame with its checksum and segmentation done in software: all or nothing. Nothing else is planned
    /// meanwhile.
    fn put_with_software_offload(
        &mut self,
        frame: &Frame<'_>,
        software: &mut SoftwareOffload,
    ) -> Result<Option<Refusal>, Violation> {
        let outcome = software.each(frame, |bytes| match self.copy_bytes(bytes) {
            Ok(None) => Ok(()),
            Ok(Some(refusal)) => Err(Ok(refusal)),
            Err(violation) => Err(Err(violation)),
        });
        let responses = std::mem::take(&mut self.responses);
        match outcome {
            Ok(Ok(())) => {
                responses.into_iter().for_each(|response| self.ring.respond(response));
                Ok(None)
            }
            Ok(Err(Ok(Refusal::Full))) => {
                self.short += responses.len() as u32;
                Ok(Some(if self.short >= SLOTS { TOO_LARGE } else { Refusal::Full }))
            }
            Ok(Err(Ok(refusal))) => Ok(Some(refusal)),
            Ok(Err(Err(violation))) => Err(violation),
            // The sender changed the frame after its header was checked.
            Err(_) => Ok(Some(Refusal::Never(DropReason::Malformed))),
        }
    }

    /// Copies a frame from a buffer of ours at once, as the buffer is reused, and notes its responses.
    fn copy_bytes(&mut self, bytes: &[u8]) -> Result<Option<Refusal>, Violation> {
        if let Some(refusal) = self.room(bytes.len(), Offload::default())? {
            return Ok(Some(refusal));
        }
        let mut pages = Pages::new(self, bytes.len(), 0, Offload::default());
        pages.write(End::Ours(bytes.as_ptr().cast_mut()), bytes.len(), OURS);
        // SAFETY: `bytes` is readable and only copied from.
        unsafe { self.host.copy(&mut self.copies) };
        let failed = self.copies.iter().find(|copy| !copy.done()).map(|failed| (failed.refused(), failed.to()));
        self.copies.clear();
        self.segments.clear();
        match failed {
            Some((true, End::Guest(place))) => Err(Violation::Grant(place.reference)),
            Some(_) => Ok(Some(Refusal::Never(DropReason::Malformed))),
            None => Ok(None),
        }
    }
}

/// Writes a frame into the pages of the next requests, which are available.
struct Pages<'a> {
    receive: &'a mut Receive,
    to: Place,
    /// Bytes of the frame that are not written yet.
    left: usize,
    /// Bytes that the current page has room for.
    room: usize,
}

impl<'a> Pages<'a> {
    /// Takes the first page, and describes the frame in its response.
    fn new(receive: &'a mut Receive, len: usize, flags: u16, offload: Offload) -> Pages<'a> {
        let mut pages = Pages { receive, to: Place::default(), left: len, room: 0 };
        pages.next(flags | if offload.gso.is_some() { RX_EXTRA } else { 0 });
        if let Some(gso) = offload.gso {
            // The extra info uses up a request; the frontend keeps its page.
            pages.receive.responses.push(netif::rx_extra(gso));
        }
        pages
    }

    /// Takes the next page, to be filled as far as the frame goes.
    fn next(&mut self, flags: u16) {
        let receive = &mut *self.receive;
        let (id, reference) = netif::rx_request(receive.ring.request(receive.responses.len() as u32));
        self.to = Place { domain: receive.domain, reference, offset: 0 };
        self.room = self.left.min(PAGE);
        let more = if self.left > PAGE { RX_MORE } else { 0 };
        receive.responses.push(netif::rx_response(id, flags | more, self.room as u16));
    }

    /// Plans the copy of `len` bytes of the sender's `segment`.
    fn write(&mut self, mut from: End, mut len: usize, segment: usize) {
        while len > 0 {
            if self.room == 0 {
                self.next(0);
            }
            let here = len.min(self.room);
            self.receive.copies.push(GrantCopy::new(from, End::Guest(self.to), here as u16));
            self.receive.segments.push(segment);
            (from, self.to.offset) = (from.after(here), self.to.offset + here as u16);
            (len, self.room, self.left) = (len - here, self.room - here, self.left - here);
        }
    }
}
