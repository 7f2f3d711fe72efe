//! A Xen guest's frontend in memory: pages, grants, rings and event channels, without Xen.

use fairlane_core::packet::Offload;
use fairlane_core::sched::Grant;
use fairlane_core::time::Nanos;
use fairlane_port::xen::{
    End, Events, Host, Lent, Link, PAGE, Page, Place, Plug, QueueSetup, SELF, Segment, Takes, Xen,
};
use fairlane_port::{Batch, Burst, Key, Poller, Port, Put, memory};
use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use nix::sys::eventfd::{EfdFlags, EventFd};

pub const ALL_FRAMES: Grant = Grant { bytes: u64::MAX, frames: 32 };
pub const EVERYTHING: Takes = Takes { pieces: true, gso: [true; 2], checksum: [true; 2] };

pub const BLANK: u16 = 1;
pub const MORE: u16 = 4;
pub const EXTRA: u16 = 8;
const SLOTS: u32 = 256;

#[repr(align(4096))]
struct Bytes([u8; PAGE]);

/// A guest's page, or of a larger piece one that is left behind.
struct Sheet(*mut Bytes, bool);

// SAFETY: tests touch a page from one thread at a time.
unsafe impl Send for Sheet {}
// SAFETY: as above.
unsafe impl Sync for Sheet {}

impl Drop for Sheet {
    fn drop(&mut self) {
        if self.1 {
            // SAFETY: it came from `Box::into_raw` and is dropped once.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

impl Sheet {
    fn new() -> Arc<Sheet> {
        Arc::new(Sheet(Box::into_raw(Box::new(Bytes([0; PAGE]))), true))
    }

    fn within(start: *mut u8) -> Sheet {
        Sheet(start.cast(), false)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= PAGE);
        // SAFETY: no reference is made, and the page is there.
        let bytes = unsafe { &raw mut (*self.0).0 };
        bytes.cast::<u8>().wrapping_add(offset)
    }
}

/// All domains' memory, and what they granted to us.
#[derive(Default)]
pub struct Machine {
    grants: Mutex<HashMap<(u16, u32), Arc<Sheet>>>,
    /// Calls of [`Host::copy`] with something to do, and bytes that went through this process.
    pub copies: AtomicU32,
    pub ours: AtomicU32,
    pub notified: Arc<AtomicU32>,
    /// The channels that were opened last.
    line: Mutex<Arc<Line>>,
    /// Whether there is memory to lend.
    lends: bool,
    /// A page that is not there for the next copy.
    missed: Mutex<Option<(u16, u32)>>,
    /// Calls that fail as a whole from now on.
    failing: AtomicU32,
}

impl Machine {
    /// One with memory to lend.
    pub fn lending() -> Machine {
        Machine { lends: true, ..Machine::default() }
    }

    /// Has a domain take a page away until a copy missed it.
    pub fn miss(&self, domain: u16, reference: u32) {
        *self.missed.lock().unwrap() = Some((domain, reference));
    }

    /// Has so many calls fail as a whole, as for want of memory.
    pub fn fail(&self, calls: u32) {
        self.failing.store(calls, Ordering::Relaxed);
    }

    /// Sends an event by the channel that was opened last.
    pub fn ring(&self) {
        self.line.lock().unwrap().ring();
    }

    fn sheet(&self, place: Place, len: u16) -> Option<*mut u8> {
        if self.missed.lock().unwrap().take_if(|page| *page == (place.domain, place.reference)).is_some() {
            return None;
        }
        let fits = usize::from(place.offset) + usize::from(len) <= PAGE;
        let grants = self.grants.lock().unwrap();
        grants.get(&(place.domain, place.reference)).filter(|_| fits).map(|sheet| sheet.at(place.offset.into()))
    }

    /// Pages that are mapped or granted.
    pub fn users(&self, domain: u16, reference: u32) -> usize {
        Arc::strong_count(&self.grants.lock().unwrap()[&(domain, reference)])
    }
}

impl Host for Machine {
    unsafe fn copy(&self, segments: &mut [Segment]) {
        if !segments.is_empty() {
            self.copies.fetch_add(1, Ordering::Relaxed);
            let failing = self.failing.load(Ordering::Relaxed);
            if failing > 0 {
                self.fail(failing - 1);
                return segments.iter_mut().for_each(Segment::set_not_tried);
            }
        }
        for segment in segments {
            let end = |end: End| match end {
                End::Ours(ours) => {
                    self.ours.fetch_add(segment.len().into(), Ordering::Relaxed);
                    Some(ours)
                }
                End::Guest(place) => self.sheet(place, segment.len()),
            };
            let (from, to) = (end(segment.from()), end(segment.to()));
            if let (Some(from), Some(to)) = (from, to) {
                // SAFETY: the caller's for what is ours, checked for what is a guest's.
                unsafe { std::ptr::copy(from, to, segment.len().into()) };
                segment.set_status(0);
            } else {
                segment.set_status(-3);
            }
        }
    }

    fn map(&self, domain: u16, reference: u32) -> io::Result<Page> {
        let sheet = self.grants.lock().unwrap().get(&(domain, reference)).cloned();
        let sheet = sheet.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the page is aligned, and lives as long as the reference to it.
        Ok(unsafe { Page::new(sheet.at(0), Box::new(sheet)) })
    }

    fn lend(&self, pages: usize) -> Option<Lent> {
        let layout = Layout::array::<Bytes>(pages).unwrap();
        // SAFETY: the layout is not empty.
        let start = self.lends.then(|| unsafe { alloc_zeroed(layout) })?;
        let mut grants = self.grants.lock().unwrap();
        let free = grants.len() as u32;
        let references: Vec<u32> = (free..).take(pages).collect();
        for (page, reference) in references.iter().enumerate() {
            let sheet = Arc::new(Sheet::within(start.wrapping_add(page * PAGE)));
            grants.insert((SELF, *reference), sheet);
        }
        // SAFETY: the pages are there as long as the test's process.
        Some(unsafe { Lent::new(start, references, Box::new(())) })
    }

    fn events(&self) -> io::Result<Box<dyn Events>> {
        let line = Arc::new(Line::default());
        *self.line.lock().unwrap() = line.clone();
        Ok(Box::new(Bell(self.notified.clone(), line)))
    }
}

/// An event channel: once it rang it is silent until it is listened to.
pub struct Line {
    descriptor: EventFd,
    /// Whether it is silent, and whether it rang meanwhile.
    state: Mutex<[bool; 2]>,
}

impl Default for Line {
    fn default() -> Line {
        let descriptor = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        Line { descriptor, state: Mutex::default() }
    }
}

impl Line {
    fn ring(&self) {
        let [silent, rang] = &mut *self.state.lock().unwrap();
        if *silent {
            *rang = true;
        } else {
            *silent = true;
            self.descriptor.write(1).unwrap();
        }
    }
}

struct Bell(Arc<AtomicU32>, Arc<Line>);

impl Events for Bell {
    fn bind(&self, _domain: u16, remote: u32) -> io::Result<u32> {
        if remote == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(remote + 100) }
    }
    fn notify(&self, _channel: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn take(&mut self) {
        let _ = self.1.descriptor.read();
    }
    fn listen(&mut self) {
        let [_, rang] = std::mem::take(&mut *self.1.state.lock().unwrap());
        if rang {
            self.1.ring();
        }
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.1.descriptor.as_fd()
    }
}

/// A frame as it was received: bytes, the flags about its checksum, GSO size and type.
pub type Received = (Vec<u8>, u16, Option<(u16, u8)>);

/// A queue of a guest's card.
pub struct Frontend {
    pub machine: Arc<Machine>,
    pub domain: u16,
    /// What its references are counted from.
    first: u32,
    tx: Arc<Sheet>,
    rx: Arc<Sheet>,
    /// Producer indices as this side has them.
    pub sent: u32,
    pub lent: u32,
    answered: u32,
    received: u32,
}

pub const TX: u32 = 1;
pub const RX: u32 = 2;
/// References of receive buffers, one a slot, and of transmit pages.
pub const BUFFERS: u32 = 1000;
pub const PAGES: u32 = 5000;

impl Frontend {
    pub fn new(machine: &Arc<Machine>, domain: u16) -> Frontend {
        Frontend::counted_from(0, machine, domain)
    }

    /// One more queue of the same card.
    pub fn another(&self) -> Frontend {
        Frontend::counted_from(self.first + 10_000, &self.machine, self.domain)
    }

    fn counted_from(first: u32, machine: &Arc<Machine>, domain: u16) -> Frontend {
        let (tx, rx) = (Sheet::new(), Sheet::new());
        let mut grants = machine.grants.lock().unwrap();
        for (reference, sheet) in [(TX, &tx), (RX, &rx)] {
            grants.insert((domain, first + reference), sheet.clone());
        }
        for reference in BUFFERS..BUFFERS + SLOTS {
            grants.insert((domain, first + reference), Sheet::new());
        }
        drop(grants);
        let machine = machine.clone();
        let frontend = Frontend { machine, domain, first, tx, rx, sent: 0, lent: 0, answered: 0, received: 0 };
        for ring in [&frontend.tx, &frontend.rx] {
            Frontend::word(ring, 1).store(1, Ordering::Relaxed);
            Frontend::word(ring, 3).store(1, Ordering::Relaxed);
        }
        frontend
    }

    pub fn setup(&self) -> QueueSetup {
        QueueSetup { rings: [self.first + TX, self.first + RX], channels: [3, 4] }
    }

    /// The link of a card with these queues.
    pub fn link(queues: &[&Frontend], takes: Takes) -> Result<Link, String> {
        let setups: Vec<QueueSetup> = queues.iter().map(|queue| queue.setup()).collect();
        Link::open(queues[0].machine.clone(), queues[0].domain, &setups, takes)
    }

    fn word(ring: &Sheet, at: usize) -> &AtomicU32 {
        // SAFETY: aligned, and in the page.
        unsafe { AtomicU32::from_ptr(ring.at(at * 4).cast()) }
    }

    fn write(ring: &Sheet, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE);
        // SAFETY: within the page.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ring.at(at), bytes.len()) };
    }

    fn read<const N: usize>(ring: &Sheet, at: usize) -> [u8; N] {
        assert!(at + N <= PAGE);
        // SAFETY: within the page.
        unsafe { ring.at(at).cast::<[u8; N]>().read_unaligned() }
    }

    /// Grants a page with these bytes.
    pub fn grant(&self, reference: u32, offset: usize, bytes: &[u8]) {
        let mut grants = self.machine.grants.lock().unwrap();
        let sheet = grants.entry((self.domain, reference)).or_insert_with(Sheet::new);
        Frontend::write(sheet, offset, bytes);
    }

    /// Grants no longer.
    pub fn withdraw(&self, reference: u32) {
        self.machine.grants.lock().unwrap().remove(&(self.domain, reference));
    }

    /// Puts 12 bytes into the next slot of the transmit ring.
    pub fn slot(&mut self, bytes: [u8; 12]) {
        Frontend::write(&self.tx, 64 + 12 * (self.sent % SLOTS) as usize, &bytes);
        self.sent = self.sent.wrapping_add(1);
    }

    pub fn request(&mut self, reference: u32, offset: u16, flags: u16, size: u16) {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&reference.to_le_bytes());
        bytes[4..6].copy_from_slice(&offset.to_le_bytes());
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..10].copy_from_slice(&(self.sent as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&size.to_le_bytes());
        self.slot(bytes);
    }

    pub fn extra(&mut self, kind: u8, flags: u8, size: u16, gso: u8) {
        let mut bytes = [0; 12];
        (bytes[0], bytes[1], bytes[4]) = (kind, flags, gso);
        bytes[2..4].copy_from_slice(&size.to_le_bytes());
        self.slot(bytes);
    }

    /// Shows the backend the requests so far.
    pub fn publish(&self) {
        Frontend::word(&self.tx, 0).store(self.sent, Ordering::Release);
    }

    pub fn set_producer(&self, index: u32) {
        Frontend::word(&self.tx, 0).store(index, Ordering::Release);
    }

    pub fn set_receive_producer(&self, index: u32) {
        Frontend::word(&self.rx, 0).store(index, Ordering::Release);
    }

    /// Transmits a frame in pieces of at most `piece` bytes, each in a page of its own at `offset`.
    pub fn transmit(&mut self, frame: &[u8], piece: usize, offset: usize, flags: u16, gso: Option<(u16, u8)>) {
        let pieces: Vec<&[u8]> = frame.chunks(piece).collect();
        for (index, bytes) in pieces.iter().enumerate() {
            let reference = self.first + PAGES + self.sent % SLOTS;
            self.grant(reference, offset, bytes);
            let more = if index + 1 < pieces.len() { MORE } else { 0 };
            let (own, size) = if index == 0 {
                (flags | if gso.is_some() { EXTRA } else { 0 }, frame.len())
            } else {
                (0, bytes.len())
            };
            self.request(reference, offset as u16, own | more, size as u16);
            if let Some((size, kind)) = gso.filter(|_| index == 0) {
                self.extra(1, 0, size, kind);
            }
        }
        self.publish();
    }

    /// Transmits a frame in slots of these sizes, each in a page of its own.
    pub fn transmit_slots(&mut self, frame: &[u8], sizes: &[usize]) {
        let mut at = 0;
        for (index, size) in sizes.iter().enumerate() {
            let reference = self.first + PAGES + self.sent % SLOTS;
            self.grant(reference, 0, &frame[at..at + size]);
            at += size;
            let more = if index + 1 < sizes.len() { MORE } else { 0 };
            self.request(reference, 0, more, if index == 0 { frame.len() } else { *size } as u16);
        }
        assert_eq!(at, frame.len());
        self.publish();
    }

    /// Writes size and id into every slot of the transmit ring, from any thread.
    pub fn changes_size_and_id(&self) -> impl Fn(u16, u16) + Send + 'static {
        let ring = self.tx.clone();
        move |size, id| {
            for slot in 0..SLOTS as usize {
                let word = u32::from(id) | u32::from(size) << 16;
                Frontend::word(&ring, 16 + 3 * slot + 2).store(word, Ordering::Relaxed);
            }
        }
    }

    /// The bytes of a slot as they are.
    pub fn transmit_slot(&self, slot: usize) -> [u8; 12] {
        Frontend::read(&self.tx, 64 + 12 * slot)
    }

    /// The same of the receive ring.
    pub fn receive_slot(&self, slot: usize) -> [u8; 8] {
        Frontend::read(&self.rx, 64 + 8 * slot)
    }

    /// The transmit responses since the last time: ids and statuses.
    pub fn answers(&mut self) -> Vec<(u16, i16)> {
        let end = Frontend::word(&self.tx, 2).load(Ordering::Acquire);
        let mut answers = Vec::new();
        while self.answered != end {
            let [i0, i1, s0, s1] = Frontend::read(&self.tx, 64 + 12 * (self.answered % SLOTS) as usize);
            answers.push((u16::from_le_bytes([i0, i1]), i16::from_le_bytes([s0, s1])));
            self.answered = self.answered.wrapping_add(1);
        }
        answers
    }

    /// Lends receive buffers.
    pub fn lend(&mut self, count: u32) {
        for _ in 0..count {
            let mut bytes = [0; 8];
            bytes[..2].copy_from_slice(&(self.lent as u16).to_le_bytes());
            bytes[4..].copy_from_slice(&(self.first + BUFFERS + self.lent % SLOTS).to_le_bytes());
            Frontend::write(&self.rx, 64 + 8 * (self.lent % SLOTS) as usize, &bytes);
            self.lent = self.lent.wrapping_add(1);
        }
        self.set_receive_producer(self.lent);
    }

    /// The frames received since the last time, as Linux netfront reads them: bytes, flags, GSO info.
    pub fn receive(&mut self) -> Vec<Received> {
        let end = Frontend::word(&self.rx, 2).load(Ordering::Acquire);
        let mut frames = Vec::new();
        while self.received != end {
            let (mut bytes, mut first, mut gso) = (Vec::new(), None, None);
            loop {
                assert_ne!(self.received, end, "a frame is whole when it is published");
                let response: [u8; 8] = Frontend::read(&self.rx, 64 + 8 * (self.received % SLOTS) as usize);
                let half = |at: usize| u16::from_le_bytes([response[at], response[at + 1]]);
                assert_eq!(u32::from(half(0)), self.received % 0x10000, "the id is the request's");
                let (offset, flags, status) = (half(2), half(4), half(6) as i16);
                assert!(status >= 0);
                let reference = self.first + BUFFERS + self.received % SLOTS;
                let buffer = Place { domain: self.domain, reference, offset };
                let from = self.machine.sheet(buffer, status as u16).unwrap();
                // SAFETY: that many bytes are there.
                bytes.extend(unsafe { std::slice::from_raw_parts(from, status as usize) });
                self.received = self.received.wrapping_add(1);
                if first.is_none() && flags & EXTRA != 0 {
                    let extra: [u8; 8] = Frontend::read(&self.rx, 64 + 8 * (self.received % SLOTS) as usize);
                    assert_eq!((extra[0], extra[1]), (1, 0), "GSO, and no more");
                    gso = Some((u16::from_le_bytes([extra[2], extra[3]]), extra[4]));
                    self.received = self.received.wrapping_add(1);
                }
                first.get_or_insert(flags & 3);
                if flags & MORE == 0 {
                    break;
                }
            }
            frames.push((bytes, first.unwrap(), gso));
        }
        frames
    }
}

/// A port with what a worker would hold.
pub struct Backend {
    pub port: Xen,
    pub plug: Option<Plug>,
    pub parted: mpsc::Receiver<Option<String>>,
    poller: Poller,
    burst: Box<Burst>,
}

impl Backend {
    pub fn new() -> Backend {
        let (sender, parted) = mpsc::channel();
        let told = move |reason| sender.send(reason).unwrap();
        let (port, plug) = Xen::new("test", told).unwrap();
        Backend { plug: Some(plug), parted, ..Backend::around(port) }
    }

    /// One whose port another has the plug of.
    pub fn around(mut port: Xen) -> Backend {
        let poller = Poller::new().unwrap();
        port.register(&poller, Key(0)).unwrap();
        Backend { port, plug: None, parted: mpsc::channel().1, poller, burst: Burst::new() }
    }

    /// Handles events until the port is right, for at most some seconds.
    #[track_caller]
    pub fn until(&mut self, right: impl Fn(&Xen) -> bool) {
        let mut ready = Vec::new();
        for _ in 0..2000 {
            if right(&self.port) {
                return;
            }
            self.poller.wait(Nanos::from_millis(5), &mut ready).unwrap();
            for (_, number) in ready.drain(..) {
                self.port.event(number, &self.poller, Nanos(0));
            }
        }
        panic!("the port is still {:?}", self.port.status());
    }

    pub fn connected(frontend: &Frontend, takes: Takes) -> Backend {
        let mut backend = Backend::new();
        backend.connect(&[frontend], takes);
        backend
    }

    /// Connects a card with these queues.
    pub fn connect(&mut self, queues: &[&Frontend], takes: Takes) {
        self.plug().connect(Frontend::link(queues, takes).unwrap());
        self.settle();
    }

    pub fn plug(&self) -> &Plug {
        self.plug.as_ref().unwrap()
    }

    /// Handles the events that came, and answers how many.
    pub fn settle(&mut self) -> usize {
        let mut ready = Vec::new();
        self.poller.wait(Nanos(0), &mut ready).unwrap();
        for (_, number) in &ready {
            self.port.event(*number, &self.poller, Nanos(0));
        }
        ready.len()
    }

    /// Takes and consumes what the guest transmitted.
    pub fn take(&mut self) -> Vec<(Vec<u8>, Offload)> {
        let batch = self.port.offer(&mut self.burst, ALL_FRAMES, Nanos(0));
        let frames: Vec<_> = batch.frames().map(|frame| (bytes(&frame), frame.offload())).collect();
        self.port.consume(frames.len());
        self.port.flush(Nanos(0));
        frames
    }

    /// Offers what the guest transmitted to `to`, and consumes what that takes.
    pub fn pass(&mut self, to: &mut Backend) -> Put {
        let batch = self.port.offer(&mut self.burst, ALL_FRAMES, Nanos(0));
        let put = to.port.put(&batch, 0..batch.len(), Nanos(0));
        let never = matches!(put.refusal, Some(fairlane_port::Refusal::Never(_)));
        self.port.consume(put.accepted + usize::from(never));
        self.port.flush(Nanos(0));
        to.port.flush(Nanos(0));
        put
    }

    /// Puts one frame toward the guest.
    pub fn put(&mut self, frame: &[u8], offload: Offload) -> Put {
        let (mut source, peer) = memory::pair(1);
        peer.send(frame, offload);
        let batch: Batch<'_> = source.offer(&mut self.burst, ALL_FRAMES, Nanos(0));
        let put = self.port.put(&batch, 0..1, Nanos(0));
        self.port.flush(Nanos(0));
        put
    }
}

pub fn bytes(frame: &fairlane_port::Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.read(&mut bytes);
    bytes
}

/// A frame that can be told from others.
pub fn frame(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

/// A TCP segment over IPv4, its checksum blank: the pseudo-header's sum alone.
pub fn tcp_frame(payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(((40 + payload) as u16).to_be_bytes());
    frame.extend([0, 9, 0, 0, 64, 6, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let sum = fairlane_core::packet::checksum::Sum::default().with(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0, 80, 2, 188, 0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 1, 0]);
    let length = ((20 + payload) as u16).to_be_bytes();
    let pseudo =
        fairlane_core::packet::checksum::Sum::default().with(&frame[26..34]).with(&[0, 6]).with(&length).folded();
    frame.extend(pseudo.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(self::frame(7, payload));
    frame
}
