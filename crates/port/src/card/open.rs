//! Opening a packet socket with rings on an interface (packet(7), linux/net/packet/af_packet.c).

use super::receive::Receive;
use super::slots::{Form, Place, Slots};
use super::sockets::{Rings, Sockets};
use super::{Card, Error};
use crate::Status;
use crate::bpf::classic;
use crate::interface::{self, Changes, Interfaces, check, get, set};
use crate::map::Map;
use fairlane_core::time::Nanos;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// The transmit ring: of 119 frames. Frames in it have left the scheduler's control.
pub(super) const TRANSMIT: Form = Form::large(4);

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
    let (Found { index, mtu, control, changes, .. }, Rings { queues, transmit, map }) = (found, rings);
    let (retry, status) = (Nanos(0), Status::Up);
    Card { queues, transmit, retry, mtu, status, index, control, changes, sockets, _map: map }
}

/// A socket that sends to an interface, with a ring. It receives nothing, but is bound as those that do, so that it can be in a
/// [group](super::group) with them.
///
/// # Errors
/// See [`Error`].
pub(super) fn sender(name: &str, index: libc::c_int) -> Result<OwnedFd, Error> {
    let sender = socket(name)?;
    only(&sender, Which::None).map_err(failed(name, "SO_ATTACH_FILTER"))?;
    ring(&sender, name, libc::PACKET_TX_RING, "PACKET_TX_RING", TRANSMIT)?;
    raise_send_buffer(&sender, TRANSMIT.bytes());
    bind(&sender, index, ALL).map_err(failed(name, "bind"))?;
    Ok(sender)
}

/// Which frames a packet socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All that arrive.
    All,
    /// Those to a group address: multicasts and broadcasts.
    Groups,
    /// None.
    None,
}

/// Receives frames by a [receiver]'s socket, with those that wait in its ring.
///
/// # Errors
/// The ring cannot be mapped.
pub(crate) fn receive(name: &str, socket: Arc<OwnedFd>, form: Form, place: Place) -> Result<Receive, Error> {
    let (map, slots) = map(&socket, name, form, place)?;
    Ok(Receive::new(socket, map, slots))
}

/// A packet socket that receives frames from an interface, with a ring for them. While it is open the interface receives
/// frames for any address (promiscuous mode).
///
/// # Errors
/// See [`Error`].
pub(crate) fn receiver(name: &str, index: libc::c_int, form: Form, which: Which) -> Result<OwnedFd, Error> {
    let failed = |step| failed(name, step);
    let socket = socket(name)?;
    let packet = libc::SOL_PACKET;
    set(&socket, packet, libc::PACKET_IGNORE_OUTGOING, &1)
        .map_err(failed("PACKET_IGNORE_OUTGOING (Linux 4.20 or later)"))?;
    only(&socket, which).map_err(failed("SO_ATTACH_FILTER"))?;
    ring(&socket, name, libc::PACKET_RX_RING, "PACKET_RX_RING", form)?;
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

/// Makes a packet socket receive these frames from now on.
pub(super) fn only(socket: &OwnedFd, which: Which) -> io::Result<()> {
    use libc::{BPF_ABS, BPF_B, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, PACKET_OUTGOING};
    const KIND: i32 = libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE;
    let byte = |at: i32| classic(BPF_LD | BPF_B | BPF_ABS, at as u32, 0, 0);
    let end = |bytes| classic(BPF_RET | BPF_K, bytes, 0, 0);
    let code = match which {
        // A socket of its own leaves out what the host sends, by PACKET_IGNORE_OUTGOING, but a group does not before Linux 6.2.
        Which::All => {
            vec![byte(KIND), classic(BPF_JMP | BPF_JEQ | BPF_K, PACKET_OUTGOING.into(), 1, 0), end(u32::MAX), end(0)]
        }
        // The first byte of their address is odd (IEEE 802.3, 3.2.3).
        Which::Groups => vec![byte(0), classic(BPF_JMP | BPF_JSET | BPF_K, 1, 0, 1), end(u32::MAX), end(0)],
        Which::None => vec![end(0)],
    };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program(&code))
}

/// What an option reads whose value is a program, which must live until then.
pub(super) fn program(code: &[libc::sock_filter]) -> libc::sock_fprog {
    libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() }
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

/// Gives a socket a ring.
fn ring(socket: &OwnedFd, name: &str, option: libc::c_int, step: &'static str, form: Form) -> Result<(), Error> {
    let failed = |step| failed(name, step);
    set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))
        .map_err(failed("PACKET_VERSION"))?;
    set(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1).map_err(failed("PACKET_VNET_HDR"))?;
    let request = libc::tpacket_req {
        tp_block_size: form.block_bytes() as u32,
        tp_block_nr: form.blocks as u32,
        tp_frame_size: form.slot as u32,
        tp_frame_nr: form.slots() as u32,
    };
    set(socket, libc::SOL_PACKET, option, &request).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOMEM) => Error::Memory { name: name.into(), mebibytes: form.bytes() >> 20 },
        _ => failed(step)(error),
    })
}

/// Maps a socket's ring. The map must live as long as the slots.
///
/// # Errors
/// The error of `mmap`; the ring has another size.
pub(super) fn map(socket: &OwnedFd, name: &str, form: Form, place: Place) -> Result<(Map, Slots), Error> {
    let map = Map::of(socket, form.bytes()).map_err(failed(name, "mmap"))?;
    // SAFETY: the socket's mapping has the slots of its ring, for as long as the map lives.
    let slots = unsafe { Slots::new(map.start(), form, place) };
    Ok((map, slots))
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

/// What tells a socket from all others, however many processes have it.
///
/// # Errors
/// The system's error.
pub(crate) fn cookie(socket: &OwnedFd) -> io::Result<u64> {
    get(socket, libc::SOL_SOCKET, libc::SO_COOKIE, 0)
}

/// Frames that found no free slot since the last call.
pub(super) fn missed(socket: &OwnedFd) -> u64 {
    // It cannot fail: the option is as old as the rings.
    let none = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    get(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, none).map_or(0, |read| read.tp_drops.into())
}

/// Clears the error that a socket holds since its interface went down, so that the next call does not return it.
pub(super) fn clear_error(socket: &OwnedFd) {
    // Reading it does.
    let _ = get(socket, libc::SOL_SOCKET, libc::SO_ERROR, 0u32);
}
