//! A Xen guest's frontend in memory: its pages and rings, on a [machine] without Xen.
#![allow(dead_code)] // each test and the fuzz target use a part

mod machine;
#[path = "../../worker/mod.rs"]
mod worker;

pub(crate) use machine::Machine;

use fairlane_core::time::Nanos;
use fairlane_port::xen::{FrontendFeatures, Link, PAGE, Place, Plug, QueueSetup, Rejection, Xen};
use fairlane_port::{Put, Sink, Source};
use machine::Sheet;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
pub(crate) use worker::*;

pub(crate) const EVERYTHING: FrontendFeatures =
    FrontendFeatures { scatter_gather: true, gso: [true; 2], checksum: [true; 2] };

pub(crate) const BLANK: u16 = 1;
pub(crate) const MORE: u16 = 4;
pub(crate) const EXTRA: u16 = 8;
const SLOTS: u32 = 256;

/// A received frame: bytes, the flags of its checksum, GSO size and type.
pub(crate) type Received = (Vec<u8>, u16, Option<(u16, u8)>);

/// A queue of a guest's network card.
pub(crate) struct Frontend {
    pub machine: Arc<Machine>,
    pub domain: u16,
    /// The first of its grant references.
    first: u32,
    tx: Arc<Sheet>,
    rx: Arc<Sheet>,
    /// Producer indices of this side.
    pub sent: u32,
    pub posted: u32,
    answered: u32,
    received: u32,
}

pub(crate) const TX: u32 = 1;
pub(crate) const RX: u32 = 2;
/// References of receive buffers, one for each slot, and of transmit pages.
pub(crate) const BUFFERS: u32 = 1000;
pub(crate) const PAGES: u32 = 5000;

impl Frontend {
    pub(crate) fn new(machine: &Arc<Machine>, domain: u16) -> Frontend {
        Frontend::counted_from(0, machine, domain)
    }

    /// One more queue of the same card.
    pub(crate) fn another(&self) -> Frontend {
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
        let mut frontend = Frontend { machine, domain, first, tx, rx, sent: 0, posted: 0, answered: 0, received: 0 };
        frontend.begin();
        frontend
    }

    /// Initializes empty rings in its pages, as a driver does before it connects.
    pub(crate) fn begin(&mut self) {
        for ring in [&self.tx, &self.rx] {
            [0, 1, 0, 1]
                .iter()
                .enumerate()
                .for_each(|(at, word)| Frontend::word(ring, at).store(*word, Ordering::Relaxed));
        }
        (self.sent, self.posted, self.answered, self.received) = (0, 0, 0, 0);
    }

    /// Writes a word of the header of a ring, [`TX`] or [`RX`].
    pub(crate) fn set_word(&self, ring: u32, at: usize, word: u32) {
        Frontend::word(if ring == TX { &self.tx } else { &self.rx }, at % 4).store(word, Ordering::Release);
    }

    pub(crate) fn setup(&self) -> QueueSetup {
        QueueSetup { rings: [self.first + TX, self.first + RX], channels: [3, 4] }
    }

    /// The link of a card with these queues.
    pub(crate) fn link(queues: &[&Frontend], features: FrontendFeatures) -> Result<Link, Rejection> {
        let setups: Vec<QueueSetup> = queues.iter().map(|queue| queue.setup()).collect();
        Link::open(queues[0].machine.clone(), queues[0].domain, &setups, features)
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
    pub(crate) fn grant(&self, reference: u32, offset: usize, bytes: &[u8]) {
        let mut grants = self.machine.grants.lock().unwrap();
        let sheet = grants.entry((self.domain, reference)).or_insert_with(Sheet::new);
        Frontend::write(sheet, offset, bytes);
    }

    /// Revokes a grant.
    pub(crate) fn withdraw(&self, reference: u32) {
        self.machine.grants.lock().unwrap().remove(&(self.domain, reference));
    }

    /// Writes 12 bytes into the next slot of the transmit ring.
    pub(crate) fn slot(&mut self, bytes: [u8; 12]) {
        Frontend::write(&self.tx, 64 + 12 * (self.sent % SLOTS) as usize, &bytes);
        self.sent = self.sent.wrapping_add(1);
    }

    pub(crate) fn request(&mut self, reference: u32, offset: u16, flags: u16, size: u16) {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&reference.to_le_bytes());
        bytes[4..6].copy_from_slice(&offset.to_le_bytes());
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..10].copy_from_slice(&(self.sent as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&size.to_le_bytes());
        self.slot(bytes);
    }

    pub(crate) fn extra(&mut self, kind: u8, flags: u8, size: u16, gso: u8) {
        let mut bytes = [0; 12];
        (bytes[0], bytes[1], bytes[4]) = (kind, flags, gso);
        bytes[2..4].copy_from_slice(&size.to_le_bytes());
        self.slot(bytes);
    }

    /// Publishes the requests so far.
    pub(crate) fn publish(&self) {
        Frontend::word(&self.tx, 0).store(self.sent, Ordering::Release);
    }

    pub(crate) fn set_producer(&self, index: u32) {
        Frontend::word(&self.tx, 0).store(index, Ordering::Release);
    }

    pub(crate) fn set_receive_producer(&self, index: u32) {
        Frontend::word(&self.rx, 0).store(index, Ordering::Release);
    }

    /// Transmits a frame in segments of at most `segment` bytes, each in a page of its own at `offset`.
    pub(crate) fn transmit(&mut self, frame: &[u8], segment: usize, offset: usize, flags: u16, gso: Option<(u16, u8)>) {
        let segments: Vec<&[u8]> = frame.chunks(segment).collect();
        for (index, bytes) in segments.iter().enumerate() {
            let reference = self.first + PAGES + self.sent % SLOTS;
            self.grant(reference, offset, bytes);
            let more = if index + 1 < segments.len() { MORE } else { 0 };
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
    pub(crate) fn transmit_slots(&mut self, frame: &[u8], sizes: &[usize]) {
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
    pub(crate) fn changes_size_and_id(&self) -> impl Fn(u16, u16) + Send + 'static {
        let ring = self.tx.clone();
        move |size, id| {
            for slot in 0..SLOTS as usize {
                let word = u32::from(id) | u32::from(size) << 16;
                Frontend::word(&ring, 16 + 3 * slot + 2).store(word, Ordering::Relaxed);
            }
        }
    }

    /// The present bytes of a slot of the transmit ring.
    pub(crate) fn transmit_slot(&self, slot: usize) -> [u8; 12] {
        Frontend::read(&self.tx, 64 + 12 * slot)
    }

    /// The present bytes of a slot of the receive ring.
    pub(crate) fn receive_slot(&self, slot: usize) -> [u8; 8] {
        Frontend::read(&self.rx, 64 + 8 * slot)
    }

    /// The transmit responses since the last call: ids and statuses.
    pub(crate) fn responses(&mut self) -> Vec<(u16, i16)> {
        let end = Frontend::word(&self.tx, 2).load(Ordering::Acquire);
        let mut responses = Vec::new();
        while self.answered != end {
            let [i0, i1, s0, s1] = Frontend::read(&self.tx, 64 + 12 * (self.answered % SLOTS) as usize);
            responses.push((u16::from_le_bytes([i0, i1]), i16::from_le_bytes([s0, s1])));
            self.answered = self.answered.wrapping_add(1);
        }
        responses
    }

    /// Posts receive buffers.
    pub(crate) fn post_buffers(&mut self, count: u32) {
        for _ in 0..count {
            self.post_buffer(self.posted as u16, self.first + BUFFERS + self.posted % SLOTS);
        }
        self.set_receive_producer(self.posted);
    }

    /// Writes a request into the next slot of the receive ring.
    pub(crate) fn post_buffer(&mut self, id: u16, reference: u32) {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&id.to_le_bytes());
        bytes[4..].copy_from_slice(&reference.to_le_bytes());
        Frontend::write(&self.rx, 64 + 8 * (self.posted % SLOTS) as usize, &bytes);
        self.posted = self.posted.wrapping_add(1);
    }

    /// The frames received since the last call, as Linux netfront reads them: bytes, flags, GSO info.
    pub(crate) fn receive(&mut self) -> Vec<Received> {
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
                    assert_eq!((extra[0], extra[1]), (1, 0), "GSO info only");
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

/// A port, its worker, and its plug.
pub(crate) struct Backend {
    worker: Worker<Xen>,
    pub plug: Option<Plug>,
    pub disconnected: mpsc::Receiver<Option<String>>,
}

impl Deref for Backend {
    type Target = Worker<Xen>;

    fn deref(&self) -> &Worker<Xen> {
        &self.worker
    }
}

impl DerefMut for Backend {
    fn deref_mut(&mut self) -> &mut Worker<Xen> {
        &mut self.worker
    }
}

impl Backend {
    pub(crate) fn new() -> Backend {
        let (sender, disconnected) = mpsc::channel();
        let on_disconnect = move |reason| sender.send(reason).unwrap();
        let (port, plug) = Xen::new("test", on_disconnect).unwrap();
        Backend { worker: Worker::new(port), plug: Some(plug), disconnected }
    }

    /// A backend whose port's plug is held elsewhere.
    pub(crate) fn around(port: Xen) -> Backend {
        Backend { worker: Worker::new(port), plug: None, disconnected: mpsc::channel().1 }
    }

    pub(crate) fn connected(frontend: &Frontend, features: FrontendFeatures) -> Backend {
        let mut backend = Backend::new();
        backend.connect(&[frontend], features);
        backend
    }

    /// Connects a card with these queues.
    pub(crate) fn connect(&mut self, queues: &[&Frontend], features: FrontendFeatures) {
        self.plug().connect(Frontend::link(queues, features).unwrap());
        self.settle();
    }

    pub(crate) fn plug(&self) -> &Plug {
        self.plug.as_ref().unwrap()
    }

    /// Puts the frames that the guest transmitted into `to`, and consumes those accepted.
    pub(crate) fn pass(&mut self, to: &mut Backend) -> Put {
        let worker = &mut self.worker;
        let batch = worker.port.offer(&mut worker.burst, ALL_FRAMES, Nanos(0));
        let put = to.port.put(&batch, 0..batch.len(), Nanos(0));
        let never = matches!(put.refusal, Some(fairlane_port::Refusal::Never(_)));
        worker.port.consume(put.accepted + usize::from(never));
        worker.port.flush(Nanos(0));
        to.port.flush(Nanos(0));
        put
    }
}

/// A frame with recognizable contents.
pub(crate) fn frame(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

/// A TCP segment over IPv4 with a blank checksum, which holds the pseudo-header's sum.
pub(crate) fn tcp_frame(payload: usize) -> Vec<u8> {
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
