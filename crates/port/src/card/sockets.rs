//! A card's two packet sockets, which the next process goes on with: frames wait in their rings meanwhile. What a process knows beside
//! that is where it is in the rings, so a file in memory has that, and the next process gets it as well.

use super::open::{self, RECEIVE, TRANSMIT, Which};
use super::slots::{PAGE, Place};
use super::{Error, receive::Receive, transmit::Transmit};
use crate::interface::check;
use crate::map::Map;
use crate::store::{self, Stored};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The sockets, and the file.
pub(super) struct Sockets {
    receiver: Arc<OwnedFd>,
    sender: OwnedFd,
    places: File,
}

impl Stored for Sockets {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.receiver.as_fd(), self.sender.as_fd(), self.places.as_fd()]
    }
}

/// Both rings, and the memory of the second.
pub(super) struct Rings {
    pub receive: Receive,
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
        // To be changed with the layout of slots, or the meaning of places.
        let entry = format!("card {name}");
        let sockets = store::several(&entry, kept, || Sockets::new(name, index))?;
        let rings = rings.map_or_else(|| sockets.rings(name), Ok)?;
        Ok((sockets, rings))
    }

    fn new(name: &str, index: libc::c_int) -> Result<Sockets, Error> {
        let receiver = Arc::new(open::receiver(name, index, RECEIVE, Which::All)?);
        let sender = open::sender(name, index)?;
        let places = memfd_create(c"places", MFdFlags::MFD_CLOEXEC).map(File::from).map_err(std::io::Error::from);
        let places = places.and_then(|file| file.set_len(PAGE as u64).map(|()| file));
        Ok(Sockets { receiver, sender, places: places.map_err(open::failed(name, "memfd_create"))? })
    }

    /// What [`Stored::fds`] named, in any order, if the sockets are bound to this interface.
    pub(super) fn of(fds: Vec<OwnedFd>, index: libc::c_int) -> Option<Sockets> {
        let (mut receiver, mut sender, mut places) = (None, None, None);
        for fd in fds {
            match bound(fd.as_fd()) {
                Some((to, open::ALL)) if to == index => receiver = Some(Arc::new(fd)),
                Some((to, 0)) if to == index => sender = Some(fd),
                Some(_) => return None,
                None => places = Some(File::from(fd)),
            }
        }
        let places = places.filter(|file| file.metadata().is_ok_and(|file| file.len() >= PAGE as u64));
        Some(Sockets { receiver: receiver?, sender: sender?, places: places? })
    }

    /// Sends to the wire.
    pub(super) fn sender(&self) -> BorrowedFd<'_> {
        self.sender.as_fd()
    }

    /// The rings, with the frames that wait in them.
    ///
    /// # Errors
    /// They cannot be mapped.
    pub(super) fn rings(&self, name: &str) -> Result<Rings, Error> {
        let place = |word| Place::of(&self.places, word).map_err(open::failed(name, "mmap"));
        let (received, slots) = open::map(&self.receiver, name, RECEIVE, place(0)?)?;
        let receive = Receive::new(self.receiver.clone(), received, slots);
        let (map, slots) = open::map(&self.sender, name, TRANSMIT, place(1)?)?;
        Ok(Rings { receive, transmit: Transmit::new(slots), map })
    }
}

/// The interface and the protocol that a packet socket is bound to.
fn bound(socket: BorrowedFd<'_>) -> Option<(libc::c_int, u16)> {
    // SAFETY: a sockaddr_ll is numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` has `len` bytes to be written.
    let named = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    let is_packet = check(named).is_ok() && address.sll_family == libc::AF_PACKET as u16;
    is_packet.then_some((address.sll_ifindex, address.sll_protocol))
}
