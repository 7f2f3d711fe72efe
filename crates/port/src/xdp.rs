//! A network card of the host through sockets of AF_XDP: its driver hands frames over before the kernel makes packets of
//! them, and with zero copy the card reads and writes them in this process's memory (Documentation/networking/af_xdp.rst).
//!
//! Each hardware queue of the card has a socket, all of them the same memory. A frame that arrived stays where it was
//! received until a guest has it, and is then given back; a burst takes no system call to receive, and at most one for
//! each 32 frames to send, or none while the driver polls. The driver is asked for zero copy first, then for copies, then
//! the stack does both (`Mode`). The rings are a few words and an array each (`ring.rs`), and the program that gives
//! frames to the sockets is a dozen instructions (`program.rs`): of the libraries, `xdpilone` has a licence that this
//! project does not accept, `xsk-rs` and `libxdp-sys` bring a C library, `aya` brings a loader of object files.
//!
//! *Toward the wire* frames bypass the interface's queue: a full ring pushes back, and nothing else shapes. The sockets
//! carry frames as they appear on a wire, so checksums are completed and large TCP frames cut here, which the packet
//! socket ([`card`](crate::card)) leaves to the hardware. That makes it the better choice for bulk TCP, and this one for
//! many small frames.
//!
//! *From the wire* frames to the card's own address are the host's, all other unicasts the guests'. Frames to a group
//! (broadcasts, multicasts) are for both: a program can give a frame to one side only, so it leaves them to the host,
//! whose packet socket has copies for the guests (`groups`). Without them the host would not hear ARP's questions about
//! it, and who administers it over this card would lose it.
//!
//! The next process gets everything, with what waits in the rings (`xdp/sockets.rs`).

mod memory;
mod open;
mod program;
mod queue;
mod ring;
mod sockets;
mod transmit;

use crate::card::receive::Receive;
use crate::card::{self, ETHERNET, TAG, fits};
use crate::interface::{Changes, Interfaces};
use crate::software_offload::SoftwareOffload;
use crate::{
    BURST, Batch, Burst, Control, Frame, Interest, Key, Poller, Put, Refusal, Room, Sink, Source, Status, Wanted,
};
use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::stats::{DropReason, Drops};
use fairlane_core::time::Nanos;
use memory::{Memory, TRANSMIT};
use queue::Queue;
use sockets::Sockets;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use transmit::Transmit;

/// How long to wait before a full ring is polled, or before the kernel is told again to send.
const RETRY: Nanos = Nanos::from_micros(20);

/// The port's descriptors in the poller: changes of interfaces, frames to groups, then the queues.
const CHANGES: u32 = 0;
const GROUPS: u32 = 1;
const QUEUES: u32 = 2;

/// Why a card cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No packet socket can be opened either.
    #[error(transparent)]
    Card(#[from] card::Error),
    /// The kernel has no such sockets.
    #[error("this kernel has no AF_XDP: it takes Linux 5.11 or later with CONFIG_XDP_SOCKETS")]
    NoSockets,
    /// Permission denied.
    #[error("no permission to run an XDP program on interface {name}: run with CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW")]
    NotAllowed {
        /// The interface.
        name: String,
    },
    /// Another program or socket has it.
    #[error(
        "interface {name} has an XDP program already, or its queues have sockets: end what uses it (`ip link set dev \
         {name} xdp off` removes a program that nobody holds)"
    )]
    Taken {
        /// The interface.
        name: String,
    },
    /// Its frames are too large.
    #[error("interface {name} has an MTU of {mtu}, and AF_XDP one of at most {most}: `ip link set {name} mtu {most}`")]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// The largest.
        most: u32,
    },
    /// Not enough memory.
    #[error(
        "the kernel locks no {mebibytes} MiB for the queues of interface {name}: raise LimitMEMLOCK (ulimit -l), or \
         give the card fewer queues (`ethtool -L {name} combined 1`)"
    )]
    Memory {
        /// The interface.
        name: String,
        /// Size of the memory.
        mebibytes: usize,
    },
    /// Anything else.
    #[error("interface {name} has no AF_XDP: {step}: {error}")]
    Step {
        /// The interface.
        name: String,
        /// The system call or option that failed.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// How frames get from the card into this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The card reads and writes them where they are.
    ZeroCopy,
    /// The driver hands them over, and they are copied.
    Driver,
    /// The kernel makes packets of them, and they are copied (generic XDP).
    Stack,
}

impl Display for Mode {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Mode::ZeroCopy => "zero copy",
            Mode::Driver => "copies from the driver",
            Mode::Stack => "copies from the stack (generic XDP)",
        })
    }
}

/// A card. While it is open the interface receives frames for any address (promiscuous mode).
pub struct Xdp {
    memory: Memory,
    queues: Vec<Queue>,
    /// Copies of frames to groups.
    groups: Receive,
    /// Frames of `groups` in the last offer that are not consumed.
    offered_groups: u32,
    /// The source that is next: a queue, or after them `groups`. Each offers what it has, one after the other.
    turn: usize,
    /// Whether frames were consumed since the last offer, so that it is the next source's turn.
    has_consumed: bool,
    transmit: Transmit,
    software_offload: SoftwareOffload,
    /// When a full ring may have room.
    retry: Nanos,
    mtu: u32,
    status: Status,
    mode: Mode,
    without_driver: Option<String>,
    /// The interface's index, which stays the same when its name changes.
    index: libc::c_int,
    control: Interfaces,
    changes: Changes,
    /// What the next process gets, and what keeps the program.
    _sockets: Arc<Sockets>,
}

impl Xdp {
    /// Opens an interface that is up.
    ///
    /// # Errors
    /// See [`Error`]: each variant says what to do. The packet socket may be able to use the interface nevertheless, except
    /// after [`Error::Card`].
    pub fn open(name: &str) -> Result<Xdp, Error> {
        open::open(name)
    }

    /// How frames get into this process.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why the driver does not hand them over itself, if it does not.
    pub fn without_driver(&self) -> Option<&str> {
        self.without_driver.as_deref()
    }

    /// Number of the card's queues.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Number of sources: the queues and `groups`.
    fn sources(&self) -> usize {
        self.queues.len() + 1
    }

    /// The source that comes `step` after the next one: a queue, or `groups`.
    #[inline]
    fn source(&self, step: usize) -> Option<usize> {
        let source = self.turn + step;
        let source = if source < self.sources() { source } else { source - self.sources() };
        (source < self.queues.len()).then_some(source)
    }

    /// Frames that a source offered.
    #[inline]
    fn offered(&self, source: Option<usize>) -> impl Iterator<Item = (&[u8], Offload)> {
        let queue = source.map(|source| &self.queues[source]);
        (0..queue.map_or(self.offered_groups, Queue::offered)).map(move |index| match queue {
            Some(queue) => {
                let frame = queue.frame(index);
                // SAFETY: a received frame is ours until it is consumed, for which this borrow must have ended.
                (unsafe { self.memory.bytes(frame.addr, frame.len as usize) }, Offload::default())
            }
            None => self.groups.frame(index as usize),
        })
    }

    /// Whether a source has frames.
    fn has_frames(&mut self) -> bool {
        self.status == Status::Up && (self.queues.iter_mut().any(Queue::has_frames) || self.groups.fill(1) > 0)
    }

    /// Reads the interface's state.
    fn refresh(&mut self) {
        self.groups.clear_error();
        let was_there = !matches!(self.status, Status::Disabled(_));
        self.status = self.control.status(self.index, &mut self.mtu);
        // A frame of the memory holds no more, if the MTU grew.
        self.mtu = self.mtu.min(self.memory.size() as u32 - ETHERNET - TAG);
        if was_there && matches!(self.status, Status::Disabled(_)) {
            self.transmit.abandon();
        }
    }

    /// Copies a frame into the memory, cut if it is to be. Returns why not, if not.
    #[inline]
    fn send(&mut self, frame: &Frame<'_>, now: Nanos) -> Option<Refusal> {
        let segments = frame.offload().segments(frame.bytes());
        if self.status != Status::Up {
            return Some(Refusal::Never(DropReason::ReceiverDown));
        } else if frame.bytes() < ETHERNET.into() {
            return Some(Refusal::Never(DropReason::Malformed));
        } else if !self.fits(frame) || segments > TRANSMIT.into() {
            return Some(Refusal::Never(DropReason::TooLarge));
        } else if !self.transmit.has(segments as u32, &self.memory) {
            self.retry = now + RETRY;
            return Some(Refusal::Full);
        }
        let Xdp { transmit, memory, software_offload, .. } = self;
        let sent = match frame.offload().gso {
            None => transmit.push(memory, frame),
            Some(_) => software_offload.each(frame, |bytes| transmit.push_bytes(memory, bytes)).flatten(),
        };
        // The sender changed the frame after its header was checked.
        sent.err().map(|_| Refusal::Never(DropReason::Malformed))
    }

    /// Whether a frame, or each segment that it is cut into, fits the interface.
    #[inline]
    fn fits(&mut self, frame: &Frame<'_>) -> bool {
        fits(frame, self.mtu) || {
            // The MTU may have grown since it was read.
            self.refresh();
            fits(frame, self.mtu)
        }
    }
}

impl Source for Xdp {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        if std::mem::take(&mut self.has_consumed) {
            self.turn = (self.turn + 1) % self.sources();
        }
        let mut left = if self.status == Status::Up { budget.frames.min(BURST as u32) } else { 0 };
        for step in 0..self.sources() {
            left -= match self.source(step) {
                Some(queue) => self.queues[queue].offer(left),
                None => {
                    self.offered_groups = (self.groups.fill(left as usize) as u32).min(left);
                    self.offered_groups
                }
            };
        }
        let mut filler = burst.fill();
        let this = &*self;
        filler.push_all(budget, (0..this.sources()).flat_map(|step| this.offered(this.source(step))));
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        let mut left = frames as u32;
        self.has_consumed |= left > 0;
        for step in 0..self.sources() {
            left -= match self.source(step) {
                Some(queue) => self.queues[queue].consume(left),
                None => {
                    let here = left.min(self.offered_groups);
                    self.groups.consume(here as usize);
                    self.offered_groups -= here;
                    here
                }
            };
        }
        assert!(left == 0, "no more frames are consumed than were offered");
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        self.has_frames()
    }
}

impl Sink for Xdp {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        let mut accepted = 0;
        let (frames, lost) = batch.fetch(frames);
        for index in frames {
            if let Some(refusal) = self.send(&batch.frame(index), now) {
                return Put { accepted, refusal: Some(refusal) };
            }
            accepted += 1;
        }
        Put { accepted, refusal: lost }
    }

    fn room(&mut self, now: Nanos) -> Room {
        // A quarter at once, as in the packet socket.
        if self.status != Status::Up || self.transmit.has(TRANSMIT / 4, &self.memory) {
            return Room::Now;
        }
        self.retry = self.retry.max(now + RETRY);
        Room::At(self.retry)
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    /// Tells the kernel to send what was put, and gives back what was consumed.
    fn flush(&mut self, now: Nanos) -> Nanos {
        self.queues.iter_mut().for_each(Queue::publish);
        match self.transmit.send(self.queues[0].as_fd()) {
            Ok(false) => Nanos::NEVER,
            Ok(true) => now + RETRY,
            Err(error) => {
                tracing::debug!(%error, "a card cannot send");
                self.refresh();
                Nanos::NEVER
            }
        }
    }
}

impl Control for Xdp {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        self.queues.iter().for_each(Queue::wake);
        wanted.frames && self.has_frames()
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        poller.add(self.changes.as_fd(), key, CHANGES, Interest::Read)?;
        poller.add(self.groups.as_fd(), key, GROUPS, Interest::Arrival)?;
        for (number, queue) in (QUEUES..).zip(&self.queues) {
            poller.add(queue.as_fd(), key, number, Interest::Arrival)?;
        }
        Ok(())
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        if number == CHANGES {
            self.changes.drain();
            self.refresh();
        }
    }

    fn let_go(&mut self) {
        self.flush(Nanos(0));
    }

    fn take_back(&mut self) {
        self.queues.iter_mut().for_each(Queue::find);
        self.groups.find();
        self.offered_groups = 0;
        self.transmit.find();
        self.refresh();
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn lost(&self) -> Drops {
        let mut lost = Drops::default();
        let missed: u64 = self.queues.iter().map(|queue| queue.missed(&self.memory)).sum();
        lost.add(DropReason::RingFull, missed + self.groups.missed());
        lost.add(DropReason::Refused, self.transmit.refused());
        lost
    }
}

#[cfg(test)]
mod tests;
