//! The sockets of a card as one group, whose members share the frames that arrive (PACKET_FANOUT: packet(7), `fanout_add` and
//! `packet_rcv_fanout` in linux/net/packet/af_packet.c). A program says which of them gets a frame: the queue is its destination's, and
//! the ring of the queue that for its size. It is one for the older machine, for which no capability is needed.
//!
//! The sender is in the group as well, and gets no frame. The kernel does not show a group what a member sends; before Linux 6.2 a
//! group has no other way to be spared a clone of each frame that is sent.

use super::open::program;
use super::queues::QUEUES;
use super::slots::SMALL;
use crate::bpf::classic;
use crate::interface::{get, set};
use crate::turns::LAST_BYTES;
use libc::{
    BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_LEN, BPF_OR, BPF_RET, BPF_W, PACKET_FANOUT,
    PACKET_FANOUT_CBPF, PACKET_FANOUT_DATA, PACKET_FANOUT_FLAG_IGNORE_OUTGOING, PACKET_FANOUT_FLAG_UNIQUEID,
    SOL_PACKET, sock_filter,
};
use std::io;
use std::os::fd::OwnedFd;

/// What groups do that Linux 6.2 and later know: they leave out what the host sends. Older kernels ignore it.
pub(super) const FLAGS: u32 = PACKET_FANOUT_FLAG_IGNORE_OUTGOING;

/// Makes sockets that are bound to an interface a group: in the order in which they were opened, which is the order that they have
/// again after the interface was down. The first ones are those of [`Queues`](super::queues::Queues).
///
/// # Errors
/// The step that the system refused, and its error.
pub(super) fn join<'a>(
    mut sockets: impl Iterator<Item = &'a OwnedFd>,
    flags: u32,
) -> Result<(), (&'static str, io::Error)> {
    let kind = (PACKET_FANOUT_CBPF | flags) << 16;
    let enter =
        |socket, group: u32| set(socket, SOL_PACKET, PACKET_FANOUT, &group).map_err(|error| ("PACKET_FANOUT", error));
    let Some(first) = sockets.next() else { return Ok(()) };
    enter(first, kind | PACKET_FANOUT_FLAG_UNIQUEID << 16)?;
    let group = get(first, SOL_PACKET, PACKET_FANOUT, 0u32).map_err(|error| ("PACKET_FANOUT", error))?;
    sockets.try_for_each(|socket| enter(socket, kind | group & 0xffff))?;
    set(first, SOL_PACKET, PACKET_FANOUT_DATA, &program(&by_destination()))
        .map_err(|error| ("PACKET_FANOUT_DATA", error))
}

/// Returns a ring's number.
const fn by_destination() -> [sock_filter; 9] {
    // The frame begins with what follows its Ethernet header, which is read by negative addresses.
    const AT: u32 = (libc::SKF_LL_OFF + LAST_BYTES) as u32;
    const LOAD: sock_filter = classic(BPF_LD | BPF_W | BPF_ABS, AT, 0, 0);
    const QUEUE: sock_filter = classic(BPF_ALU | BPF_AND | BPF_K, QUEUES as u32 - 1, 0, 0);
    const END: sock_filter = classic(BPF_RET | BPF_A, 0, 0, 0);
    [
        classic(BPF_LD | BPF_W | BPF_LEN, 0, 0, 0),
        classic(BPF_JMP | BPF_JGT | BPF_K, SMALL, 3, 0),
        LOAD,
        QUEUE,
        END,
        LOAD,
        QUEUE,
        classic(BPF_ALU | BPF_OR | BPF_K, QUEUES as u32, 0, 0),
        END,
    ]
}
