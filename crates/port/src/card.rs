//! A network card of this computer: frames go to and from the wire without the host's stack, bridge or queues of ours.
//!
//! Two packet sockets with a mapped ring each, so that a burst costs one system call to send and none to receive; in a
//! paravirtual Xen domain each of them goes through the hypervisor. Two, as whoever waits for a socket to be readable is also told
//! of each frame that it has sent: nobody waits for the one that sends. The rings are of version 2. Version 3 has no slots of a
//! fixed size, so it needs less memory, but hands frames over by the block: a lone frame waits for a timer of the kernel's, of a
//! millisecond at least. Both bear virtio's header, so that merged segments and checksums that are left to the card come and
//! go as they are.
//!
//! *Toward the wire* frames are queued where the host's own are (no PACKET_QDISC_BYPASS: past that queue the kernel would drop
//! large frames that the card cannot cut itself, and hold the ring up while there is no carrier). What finds that queue full
//! stays in the ring, and a full ring pushes back. The kernel never tells the far side of a packet socket that a slot became
//! free: it says that there is room to write whenever less than half of the send buffer is in use. So a full ring is
//! looked at again after a while.
//!
//! *From the wire* frames wait in the ring; when it is full the kernel drops them and counts ([`Control::lost`]). What the host
//! itself sends by the card goes to the wire and not to guests, and what guests send goes to the wire and not to the host:
//! for the two to talk, use a tap in a bridge, or a veth pair or macvlan of the card for the host.

mod open;
mod receive;
mod slots;
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
use receive::Receive;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use transmit::{LARGEST, Transmit};

/// Bytes of an Ethernet header, and of a VLAN tag, which an MTU does not count.
const ETHERNET: u32 = 14;
const TAG: u32 = 4;

/// When to look again whether a full ring has room, or to tell the kernel again of what it could not take.
const RETRY: Nanos = Nanos::from_micros(100);

/// The numbers of the descriptors in the poller.
const FRAMES: u32 = 0;
const CHANGES: u32 = 1;

/// Why there is no card.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is not one.
    #[error("{0:?} is no interface name: 1 to 15 bytes, without '/', '%' and spaces")]
    Name(String),
    /// There is no such interface.
    #[error("there is no interface {name}: `ip link` lists those that are")]
    Missing {
        /// The interface.
        name: String,
    },
    /// It carries something else than Ethernet.
    #[error("interface {name} carries no Ethernet frames: name a network card, or what behaves like one")]
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
    /// Not allowed.
    #[error("not allowed to take frames from interface {name}: run with CAP_NET_RAW")]
    NotAllowed {
        /// The interface.
        name: String,
    },
    /// The kernel has no packet sockets.
    #[error("this kernel has no packet sockets: load the module (`modprobe af_packet`)")]
    NoPackets,
    /// Not enough memory.
    #[error("the kernel has no {mebibytes} MiB for the rings of interface {name}: free some memory")]
    Memory {
        /// The interface.
        name: String,
        /// What the rings take.
        mebibytes: usize,
    },
    /// Anything else.
    #[error("cannot use interface {name} as a card: {step}: {error}")]
    Step {
        /// The interface.
        name: String,
        /// The system call or option that failed.
        step: &'static str,
        /// What it said.
        error: io::Error,
    },
}

/// A card. While this lives the interface takes frames for everyone (promiscuous).
pub struct Card {
    receive: Receive,
    transmit: Transmit,
    /// Not before this is it asked whether a full ring has room.
    retry: Nanos,
    /// Frames from the wire that found no slot.
    missed: u64,
    mtu: u32,
    status: Status,
    /// The interface's number, which stays where its name changes.
    index: libc::c_int,
    control: Interfaces,
    changes: Changes,
    /// Takes from the wire.
    socket: OwnedFd,
    /// Sends to it.
    sender: OwnedFd,
    /// The memory of both rings.
    _maps: [Map; 2],
}

impl Card {
    /// Opens an interface that is up.
    ///
    /// # Errors
    /// See [`Error`]: each says what to do.
    pub fn open(name: &str) -> Result<Card, Error> {
        open::open(name)
    }

    /// Looks at what came until `wanted` frames wait. Answers how many do.
    fn fill(&mut self, wanted: usize) -> usize {
        if self.status != Status::Up {
            return 0;
        }
        let count = self.receive.fill(wanted);
        if self.receive.was_losing() {
            let missed = open::missed(&self.socket);
            self.missed += missed;
            tracing::warn!(missed, "a card's ring was full: frames from the wire were lost");
        }
        count
    }

    /// Finds out how the interface is, and drops what can no longer be sent.
    fn look(&mut self) {
        open::clear_error(&self.socket);
        self.status = match self.control.state(self.index) {
            Ok(state) => {
                self.mtu = state.mtu;
                if state.up { Status::Up } else { Status::Waiting }
            }
            Err(_) => Status::Disabled("the interface was deleted: restart once there is one again".into()),
        };
        if self.status != Status::Up {
            self.transmit.abandon();
        }
    }

    /// Whether a frame, or each of the segments that it is cut into, is one of the interface's.
    fn fits(&mut self, frame: &Frame<'_>) -> bool {
        let tagged = matches!(frame.head().get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
        let whole = frame.bytes() as u32;
        let bytes = frame.offload().gso.map_or(whole, |gso| u32::from(gso.header) + u32::from(gso.size));
        let around = ETHERNET + if tagged { TAG } else { 0 };
        if bytes > self.mtu + around {
            // It may have grown since it was asked for.
            self.look();
        }
        bytes <= self.mtu + around && whole as usize <= LARGEST
    }
}

impl Source for Card {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let wanted = BURST.min(budget.frames as usize);
        let count = self.fill(wanted).min(wanted);
        let mut filler = burst.fill();
        filler.push_all(budget, (0..count).map(|index| self.receive.frame(index)));
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        self.receive.consume(frames);
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
            } else if !self.transmit.is_free(0) {
                self.retry = now + RETRY;
                Refusal::Full
            } else {
                self.transmit.push(&frame);
                accepted += 1;
                continue;
            };
            return Put { accepted, refusal: Some(refusal) };
        }
        Put { accepted, refusal: lost }
    }

    fn room(&mut self, now: Nanos) -> Room {
        if now < self.retry {
            return Room::At(self.retry);
        }
        // A quarter at once: a slot at a time would be a round, and a system call, a frame.
        if self.status != Status::Up || self.transmit.is_free(self.transmit.count() / 4) {
            return Room::Now;
        }
        self.retry = now + RETRY;
        Room::At(self.retry)
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    /// Tells the kernel of what was put.
    fn flush(&mut self, now: Nanos) -> Nanos {
        if let Err(error) = self.transmit.send(self.sender.as_fd(), now) {
            tracing::debug!(%error, "a card does not send");
            self.look();
        }
        if self.transmit.waiting() > 0 { now + RETRY } else { Nanos::NEVER }
    }
}

impl Control for Card {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        wanted.frames && self.fill(1) > 0
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        poller.add(self.socket.as_fd(), key, FRAMES, Interest::Arrival)?;
        poller.add(self.changes.as_fd(), key, CHANGES, Interest::Read)
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        if number == CHANGES {
            self.changes.take();
            self.look();
        }
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn lost(&self) -> Drops {
        let mut lost = Drops::default();
        lost.add(DropReason::RingFull, self.missed);
        lost.add(DropReason::Refused, self.transmit.refused());
        lost
    }
}

#[cfg(test)]
mod tests;
