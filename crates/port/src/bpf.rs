//! Programs for the kernel's virtual machine, by bpf(2), and for the older one of sockets.
//!
//! Ours are a few instructions each, so they are written here and loaded with single calls, instead of by a library that would bring a
//! loader of object files (aya), or libbpf.

use std::ffi::c_long;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A command of linux/bpf.h.
const PROG_LOAD: c_long = 5;

/// The first fields of `union bpf_attr` for that command.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    instructions: u32,
    start: u64,
    license: u64,
}

/// An instruction (Documentation/bpf/standardization/instruction-set.rst): code, registers (source and destination),
/// offset, constant.
#[repr(C)]
pub(crate) struct Instruction(pub u8, pub u8, pub i16, pub i32);

/// Codes of instructions that several programs have.
pub(crate) const COPY: u8 = 0xbf;
pub(crate) const EXIT: u8 = 0x95;

/// Registers: where to, and from.
pub(crate) const fn to_from(to: u8, from: u8) -> u8 {
    from << 4 | to
}

/// An instruction of the older machine, for which the programs of sockets are (linux/filter.h): its code and its constant, and how many
/// instructions a comparison skips that holds, or does not.
pub(crate) const fn classic(code: u32, constant: u32, holds: u8, or_not: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: holds, jf: or_not, k: constant }
}

/// Makes a call of bpf(2).
///
/// # Safety
/// Addresses in `attributes` are of memory that the command may read.
pub(crate) unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<c_long> {
    // SAFETY: the call reads so many bytes of `attributes`, and what the caller guarantees.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// As [`bpf`], for commands that open something.
///
/// # Safety
/// As [`bpf`].
pub(crate) unsafe fn open<T>(command: c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's; and the descriptor was just opened and has no other owner.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attributes)? as i32)) }
}

/// Loads a program of a type (`enum bpf_prog_type`).
///
/// # Errors
/// The kernel refuses it: EPERM without CAP_BPF.
pub(crate) fn load(prog_type: u32, code: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let load = ProgLoad {
        prog_type,
        instructions: code.len() as u32,
        start: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
    };
    // SAFETY: the code has so many instructions, and the licence ends with a zero.
    unsafe { open(PROG_LOAD, &load) }
}
