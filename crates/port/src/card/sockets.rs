//! A card's packet sockets, which the next process goes on with: frames wait in their rings meanwhile. What a process knows beside
//! that is where it is in each ring, and which socket is which, so a file in memory has that, and the next process gets it as well.

use super::open::{self, TRANSMIT, Which, cookie};
use super::queues::{self, Queues, RINGS};
use super::slots::{PAGE, Place};
use super::{Error, group, receive::Receive, transmit::Transmit};
use crate::interface::check;
use crate::map::Map;
use crate::store::{self, Stored};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The number of sockets: one for each ring.
const SOCKETS: usize = RINGS + 1;

/// Bytes of a word of the file. It has the sockets' cookies, then their places.
const WORD: usize = size_of::<u64>();

/// The sockets, and the file.
pub(super) struct Sockets {
    /// In the order of [`Queues`].
    receivers: Vec<Arc<OwnedFd>>,
    sender: OwnedFd,
    places: File,
}

impl Stored for Sockets {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let receivers = self.receivers.iter().map(|receiver| receiver.as_fd());
        receivers.chain([self.sender.as_fd(), self.places.as_fd()]).collect()
    }
}

/// All rings, and the memory of the last.
pub(super) struct Rings {
    pub queues: Queues,
    pub transmit: Transmit,
    pub map: Map,
}

impl Sockets {
    /// Those of the former process, if they are of this interface and their rings are as large as those of this version, or else new
    /// ones.
    ///
    /// # Errors
    /// See [`Error`].
    pub(super) fn open(name: &str, index: libc::c_int) -> Result<(Arc<Sockets>, Rings), Error> {
        let mut rings = None;
        let kept = |fds| {
            let sockets = Sockets::of(fds, index)?;
            rings = sockets.rings(name).ok();
            rings.is_some().then_some(sockets)
        };
        // To be changed with the layout of slots, the program of the group, or what the file has.
        let entry = format!("card 2 {name}");
        let sockets = store::several(&entry, kept, || Sockets::new(name, index, group::FLAGS))?;
        let rings = rings.map_or_else(|| sockets.rings(name), Ok)?;
        Ok((sockets, rings))
    }

    /// New ones, in a group with these flags.
    pub(super) fn new(name: &str, index: libc::c_int, flags: u32) -> Result<Sockets, Error> {
        // Until all are in the group, each would receive all frames.
        let receiver = |ring| open::receiver(name, index, queues::form(ring), Which::None).map(Arc::new);
        let receivers: Vec<Arc<OwnedFd>> = (0..RINGS).map(receiver).collect::<Result<_, _>>()?;
        let sender = open::sender(name, index)?;
        let sockets = || receivers.iter().map(|socket| &**socket).chain([&sender]);
        group::join(sockets(), flags).map_err(|(step, error)| open::failed(name, step)(error))?;
        let cookies: io::Result<Vec<u64>> = sockets().map(cookie).collect();
        let cookies = cookies.map_err(open::failed(name, "SO_COOKIE"))?;
        let places = memfd_create(c"places", MFdFlags::MFD_CLOEXEC).map(File::from).map_err(io::Error::from);
        let places = places.and_then(|mut file| {
            file.write_all(&cookies.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>())?;
            file.set_len(PAGE as u64).map(|()| file)
        });
        let places = places.map_err(open::failed(name, "memfd_create"))?;
        receivers
            .iter()
            .try_for_each(|socket| open::only(socket, Which::All))
            .map_err(open::failed(name, "SO_ATTACH_FILTER"))?;
        Ok(Sockets { receivers, sender, places })
    }

    /// What [`Stored::fds`] named, in any order, if the sockets are bound to this interface.
    pub(super) fn of(fds: Vec<OwnedFd>, index: libc::c_int) -> Option<Sockets> {
        let (sockets, mut files): (Vec<OwnedFd>, Vec<OwnedFd>) = fds.into_iter().partition(|fd| is_bound(fd, index));
        let places = files.pop().map(File::from).filter(|_| files.is_empty())?;
        let mut words = [0; SOCKETS * WORD];
        places.metadata().ok().filter(|file| file.len() >= PAGE as u64)?;
        places.read_exact_at(&mut words, 0).ok()?;
        let number = |socket: &OwnedFd| {
            let cookie = cookie(socket).ok()?.to_ne_bytes();
            words.chunks_exact(WORD).position(|word| word == cookie)
        };
        let mut ordered = [const { None }; SOCKETS];
        for socket in sockets {
            let number = number(&socket)?;
            ordered[number] = Some(socket);
        }
        let mut ordered = ordered.into_iter();
        let receivers = ordered.by_ref().take(RINGS).map(|socket| socket.map(Arc::new)).collect::<Option<_>>()?;
        Some(Sockets { receivers, sender: ordered.next()??, places })
    }

    /// Sends to the wire.
    pub(super) fn sender(&self) -> &OwnedFd {
        &self.sender
    }

    /// The rings, with the frames that wait in them.
    ///
    /// # Errors
    /// They cannot be mapped.
    pub(super) fn rings(&self, name: &str) -> Result<Rings, Error> {
        let place = |ring| Place::of(&self.places, SOCKETS + ring).map_err(open::failed(name, "mmap"));
        let ring = |(ring, socket): (usize, &Arc<OwnedFd>)| {
            open::receive(name, socket.clone(), queues::form(ring), place(ring)?)
        };
        let receive: Vec<Receive> = self.receivers.iter().enumerate().map(ring).collect::<Result<_, Error>>()?;
        let (map, slots) = open::map(&self.sender, name, TRANSMIT, place(RINGS)?)?;
        Ok(Rings { queues: Queues::new(receive), transmit: Transmit::new(slots), map })
    }
}

/// Whether it is a packet socket that is bound to this interface.
fn is_bound(socket: &OwnedFd, index: libc::c_int) -> bool {
    // SAFETY: a sockaddr_ll is numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` has `len` bytes to be written.
    let named = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    check(named).is_ok() && address.sll_family == libc::AF_PACKET as u16 && address.sll_ifindex == index
}
