//! A network card of the host: frames go to and from the wire directly, without the host's stack and bridge, or queues
//! of our own.
//!
//! It uses packet sockets with mapped rings, so that a burst takes one system call to send and none to receive; in a
//! paravirtual Xen domain each call goes through the hypervisor. One socket sends, and others receive, because polling a
//! socket for reading also reports each frame that it has sent, and the sending socket is not polled. The rings are of
//! version 2. Version 3 has no slots of fixed size, so it needs less memory, but passes frames on in blocks: a lone frame
//! waits for a kernel timer of a millisecond at least. All rings carry virtio's header, so that merged segments and
//! partial checksums pass unchanged.
//!
//! *Toward the wire* frames enter the interface's queue like the host's own (without PACKET_QDISC_BYPASS: past that
//! queue the kernel would drop large frames that the card cannot segment, and block the ring while there is no
//! carrier). Frames that find that queue full stay in the ring, and a full ring pushes back. A packet socket does not
//! report that a slot became free: it is writable whenever less than half of its send buffer is in use. So a full ring
//! is polled after a while.
//!
//! *From the wire* frames wait in several queues, which the kernel fills by destination (`card/group.rs`), so that a flood
//! for one guest fills only that guest's (`card/queues.rs`). What finds a ring full the kernel drops and counts
//! ([`Control::lost`]). Frames that the host itself sends by the card go to the wire and not to guests, and guests' frames
//! go to the wire and not to the host: to connect the two, use a tap in a bridge, or give the host a veth pair or a macvlan
//! of the card.
//!
//! The next process gets all sockets, with what waits in their rings (`card/sockets.rs`).

mod group;
pub(crate) mod open;
mod queues;
pub(crate) mod receive;
mod slots;
mod sockets;
mod transmit;

use crate::interface::{Changes, Interfaces};
use crate::map::Map;
use crate::{
    BURST, Batch, Burst, Control, Frame, Interest, Key, Poller, Put, Refusal, Room, Sink, Source, Status, Wanted,
};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::stats::{DropReason, Drops};
use fairlane_core::time::Nanos;
use queues::Queues;
pub(crate) use slots::{Form, Place};
use sockets::Sockets;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use transmit::{LARGEST, Transmit};

/// Bytes of an Ethernet header, and of a VLAN tag, which an MTU does not include.
pub(crate) const ETHERNET: u32 = 14;
pub(crate) const TAG: u32 = 4;

/// How long to wait before a full ring is polled, or before frames are sent again that the kernel refused.
const RETRY: Nanos = Nanos::from_micros(100);

/// The port's descriptors in the poller.
const FRAMES: u32 = 0;
const CHANGES: u32 = 1;

/// Why a card cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid name.
    #[error("{0:?} is not an interface name: 1 to 15 bytes, without '/', '%' and spaces")]
    Name(String),
    /// There is no such interface.
    #[error("there is no interface {name}: `ip link` lists those that exist")]
    Missing {
        /// The interface.
        name: String,
    },
    /// It does not carry Ethernet.
    #[error("interface {name} carries no Ethernet frames: name a network card, or an interface that behaves like one")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// It is down.
    #[error("interface {name} is down: set it up with `ip link set {name} up`")]
    Down {
        /// The interface.
        name: String,
    },
    /// Permission denied.
    #[error("no permission to receive frames from interface {name}: run with CAP_NET_RAW")]
    NotAllowed {
        /// The interface.
        name: String,
    },
    /// The kernel has no packet sockets.
    #[error("this kernel has no packet sockets: load the module (`modprobe af_packet`)")]
    NoPackets,
    /// Not enough memory.
    #[error("the kernel has no {mebibytes} MiB more for the rings of interface {name}: free some memory")]
    Memory {
        /// The interface.
        name: String,
        /// Size of the ring that it has none for.
        mebibytes: usize,
    },
    /// Anything else.
    #[error("cannot use interface {name} as a card: {step}: {error}")]
    Step {
        /// The interface.
        name: String,
        /// The system call or option that failed.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// A card. While it is open the interface receives frames for any address (promiscuous mode).
pub struct Card {
    queues: Queues,
    transmit: Transmit,
    /// A full ring is not polled before this.
    retry: Nanos,
    mtu: u32,
    status: Status,
    /// The interface's index, which stays the same when its name changes.
    index: libc::c_int,
    control: Interfaces,
    changes: Changes,
    /// The sockets, which the next process gets.
    sockets: Arc<Sockets>,
    /// The memory of the transmit ring.
    _map: Map,
}

impl Card {
    /// Opens an interface that is up.
    ///
    /// # Errors
    /// See [`Error`]: each variant says what to do.
    pub fn open(name: &str) -> Result<Card, Error> {
        open::open(name)
    }

    /// Reads slots until `wanted` frames wait. Returns how many do.
    fn fill(&mut self, wanted: usize) -> usize {
        if self.status != Status::Up {
            return 0;
        }
        self.queues.fill(wanted)
    }

    /// Clears the sockets' errors, which tell that the interface was down, and reads its state.
    fn recover(&mut self) {
        self.queues.clear_errors();
        open::clear_error(self.sockets.sender());
        self.refresh();
    }

    /// Reads the interface's state, and drops frames that can no longer be sent.
    fn refresh(&mut self) {
        self.status = self.control.status(self.index, &mut self.mtu);
        if self.status != Status::Up {
            self.transmit.abandon();
        }
    }

    /// Whether a frame, or each segment that it is cut into, fits the interface.
    fn fits(&mut self, frame: &Frame<'_>) -> bool {
        let fits_now = fits(frame, self.mtu) || {
            // The MTU may have grown since it was read.
            self.refresh();
            fits(frame, self.mtu)
        };
        fits_now && frame.bytes() as usize <= LARGEST
    }
}

/// Whether a frame, or each segment that it is cut into, fits an interface with this MTU.
#[inline]
pub(crate) fn fits(frame: &Frame<'_>, mtu: u32) -> bool {
    let tagged = matches!(frame.head().get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
    let gso = frame.offload().gso;
    let bytes = gso.map_or(frame.bytes() as u32, |gso| u32::from(gso.header) + u32::from(gso.size));
    bytes <= mtu + ETHERNET + if tagged { TAG } else { 0 }
}

impl Source for Card {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let wanted = BURST.min(budget.frames as usize);
        let count = self.fill(wanted).min(wanted);
        let mut filler = burst.fill();
        filler.push_all(budget, self.queues.frames(count));
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        self.queues.consume(frames);
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        self.fill(1) > 0
    }
}

impl Sink for Card {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        let mut accepted = 0;
        let (frames, lost) = batch.fetch(frames);
        for index in frames {
            let frame = batch.frame(index);
            let refusal = if self.status != Status::Up {
                Refusal::Never(DropReason::ReceiverDown)
            } else if frame.bytes() < ETHERNET.into() {
                Refusal::Never(DropReason::Malformed)
            } else if !self.fits(&frame) {
                Refusal::Never(DropReason::TooLarge)
            } else if self.transmit.push(&frame) {
                accepted += 1;
                continue;
            } else {
                self.retry = now + RETRY;
                Refusal::Full
            };
            return Put { accepted, refusal: Some(refusal) };
        }
        Put { accepted, refusal: lost }
    }

    fn room(&mut self, now: Nanos) -> Room {
        if now < self.retry {
            return Room::At(self.retry);
        }
        // A quarter at once: a slot at a time would cost a round, and a system call, a frame.
        if self.status != Status::Up || self.transmit.has_room() {
            return Room::Now;
        }
        self.retry = now + RETRY;
        Room::At(self.retry)
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    /// Tells the kernel to send what was put.
    fn flush(&mut self, now: Nanos) -> Nanos {
        if let Err(error) = self.transmit.send(self.sockets.sender().as_fd(), now) {
            tracing::debug!(%error, "a card cannot send");
            self.recover();
        }
        if self.transmit.waiting() > 0 { now + RETRY } else { Nanos::NEVER }
    }
}

impl Control for Card {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        wanted.frames && self.fill(1) > 0
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        self.queues.sockets().try_for_each(|socket| poller.add(socket, key, FRAMES, Interest::Arrival))?;
        poller.add(self.changes.as_fd(), key, CHANGES, Interest::Read)
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        if number == CHANGES {
            self.changes.drain();
            self.recover();
        }
    }

    fn take_back(&mut self) {
        self.queues.find();
        self.transmit.find();
        self.recover();
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn lost(&self) -> Drops {
        let mut lost = Drops::default();
        lost.add(DropReason::RingFull, self.queues.missed());
        lost.add(DropReason::Refused, self.transmit.refused());
        lost
    }
}

#[cfg(test)]
mod tests;
