//! A moment that whoever emulates this computer is to see.

use std::hint::black_box;

/// What the emulator's plugin (`crates/lab/plugin`) looks for in an instruction.
const MARK: u64 = u64::from_le_bytes(*b"FAIRLANE");

/// Marks this moment: executes an instruction that no other program has, one that moves [`MARK`] into a register.
#[inline(never)]
pub fn mark() {
    black_box(MARK);
}
