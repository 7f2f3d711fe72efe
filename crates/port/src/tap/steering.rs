//! Which of a tap's queues a frame waits in: by its destination.

use crate::bpf::{self, COPY, EXIT, Instruction, to_from};
use crate::interface::check;
use crate::turns::LAST_BYTES;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// `BPF_PROG_TYPE_SOCKET_FILTER`
const SOCKET_FILTER: u32 = 1;

/// linux/if_tun.h
const TUNSETSTEERINGEBPF: libc::c_ulong = 0x8004_54e0;

/// Steers the frames of a tap from now on.
///
/// # Errors
/// The kernel refuses it: EPERM without CAP_BPF.
pub(super) fn by_destination(tap: &File) -> io::Result<()> {
    let program = bpf::load(SOCKET_FILTER, &instructions())?;
    let program: RawFd = program.as_raw_fd();
    // SAFETY: TUNSETSTEERINGEBPF reads an int; the device keeps the program.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETSTEERINGEBPF as _, &raw const program) }).map(drop)
}

/// Returns the last bytes of the destination's address, of which the device takes the remainder.
fn instructions() -> [Instruction; 3] {
    /// Loads a big-endian word of the frame into register 0; the context is in register 6.
    const LOAD_FRAME_WORD: u8 = 0x20;
    [Instruction(COPY, to_from(6, 1), 0, 0), Instruction(LOAD_FRAME_WORD, 0, 0, LAST_BYTES), Instruction(EXIT, 0, 0, 0)]
}
