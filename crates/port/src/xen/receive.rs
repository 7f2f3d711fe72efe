//! A guest's receive ring: frames into the pages that the guest lent, all of a burst in one call.

use super::host::{Host, Lent, PAGE, Packing, Segment};
use super::netif::{self, RX_EXTRA, RX_MORE};
use super::ring::{Ring, SLOTS};
use super::violation::Violation;
use crate::burst::{BURST, Batch, End, Frame, Place};
use crate::software_offload::SoftwareOffload;
use crate::{Put, Refusal};
use fairlane_core::ack::Ring as Standing;
use fairlane_core::packet::{Checksum, GsoKind, Offload};
use fairlane_core::stats::DropReason;
use std::ops::Range;
use std::sync::Arc;

/// What the frontend's driver does itself, as it wrote in xenstore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Frames of more than one page (feature-sg).
    pub pieces: bool,
    /// Large TCP segments over IPv4 (feature-gso-tcpv4) and over IPv6.
    pub gso: [bool; 2],
    /// Blank checksums over IPv4 (not feature-no-csum-offload) and over IPv6 (feature-ipv6-csum-offload).
    pub checksum: [bool; 2],
}

impl Takes {
    /// The flags of the first slot, if the frame can be passed on as it is.
    #[inline]
    fn flags(self, frame: &Frame<'_>) -> Option<u16> {
        let offload = frame.offload();
        if offload == Offload::default() {
            return Some(0);
        }
        let six = usize::from(frame.head().get(12..14) == Some(&[0x86, 0xdd]));
        if let Some(gso) = offload.gso
            && (gso.ecn || !self.pieces || !self.gso[usize::from(gso.kind == GsoKind::Tcp6)])
        {
            return None;
        }
        if offload.checksum != Checksum::Present && !self.checksum[six] {
            return if offload.checksum == Checksum::Valid { Some(0) } else { None };
        }
        netif::rx_flags(offload, frame.head())
    }
}

/// A receive ring in service.
pub struct Receive {
    ring: Ring<8>,
    domain: u16,
    host: Arc<dyn Host>,
    takes: Takes,
    /// Where small frames and heads are put together.
    lent: Option<Lent>,
    /// Where in it.
    packing: Packing,
    /// Requests that were not enough for a frame; 0 if the last frame found room.
    short: u32,
    /// Frames whose copies are not made yet: where their segments and responses end.
    planned: Vec<(usize, usize)>,
    /// The copies: what is copied, and the sender's piece it is of.
    segments: Vec<Segment>,
    pieces: Vec<usize>,
    responses: Vec<[u8; 8]>,
}

/// The frame is larger than all pages that the ring can hold, or than the frontend takes.
const TOO_LARGE: Refusal = Refusal::Never(DropReason::TooLarge);

/// Bytes of the largest frame that is put together in memory which a grant names: it is sooner copied once more than the pages
/// that it lies in are searched.
const SMALL: usize = PAGE / 2;

/// No piece of the sender's: bytes of ours.
const OURS: usize = usize::MAX;

impl Receive {
    /// A ring in which nothing was put yet.
    pub fn new(ring: Ring<8>, domain: u16, host: Arc<dyn Host>, takes: Takes) -> Receive {
        let (packing, planned, segments, pieces, responses) = Default::default();
        let lent = host.lend(BURST * SMALL / PAGE);
        Receive { ring, domain, host, takes, lent, packing, short: 0, planned, segments, pieces, responses }
    }

    /// Publishes what was put. True if the frontend is to be told.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// How the frontend stands ([`Ring::standing`]).
    pub fn standing(&self) -> Standing {
        self.ring.standing()
    }

    /// Whether there are more pages than when a frame last found too few.
    pub fn has_room(&mut self) -> Result<bool, Violation> {
        Ok(self.ring.available(self.short)? > 0)
    }

    /// Asks to be told when there are. True if there are already.
    pub fn enable_notifications(&mut self) -> bool {
        self.ring.enable_notifications(self.short)
    }

    /// Copies frames into the guest's pages until one is refused.
    ///
    /// # Errors
    /// The rule that the frontend broke.
    pub fn put(
        &mut self,
        batch: &Batch<'_>,
        frames: Range<usize>,
        plain: &mut SoftwareOffload,
    ) -> Result<Put, Violation> {
        let Range { start, end } = frames;
        // Frames from `first` on are planned, those before are in the guest's pages.
        let (mut first, mut next, mut refusal) = (start, start, None);
        while next < end && refusal.is_none() {
            let frame = batch.frame(next);
            match self.takes.flags(&frame) {
                Some(flags) => refusal = self.plan(&frame, batch.whole(next), flags)?,
                None => {
                    // Its bytes are in `plain`, which holds one frame at a time.
                    let done = self.commit(batch, first..next)?;
                    if done.refusal.is_some() {
                        return Ok(Put { accepted: first - start + done.accepted, ..done });
                    }
                    let (_, lost) = batch.fetch(next..next + 1);
                    refusal = if lost.is_some() { lost } else { self.put_plain(&frame, plain)? };
                    first = next + usize::from(refusal.is_none());
                }
            }
            next += usize::from(refusal.is_none());
        }
        let done = self.commit(batch, first..next)?;
        Ok(Put { accepted: first - start + done.accepted, refusal: done.refusal.or(refusal) })
    }

    /// Notes the copies and the responses of a frame, which may be in one place as a `whole`.
    fn plan(&mut self, frame: &Frame<'_>, whole: Option<End>, flags: u16) -> Result<Option<Refusal>, Violation> {
        let len = frame.bytes() as usize;
        if let Some(refusal) = self.room(len, frame.offload())? {
            return Ok(Some(refusal));
        }
        let (front, bytes) = match whole {
            Some(place) => (place, len),
            None => self.put_together(frame),
        };
        let mut page = Pages::new(self, len, flags, frame.offload());
        page.write(front, bytes, OURS);
        if bytes < len {
            for (piece, from, len) in frame.pieces() {
                page.write(from, len as usize, piece);
            }
        }
        self.planned.push((self.segments.len(), self.responses.len()));
        Ok(None)
    }

    /// Puts a small frame together, or the head of one whose body is a guest's, where it can be copied from by a grant, if such
    /// memory is there: where what is in one place then begins, and its bytes.
    fn put_together(&mut self, frame: &Frame<'_>) -> (End, usize) {
        let head = frame.head();
        let small = frame.is_here() && frame.bytes() <= SMALL as u64;
        let bytes = if small { frame.bytes() as usize } else { head.len() };
        let Some(lent) = self.lent.as_ref().filter(|_| small || !frame.is_here()) else {
            return (End::Ours(head.as_ptr().cast_mut()), head.len());
        };
        let at = self.packing.place(bytes);
        let (page, offset) = (at / PAGE, at % PAGE);
        let to = lent.start(page).wrapping_add(offset);
        if small {
            // SAFETY: so many bytes from `to` on lie within the page, and are this frame's until its copy is made. Two frames at
            // least find room in a page, so there are pages enough for a burst.
            unsafe { frame.copy_to(to) };
        } else {
            // SAFETY: as above, and a head is no longer than that.
            unsafe { crate::access::copy(head.as_ptr(), to, bytes) };
        }
        (End::Guest(lent.place(page)).after(offset), bytes)
    }

    /// Whether there is no room for a frame, and why.
    fn room(&mut self, len: usize, offload: Offload) -> Result<Option<Refusal>, Violation> {
        let slots = (len.div_ceil(PAGE).max(1) + usize::from(offload.gso.is_some())) as u32;
        if (slots > 1 && !self.takes.pieces) || slots > SLOTS {
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
        // SAFETY: what is ours are heads of the batch's frames and bodies that are in memory, readable while the batch is
        // borrowed; they are copied from only.
        unsafe { self.host.copy(&mut self.segments) };
        let failed = self.segments.iter().position(|segment| !segment.done());
        let good = failed.map_or(self.planned.len(), |failed| {
            self.planned.iter().take_while(|(segments, _)| *segments <= failed).count()
        });
        let answered = good.checked_sub(1).map_or(0, |last| self.planned[last].1);
        let blame = failed.map(|failed| (self.segments[failed], self.pieces[failed]));
        for response in self.responses.drain(..).take(answered) {
            self.ring.respond(response);
        }
        self.planned.clear();
        self.packing = Packing::default();
        self.segments.clear();
        self.pieces.clear();
        let mut put = Put { accepted: good, refusal: None };
        if let Some((segment, piece)) = blame {
            // Each side is tried for itself: that one holds now does not prove that the other failed.
            if let End::Guest(place) = segment.to()
                && self.refuses(place, true)
            {
                return Err(Violation::Grant(place.reference));
            }
            if let End::Guest(place) = segment.from()
                && piece != OURS
                && self.refuses(place, false)
            {
                batch.frame(frames.start + good).withdraw(piece);
            }
            put.refusal = Some(Refusal::Never(DropReason::Malformed));
        }
        Ok(put)
    }

    /// Whether a guest's page cannot be copied to, or from, by itself.
    #[cold]
    fn refuses(&self, place: Place, to: bool) -> bool {
        let mut byte = 0u8;
        let (ours, theirs) = (End::Ours(&raw mut byte), End::Guest(place));
        let mut trial = [if to { Segment::new(ours, theirs, 1) } else { Segment::new(theirs, ours, 1) }];
        // SAFETY: one byte of ours is read or written.
        unsafe { self.host.copy(&mut trial) };
        trial[0].refused()
    }

    /// Copies what a frame comes to when nothing is left to do on it: all or nothing. Nothing is planned meanwhile.
    fn put_plain(&mut self, frame: &Frame<'_>, plain: &mut SoftwareOffload) -> Result<Option<Refusal>, Violation> {
        let outcome = plain.each(frame, |bytes| match self.copy_bytes(bytes) {
            Ok(None) => Ok(()),
            Ok(Some(refusal)) => Err(Ok(refusal)),
            Err(violation) => Err(Err(violation)),
        });
        let answers = std::mem::take(&mut self.responses);
        match outcome {
            Ok(Ok(())) => {
                answers.into_iter().for_each(|response| self.ring.respond(response));
                Ok(None)
            }
            Ok(Err(Ok(Refusal::Full))) => {
                self.short += answers.len() as u32;
                Ok(Some(if self.short >= SLOTS { TOO_LARGE } else { Refusal::Full }))
            }
            Ok(Err(Ok(refusal))) => Ok(Some(refusal)),
            Ok(Err(Err(violation))) => Err(violation),
            // Its sender changed it since its header was checked.
            Err(_) => Ok(Some(Refusal::Never(DropReason::Malformed))),
        }
    }

    /// Copies a frame of ours at once, as what comes next takes its place, and notes its responses.
    fn copy_bytes(&mut self, bytes: &[u8]) -> Result<Option<Refusal>, Violation> {
        if let Some(refusal) = self.room(bytes.len(), Offload::default())? {
            return Ok(Some(refusal));
        }
        let mut pages = Pages::new(self, bytes.len(), 0, Offload::default());
        pages.write(End::Ours(bytes.as_ptr().cast_mut()), bytes.len(), OURS);
        // SAFETY: `bytes` is readable, and copied from only.
        unsafe { self.host.copy(&mut self.segments) };
        let failed = self.segments.iter().find(|segment| !segment.done()).map(|failed| (failed.refused(), failed.to()));
        self.segments.clear();
        self.pieces.clear();
        match failed {
            Some((true, End::Guest(place))) => Err(Violation::Grant(place.reference)),
            Some(_) => Ok(Some(Refusal::Never(DropReason::Malformed))),
            None => Ok(None),
        }
    }
}

/// Writes a frame into the pages of the next requests, which are there.
struct Pages<'a> {
    receive: &'a mut Receive,
    to: Place,
    /// Bytes of the frame that are not written yet.
    left: usize,
    /// Bytes that the page at hand still takes.
    room: usize,
}

impl<'a> Pages<'a> {
    /// Takes the first page, and says in its response what the frame is.
    fn new(receive: &'a mut Receive, len: usize, flags: u16, offload: Offload) -> Pages<'a> {
        let mut pages = Pages { receive, to: Place::default(), left: len, room: 0 };
        pages.next(flags | if offload.gso.is_some() { RX_EXTRA } else { 0 });
        if let Some(gso) = offload.gso {
            // Its request is used up by the extra info; the frontend keeps the page.
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

    /// Notes the copy of `len` bytes of the sender's `piece`.
    fn write(&mut self, mut from: End, mut len: usize, piece: usize) {
        while len > 0 {
            if self.room == 0 {
                self.next(0);
            }
            let here = len.min(self.room);
            self.receive.segments.push(Segment::new(from, End::Guest(self.to), here as u16));
            self.receive.pieces.push(piece);
            (from, self.to.offset) = (from.after(here), self.to.offset + here as u16);
            (len, self.room, self.left) = (len - here, self.room - here, self.left - here);
        }
    }
}
