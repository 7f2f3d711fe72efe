//! The program that the kernel runs for each frame that the card receives. It gives guests' frames to the socket of
//! their queue and leaves the host's to the host.
//!
//! It is attached by a link, which the kernel removes with the last descriptor of it: when the port is closed, and also if
//! this process is killed and nobody else keeps the link.

use crate::bpf::{self, COPY, EXIT, Instruction, bpf, open, to_from};
use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Commands and numbers of linux/bpf.h.
const MAP_CREATE: c_long = 0;
const MAP_UPDATE_ELEM: c_long = 2;
const LINK_CREATE: c_long = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FUNC_REDIRECT_MAP: i32 = 51;
const PSEUDO_MAP_FD: u8 = 1;
const XDP_PASS: i32 = 2;

/// Where in the stack the program runs (XDP_FLAGS of linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// In the driver, before the kernel makes a packet of the frame.
    Driver = 4,
    /// In the stack, for drivers without support: the kernel has made a packet, and copies it.
    Stack = 2,
}

/// The first fields of `union bpf_attr` for each command.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// A running program, and the map with the sockets that it gives frames to.
pub(super) struct Program {
    sockets: OwnedFd,
    /// Keeps the program, which keeps the map.
    pub link: OwnedFd,
}

impl Program {
    /// Loads the program and attaches it to an interface with this index and address, for as many queues.
    ///
    /// # Errors
    /// The step that the kernel refused, and its error: EPERM without CAP_BPF and CAP_NET_ADMIN, EBUSY or EEXIST if the
    /// interface has a program, EOPNOTSUPP if its driver runs none.
    pub(super) fn attach(
        hook: Hook,
        interface: libc::c_int,
        address: [u8; 6],
        queues: u32,
    ) -> Result<Program, (&'static str, io::Error)> {
        let map = MapCreate { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues };
        // SAFETY: it has no address.
        let sockets = unsafe { open(MAP_CREATE, &map) }.map_err(|error| ("BPF_MAP_CREATE", error))?;
        let code = instructions(address, sockets.as_raw_fd());
        let program = bpf::load(PROG_TYPE_XDP, &code).map_err(|error| ("BPF_PROG_LOAD", error))?;
        let link = LinkCreate {
            program: program.as_raw_fd() as u32,
            interface: interface as u32,
            attach_type: ATTACH_XDP,
            flags: hook as u32,
        };
        // SAFETY: it has no address.
        let link = unsafe { open(LINK_CREATE, &link) }.map_err(|error| ("BPF_LINK_CREATE", error))?;
        Ok(Program { sockets, link })
    }

    /// Gives the frames of a queue to a socket from now on.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn give(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        let socket = socket.as_raw_fd();
        let (key, value) = ((&raw const queue) as u64, (&raw const socket) as u64);
        let update = MapUpdate { map: self.sockets.as_raw_fd() as u32, _pad: 0, key, value, flags: 0 };
        // SAFETY: the map's keys and values have four bytes, as both of these.
        unsafe { bpf(MAP_UPDATE_ELEM, &update) }.map(drop)
    }
}

/// The program. Register 1 is the context (`struct xdp_md`), 2 and 3 are the frame's begin and end.
///
/// Frames to a group address are left to the host as well: a packet socket has copies of them. Those to the card's own
/// address are the host's, all others the guests'. If a queue has no socket, the host gets its frames.
fn instructions(address: [u8; 6], sockets: i32) -> [Instruction; 19] {
    const LOAD_BYTE: u8 = 0x71;
    const LOAD_HALF: u8 = 0x69;
    const LOAD_WORD: u8 = 0x61;
    const LOAD_MAP: u8 = 0x18;
    const MOVE: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const CALL: u8 = 0x85;
    const IF_ABOVE: u8 = 0x2d;
    const IF_BITS: u8 = 0x45;
    const IF_WORD_DIFFERS: u8 = 0x56;
    const IF_EQUAL: u8 = 0x15;
    // Where the context has the frame's begin and end, and the queue.
    const BEGIN: i16 = 0;
    const END: i16 = 4;
    const QUEUE: i16 = 16;
    let [a, b, c, d, e, f] = address;
    let (first, last) = (i32::from_ne_bytes([a, b, c, d]), i32::from(u16::from_ne_bytes([e, f])));
    [
        Instruction(LOAD_WORD, to_from(2, 1), BEGIN, 0),
        Instruction(LOAD_WORD, to_from(3, 1), END, 0),
        Instruction(COPY, to_from(4, 2), 0, 0),
        Instruction(ADD, to_from(4, 0), 0, 14),
        Instruction(IF_ABOVE, to_from(4, 3), 12, 0), // too short: pass
        Instruction(LOAD_BYTE, to_from(5, 2), 0, 0),
        Instruction(IF_BITS, to_from(5, 0), 10, 1), // a group: pass
        Instruction(LOAD_WORD, to_from(5, 2), 0, 0),
        Instruction(IF_WORD_DIFFERS, to_from(5, 0), 2, first), // redirect
        Instruction(LOAD_HALF, to_from(5, 2), 4, 0),
        Instruction(IF_EQUAL, to_from(5, 0), 6, last), // the host's: pass
        // redirect:
        Instruction(LOAD_WORD, to_from(2, 1), QUEUE, 0),
        Instruction(LOAD_MAP, to_from(1, PSEUDO_MAP_FD), 0, sockets),
        Instruction(0, 0, 0, 0), // the second half of it
        Instruction(MOVE, to_from(3, 0), 0, XDP_PASS),
        Instruction(CALL, 0, 0, FUNC_REDIRECT_MAP),
        Instruction(EXIT, 0, 0, 0),
        // pass:
        Instruction(MOVE, to_from(0, 0), 0, XDP_PASS),
        Instruction(EXIT, 0, 0, 0),
    ]
}
