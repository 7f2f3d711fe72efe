//! Opening a packet socket with rings on an interface (packet(7), linux/net/packet/af_packet.c).

use super::slots::{BLOCK, SLOT, Slots};
use super::{Card, Error};
use crate::Status;
use crate::card::receive::Receive;
use crate::card::transmit::Transmit;
use crate::interface::{self, Changes, Interfaces, check};
use crate::map::Map;
use fairlane_core::time::Nanos;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Blocks of the receive ring: 480 frames. Nothing pushes back on the wire, so it must hold the frames that arrive
/// while the worker waits for its CPU.
const RECEIVE: usize = 16;

/// Blocks of the transmit ring: 120 frames. Frames in it have left the scheduler's control.
const TRANSMIT: usize = 4;

/// The protocol number of all frames, in network byte order.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

pub(super) fn open(name: &str) -> Result<Card, Error> {
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
    // Opened before the state is read, so that no change is missed.
    let changes = Changes::open().map_err(failed("netlink socket"))?;
    let state = control.state(index).map_err(failed("SIOCGIFFLAGS"))?;
    if !state.up {
        return Err(Error::Down { name: named() });
    }
    let refused = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM) => Error::NotAllowed { name: named() },
        Some(libc::EAFNOSUPPORT) => Error::NoPackets,
        _ => failed("socket")(error),
    };
    // Without a protocol they receive nothing until they are bound, and the sending one never does.
    let socket = interface::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(refused)?;
    let sender = interface::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(refused)?;
    set(&socket, libc::PACKET_IGNORE_OUTGOING, &1).map_err(failed("PACKET_IGNORE_OUTGOING (Linux 4.20 or later)"))?;
    let (receive_map, receive) = ring(&socket, name, libc::PACKET_RX_RING, "PACKET_RX_RING", RECEIVE)?;
    let (transmit_map, transmit) = ring(&sender, name, libc::PACKET_TX_RING, "PACKET_TX_RING", TRANSMIT)?;
    raise_send_buffer(&sender);
    let all = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&socket, libc::PACKET_ADD_MEMBERSHIP, &all).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
    bind(&sender, index, 0).map_err(failed("bind"))?;
    bind(&socket, index, ALL).map_err(failed("bind"))?;
    Ok(Card {
        receive: Receive::new(receive),
        transmit: Transmit::new(transmit),
        retry: Nanos(0),
        missed: 0,
        mtu: state.mtu,
        status: Status::Up,
        index,
        control,
        changes,
        socket,
        sender,
        _maps: [receive_map, transmit_map],
    })
}

/// The error of a step that the system refused.
fn failed(name: &str, step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Step { name: name.into(), step, error }
}

/// Gives a socket a ring of `blocks` blocks. The map must live as long as the slots.
fn ring(
    socket: &OwnedFd,
    name: &str,
    option: libc::c_int,
    step: &'static str,
    blocks: usize,
) -> Result<(Map, Slots), Error> {
    let failed = |step| failed(name, step);
    set(socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))
        .map_err(failed("PACKET_VERSION"))?;
    set(socket, libc::PACKET_VNET_HDR, &1).map_err(failed("PACKET_VNET_HDR"))?;
    let slots = blocks * BLOCK;
    let request = libc::tpacket_req {
        tp_block_size: (BLOCK * SLOT) as u32,
        tp_block_nr: blocks as u32,
        tp_frame_size: SLOT as u32,
        tp_frame_nr: slots as u32,
    };
    set(socket, option, &request).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOMEM) => Error::Memory { name: name.into(), mebibytes: (slots * SLOT) >> 20 },
        _ => failed(step)(error),
    })?;
    let map = Map::of(socket, slots * SLOT).map_err(failed("mmap"))?;
    // SAFETY: the socket's mapping has the slots of its ring, for as long as the map lives.
    let slots = unsafe { Slots::new(map.start(), slots) };
    Ok((map, slots))
}

/// Sets an option of packet sockets.
fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` has `len` bytes, which the call reads.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, len) }).map(drop)
}

/// Raises the send buffer to the size of the ring. Without CAP_NET_ADMIN the system limits it (`wmem_max`), and the
/// rest waits in the ring.
fn raise_send_buffer(socket: &OwnedFd) {
    let bytes = (TRANSMIT * BLOCK * SLOT) as libc::c_int;
    for option in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
        let (value, len) = ((&raw const bytes).cast(), size_of_val(&bytes) as libc::socklen_t);
        // SAFETY: `value` has `len` bytes, which the call reads. If it fails the buffer keeps its size.
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len) };
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
