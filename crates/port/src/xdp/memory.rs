//! The memory that all queues of a card share with the kernel (UMEM): frames of the same size, each of them either the
//! kernel's or ours, as the rings say.
//!
//! It is a file, which the next process maps too. Before the frames the file has what that process must know beside what
//! the sockets tell: what the memory is for, which socket is which, and the places of free frames to be sent. To whom a
//! frame belongs follows from the rings alone (`queue.rs`, `transmit.rs`).

use crate::map::Map;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Frames of a queue, and entries of its rings. Nothing pushes back on the wire, so they must hold the frames that
/// arrive while the worker waits for its CPU.
pub(super) const RECEIVE: u32 = 2048;

/// Frames to be sent, and entries of their rings. Those in the ring have left the scheduler's control; a large TCP frame
/// becomes up to so many.
pub(super) const TRANSMIT: u32 = 512;

/// Bytes that the kernel leaves free before a received frame (XDP_PACKET_HEADROOM of linux/bpf.h).
const HEADROOM: usize = 256;

/// Sizes of a frame that the kernel accepts: half a page and a page.
const SIZES: [usize; 2] = [2048, 4096];

/// Bytes of a page.
const PAGE: usize = 4096;

/// To be changed with the meaning of the file, or of the sockets' rings.
const FORMAT: u64 = 1;

/// Words of the file: the place in the ring of frames to groups; the layout, [`Layout::words`]; whether the stack runs the
/// program; the cookie of the socket for groups; the places of free frames; two for each queue, its socket's cookie, and
/// how many frames were reported as missed.
pub(super) const GROUPS_PLACE: usize = 0;
const LAYOUT: usize = 1;
const STACK: usize = 6;
const GROUPS: usize = 7;
const FREE: usize = 8;
const QUEUES: usize = FREE + TRANSMIT as usize;

/// What a memory is for, and its size. A process goes on with another one's only if it would make the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The interface's index.
    pub index: libc::c_int,
    /// Its address, which the program knows.
    pub address: [u8; 6],
    /// Number of its queues.
    pub queues: u32,
    /// Bytes of a frame.
    pub size: usize,
}

impl Layout {
    fn words(&self) -> [u64; STACK - LAYOUT] {
        let [a, b, c, d, e, f] = self.address;
        let address = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        [FORMAT, self.index as u64, address, self.queues.into(), self.size as u64]
    }

    /// Number of frames: those of each queue, then those to be sent.
    fn frames(&self) -> usize {
        (self.queues * RECEIVE + TRANSMIT) as usize
    }

    /// Bytes before the frames: whole pages.
    fn before(&self) -> usize {
        ((QUEUES + 2 * self.queues as usize) * size_of::<u64>()).next_multiple_of(PAGE)
    }

    /// Bytes of all frames.
    pub(super) fn bytes(&self) -> usize {
        self.frames() * self.size
    }

    /// Bytes of the file.
    fn file(&self) -> usize {
        self.before() + self.bytes()
    }
}

/// The frames, and what is before them.
pub(super) struct Memory {
    map: Map,
    pub layout: Layout,
    /// Bytes before the frames, and of all frames.
    before: usize,
    len: usize,
}

impl Memory {
    /// The size that a frame must have to hold `bytes` received bytes; none if no size is enough.
    pub(super) fn size_for(bytes: usize) -> Option<usize> {
        SIZES.into_iter().find(|size| HEADROOM + bytes <= *size)
    }

    /// Most bytes of a received frame.
    pub(super) const LARGEST: usize = SIZES[1] - HEADROOM;

    /// Makes a file with this layout.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn new(layout: Layout) -> io::Result<(Memory, File)> {
        let file = File::from(memfd_create(c"frames", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(layout.file() as u64)?;
        let memory = Memory::map(&file, layout)?;
        for (number, value) in (LAYOUT..).zip(layout.words()) {
            memory.word(number).store(value, Ordering::Relaxed);
        }
        let sent = memory.places(layout.queues * RECEIVE..layout.frames() as u32);
        (0..).zip(sent).for_each(|(number, place)| memory.set_free(number, place));
        Ok((memory, file))
    }

    /// The memory in a file of another process, if it has this layout.
    pub(super) fn of(file: &File, layout: Layout) -> Option<Memory> {
        if file.metadata().ok()?.len() != layout.file() as u64 {
            return None;
        }
        let memory = Memory::map(file, layout).ok()?;
        let read = |number| memory.word(number).load(Ordering::Relaxed);
        let is_right = (LAYOUT..).zip(layout.words()).all(|(number, value)| read(number) == value);
        is_right.then_some(memory)
    }

    fn map(file: &File, layout: Layout) -> io::Result<Memory> {
        let (before, len) = (layout.before(), layout.bytes());
        Ok(Memory { map: Map::of(file, layout.file())?, layout, before, len })
    }

    /// A word before the frames.
    #[inline]
    fn word(&self, number: usize) -> &AtomicU64 {
        debug_assert!((number + 1) * size_of::<u64>() <= self.before);
        // SAFETY: the file has more words before the frames, and they are only ever accessed in this way.
        unsafe { AtomicU64::from_ptr(self.map.start().cast::<u64>().add(number)) }
    }

    /// Notes whether the stack runs the program, not the driver.
    pub(super) fn set_in_stack(&self, in_stack: bool) {
        self.word(STACK).store(in_stack.into(), Ordering::Relaxed);
    }

    /// Whether the stack runs the program.
    pub(super) fn is_in_stack(&self) -> bool {
        self.word(STACK).load(Ordering::Relaxed) != 0
    }

    /// The cookie of the socket for frames to groups (SO_COOKIE of socket(7)). A process that is given sockets knows them by
    /// their cookies.
    pub(super) fn groups(&self) -> &AtomicU64 {
        self.word(GROUPS)
    }

    /// The cookie of a queue's socket.
    pub(super) fn socket(&self, queue: usize) -> &AtomicU64 {
        self.word(QUEUES + 2 * queue)
    }

    /// How many of the frames that a queue's socket missed were reported, by whatever process.
    pub(super) fn reported(&self, queue: usize) -> &AtomicU64 {
        self.word(QUEUES + 2 * queue + 1)
    }

    /// The place of a free frame to be sent. Numbers wrap around.
    #[inline]
    pub(super) fn free(&self, number: u32) -> u64 {
        self.word(FREE + (number % TRANSMIT) as usize).load(Ordering::Relaxed)
    }

    /// Sets the place of a free frame to be sent.
    #[inline]
    pub(super) fn set_free(&self, number: u32, place: u64) {
        self.word(FREE + (number % TRANSMIT) as usize).store(place, Ordering::Relaxed);
    }

    /// What the kernel is told about it.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.start() as u64,
            len: self.len as u64,
            chunk_size: self.layout.size as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// The places of some frames, as the rings name them.
    pub(super) fn places(&self, frames: std::ops::Range<u32>) -> impl Iterator<Item = u64> + use<> {
        let size = self.layout.size as u64;
        frames.map(move |frame| u64::from(frame) * size)
    }

    /// Most bytes of a frame to be sent.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.layout.size
    }

    /// The first frame.
    #[inline]
    fn start(&self) -> *mut u8 {
        // SAFETY: the frames follow within the mapping.
        unsafe { self.map.start().add(self.before) }
    }

    /// Some bytes.
    ///
    /// # Panics
    /// If they are not within the memory.
    ///
    /// # Safety
    /// They are of a frame that is not the kernel's as long as the reference lives, and that no other reference for
    /// writing is about.
    #[inline]
    pub(super) unsafe fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let place = place as usize;
        assert!(place.checked_add(len).is_some_and(|end| end <= self.len), "the kernel named {place}");
        #[expect(clippy::disallowed_methods, reason = "the kernel does not write to them")]
        // SAFETY: they are within the mapping, and the caller guarantees that nobody writes to them.
        unsafe {
            std::slice::from_raw_parts(self.start().add(place), len)
        }
    }

    /// All bytes of the frame at a place, for writing.
    ///
    /// # Panics
    /// As [`Memory::bytes`].
    ///
    /// # Safety
    /// As [`Memory::bytes`].
    #[inline]
    pub(super) unsafe fn frame_mut(&mut self, place: u64) -> &mut [u8] {
        let place = place as usize;
        assert!(place + self.layout.size <= self.len);
        #[expect(clippy::disallowed_methods, reason = "as above")]
        // SAFETY: as above, and no other reference into the memory lives beside this one.
        unsafe {
            std::slice::from_raw_parts_mut(self.start().add(place), self.layout.size)
        }
    }
}
