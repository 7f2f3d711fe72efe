//! A card's sockets, which the next process goes on with, as it cannot open others: a queue has one. Frames wait in their rings
//! meanwhile, and the program, which the link keeps, goes on giving frames to them. The memory is a file for that (`memory.rs`).
//!
//! Linux maps the rings of a socket that is in use from 6.4 on. Before, nobody goes on with it.

use super::memory::{GROUPS_PLACE, Layout, Memory, RECEIVE, TRANSMIT};
use super::open::offsets;
use super::queue::Queue;
use super::ring::{Consumer, Kind, Producer};
use crate::card::open::{cookie, receive};
use crate::card::receive::Receive;
use crate::card::{self, Form, Place};
use crate::descriptor;
use crate::store::Stored;
use libc::xdp_desc;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The packet socket's ring for frames to groups: of 30 frames.
pub(super) const GROUPS: Form = Form::large(1);

/// Both rings for what a queue receives, and for what is sent.
pub(super) type Received = (Producer<u64>, Consumer<xdp_desc>);
pub(super) type Sent = (Producer<xdp_desc>, Consumer<u64>);

/// The sockets of all queues, the packet socket for frames to groups, the program's link, and the memory's file.
pub(super) struct Sockets {
    pub queues: Vec<Arc<OwnedFd>>,
    pub groups: Arc<OwnedFd>,
    pub link: OwnedFd,
    pub file: File,
}

impl Stored for Sockets {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = self.queues.iter().chain([&self.groups]).map(AsFd::as_fd);
        sockets.chain([self.link.as_fd(), self.file.as_fd()]).collect()
    }
}

/// What is mapped.
pub(super) struct Mapped {
    pub memory: Memory,
    pub received: Vec<Received>,
    pub sent: Sent,
}

impl Sockets {
    /// What [`Stored::fds`] named, in any order, if it is all there and all right for a card with this layout. The interface
    /// is the one that they were opened for if their rings can be mapped: it takes its sockets out of use when it goes.
    pub(super) fn of(fds: Vec<OwnedFd>, layout: Layout) -> Option<(Sockets, Mapped)> {
        let kind = |fd: &OwnedFd| descriptor::kind(fd).unwrap_or_default();
        let (sockets, rest): (Vec<_>, Vec<_>) = fds.into_iter().partition(|fd| kind(fd) == libc::S_IFSOCK);
        let (mut files, mut links): (Vec<_>, Vec<_>) = rest.into_iter().partition(|fd| kind(fd) == libc::S_IFREG);
        let (file, link) = (File::from(files.pop()?), links.pop()?);
        let memory = Memory::of(&file, layout)?;
        let mut known: Vec<_> = sockets.into_iter().map(|fd| Some((cookie(&fd).ok()?, Arc::new(fd)))).collect();
        let mut take = |cookie: u64| {
            let found = known.iter_mut().find(|fd| fd.as_ref().is_some_and(|(known, _)| *known == cookie));
            found.and_then(Option::take).map(|(_, fd)| fd)
        };
        let queues = (0..layout.queues as usize).map(|queue| take(memory.socket(queue).load(Relaxed)));
        let queues: Vec<_> = queues.collect::<Option<_>>()?;
        let groups = take(memory.groups().load(Relaxed))?;
        let received = queues.iter().map(|socket| received(socket)).collect::<io::Result<_>>().ok()?;
        let sent = sent(queues.first()?).ok()?;
        Some((Sockets { queues, groups, link, file }, Mapped { memory, received, sent }))
    }

    /// Notes in the memory which socket is which.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn note(&self, memory: &Memory) -> io::Result<()> {
        memory.groups().store(cookie(&self.groups)?, Relaxed);
        for (number, socket) in self.queues.iter().enumerate() {
            memory.socket(number).store(cookie(socket)?, Relaxed);
        }
        Ok(())
    }

    /// All queues, over their rings.
    pub(super) fn queues(&self, received: Vec<Received>, memory: &Memory) -> Vec<Queue> {
        let queues = self.queues.iter().zip(received).enumerate();
        queues.map(|(number, (socket, rings))| Queue::new(socket.clone(), number, rings, memory)).collect()
    }

    /// Receives frames to groups, with those that wait.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub(super) fn groups(&self, name: &str) -> Result<Receive, card::Error> {
        let place = Place::of(&self.file, GROUPS_PLACE).map_err(card::open::failed(name, "mmap"))?;
        receive(name, self.groups.clone(), GROUPS, place)
    }
}

/// Maps a socket's rings for what a queue receives.
///
/// # Errors
/// The error of `mmap`: EBUSY if the interface is gone, or, before Linux 6.4, if the socket is in use.
pub(super) fn received(socket: &OwnedFd) -> io::Result<Received> {
    let offsets = offsets(socket)?;
    let fill = Kind { place: libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t, offsets: offsets.fr };
    let received = Kind { place: libc::XDP_PGOFF_RX_RING, offsets: offsets.rx };
    Ok((Producer::of(socket, fill, RECEIVE)?, Consumer::of(socket, received, RECEIVE)?))
}

/// Maps a socket's rings for what is sent.
///
/// # Errors
/// As [`received`].
pub(super) fn sent(socket: &OwnedFd) -> io::Result<Sent> {
    let offsets = offsets(socket)?;
    let ring = Kind { place: libc::XDP_PGOFF_TX_RING, offsets: offsets.tx };
    let sent = Kind { place: libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t, offsets: offsets.cr };
    Ok((Producer::of(socket, ring, TRANSMIT)?, Consumer::of(socket, sent, TRANSMIT)?))
}
