//! Opening a packet socket with rings on an interface (packet(7), linux/net/packet/af_packet.c).

use super::slots::{BLOCK, Place, SLOT, Slots};
use super::sockets::{Rings, Sockets};
use super::{Card, Error};
use crate::Status;
use crate::card::receive::Receive;
use crate::interface::{self, Changes, Interfaces, check};
use crate::map::Map;
use fairlane_core::time::Nanos;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Blocks of the receive ring: 1,020 frames in 68 MiB. Nothing pushes back on the wire, so it must hold the frames that
/// arrive while the worker waits for its CPU: as many as Linux keeps for a tap or for a CPU (`txqueuelen` and
/// `netdev_max_backlog`, 1,000).
pub(super) const RECEIVE: usize = 34;

/// Blocks of the transmit ring: 119 frames. Frames in it have left the scheduler's control.
pub(super) const TRANSMIT: usize = 4;

/// The protocol number of all frames, in network byte order.
pub(super) const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

/// An interface that is up and carries Ethernet.
pub(crate) struct Found {
    /// A request about it.
    pub request: libc::ifreq,
    /// Its index, which stays the same when its name changes.
    pub index: libc::c_int,
    /// The largest packet in one of its frames, in bytes.
    pub mtu: u32,
    /// Reads its state.
    pub control: Interfaces,
    /// Reports its changes, from before the state was read, so that none is missed.
    pub changes: Changes,
}

/// Finds an interface that is to be used as a card.
///
/// # Errors
/// There is none, or it is down or carries no Ethernet.
pub(crate) fn find(name: &str) -> Result<Found, Error> {
    let named = || name.to_owned();
    let failed = |step| failed(name, step);
    let request = interface::request(name).ok_or_else(|| Error::Name(named()))?;
    let control = Interfaces::open().map_err(failed("socket"))?;
    let index = control.index(request).map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV) => Error::Missing { name: named() },
        _ => failed("SIOCGIFINDEX")(error),
    })?;
    if !control.is_ethernet(request).map_err(failed("SIOCGIFHWADDR"))? {
        return Err(Error::NotEthernet { name: named() });
    }
    let changes = Changes::open().map_err(failed("netlink socket"))?;
    let state = control.state(index).map_err(failed("SIOCGIFFLAGS"))?;
    if !state.up {
        return Err(Error::Down { name: named() });
    }
    Ok(Found { request, index, mtu: state.mtu, control, changes })
}

pub(super) fn open(name: &str) -> Result<Card, Error> {
    let found = find(name)?;
    let (sockets, rings) = Sockets::open(name, found.index)?;
    Ok(over(found, sockets, rings))
}

/// A card over sockets of this interface.
pub(super) fn over(found: Found, sockets: Arc<Sockets>, rings: Rings) -> Card {
    let (Found { index, mtu, control, changes, .. }, Rings { receive, transmit, map }) = (found, rings);
    let (retry, status) = (Nanos(0), Status::Up);
    Card { receive, transmit, retry, mtu, status, index, control, changes, sockets, _map: map }
}

/// A socket that sends to an interface, with a ring.
///
/// # Errors
/// See [`Error`].
pub(super) fn sender(name: &str, index: libc::c_int) -> Result<OwnedFd, Error> {
    let sender = socket(name)?;
    ring(&sender, name, libc::PACKET_TX_RING, "PACKET_TX_RING", TRANSMIT)?;
    raise_send_buffer(&sender, bytes(TRANSMIT));
    bind(&sender, index, 0).map_err(failed(name, "bind"))?;
    Ok(sender)
}

/// Which frames a packet socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All.
    All,
    /// Those to a group address: multicasts and broadcasts.
    Groups,
}

/// Receives frames by a [receiver]'s socket, with those that wait in its ring.
///
/// # Errors
/// The ring cannot be mapped.
pub(crate) fn receive(name: &str, socket: Arc<OwnedFd>, blocks: usize, place: Place) -> Result<Receive, Error> {
    let (map, slots) = map(&socket, name, blocks, place)?;
    Ok(Receive::new(socket, map, slots))
}

/// A packet socket that receives frames from an interface, with a ring of `blocks` blocks for them. While it is open the
/// interface receives frames for any address (promiscuous mode).
///
/// # Errors
/// See [`Error`].
pub(crate) fn receiver(name: &str, index: libc::c_int, blocks: usize, which: Which) -> Result<OwnedFd, Error> {
    let failed = |step| failed(name, step);
    let socket = socket(name)?;
    let packet = libc::SOL_PACKET;
    set(&socket, packet, libc::PACKET_IGNORE_OUTGOING, &1)
        .map_err(failed("PACKET_IGNORE_OUTGOING (Linux 4.20 or later)"))?;
    if which == Which::Groups {
        only_groups(&socket).map_err(failed("SO_ATTACH_FILTER"))?;
    }
    ring(&socket, name, libc::PACKET_RX_RING, "PACKET_RX_RING", blocks)?;
    let all = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&socket, packet, libc::PACKET_ADD_MEMBERSHIP, &all).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
    bind(&socket, index, ALL).map_err(failed("bind"))?;
    Ok(socket)
}

/// Makes a packet socket receive frames to a group address only: those whose first byte is odd (IEEE 802.3, 3.2.3).
fn only_groups(socket: &OwnedFd) -> io::Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, 1),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// A packet socket. Without a protocol it receives nothing until it is bound to one.
fn socket(name: &str) -> Result<OwnedFd, Error> {
    interface::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => Error::NotAllowed { name: name.into() },
        Some(libc::EAFNOSUPPORT) => Error::NoPackets,
        _ => failed(name, "socket")(error),
    })
}

/// The error of a step that the system refused.
pub(crate) fn failed(name: &str, step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Step { name: name.into(), step, error }
}

/// Gives a socket a ring of `blocks` blocks.
fn ring(socket: &OwnedFd, name: &str, option: libc::c_int, step: &'static str, blocks: usize) -> Result<(), Error> {
    let failed = |step| failed(name, step);
    set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))
        .map_err(failed("PACKET_VERSION"))?;
    set(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1).map_err(failed("PACKET_VNET_HDR"))?;
    let request = libc::tpacket_req {
        tp_block_size: (BLOCK * SLOT) as u32,
        tp_block_nr: blocks as u32,
        tp_frame_size: SLOT as u32,
        tp_frame_nr: (blocks * BLOCK) as u32,
    };
    set(socket, libc::SOL_PACKET, option, &request).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOMEM) => Error::Memory { name: name.into(), mebibytes: bytes(blocks) >> 20 },
        _ => failed(step)(error),
    })
}

/// Bytes of a ring.
pub(super) fn bytes(blocks: usize) -> usize {
    blocks * BLOCK * SLOT
}

/// Maps a socket's ring. The map must live as long as the slots.
///
/// # Errors
/// The error of `mmap`; the ring has another size.
pub(super) fn map(socket: &OwnedFd, name: &str, blocks: usize, place: Place) -> Result<(Map, Slots), Error> {
    let map = Map::of(socket, bytes(blocks)).map_err(failed(name, "mmap"))?;
    // SAFETY: the socket's mapping has the slots of its ring, for as long as the map lives.
    let slots = unsafe { Slots::new(map.start(), blocks * BLOCK, place) };
    Ok((map, slots))
}

/// Sets an option of a socket, whose value points to nothing, or to what the call reads.
pub(crate) fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` has `len` bytes, which the call reads.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) }).map(drop)
}

/// Raises the send buffer to the size of the ring. Without CAP_NET_ADMIN the system limits it (`wmem_max`), and the
/// rest waits in the ring.
pub(crate) fn raise_send_buffer(socket: &OwnedFd, bytes: usize) {
    for option in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
        // If it fails the buffer keeps its size.
        let _ = set(socket, libc::SOL_SOCKET, option, &(bytes as libc::c_int));
    }
}

fn bind(socket: &OwnedFd, index: libc::c_int, protocol: u16) -> io::Result<()> {
    // SAFETY: a sockaddr_ll is numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` has `len` bytes, which the call reads.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Frames that found no free slot since the last call.
pub(super) fn missed(socket: &OwnedFd) -> u64 {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of_val(&statistics) as libc::socklen_t;
    let value = (&raw mut statistics).cast();
    // SAFETY: `statistics` has `len` bytes to be written.
    let read = check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, value, &raw mut len)
    });
    // It cannot fail: the option is as old as the rings.
    read.map_or(0, |_| statistics.tp_drops.into())
}

/// Clears the error that the socket holds since its interface went down, so that the next call does not return it.
pub(super) fn clear_error(socket: &OwnedFd) {
    let mut error: libc::c_int = 0;
    let mut len = size_of_val(&error) as libc::socklen_t;
    let value = (&raw mut error).cast();
    // SAFETY: `error` has `len` bytes to be written.
    unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, value, &raw mut len) };
}
