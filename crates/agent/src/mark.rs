//! Marks for the emulator that this program may run on.

use std::{
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The constant that the emulator's plugin (`crates/lab/plugin`) looks for in an instruction.
const MARK: u64 = u64::from_le_bytes(*b"FAIRLANE");

/// Makes a mark: executes an instruction that no other program has, one that moves [`MARK`] into a register. Returns the number
/// of marks made by this program.
#[inline(never)]
pub(crate) fn mark() -> usize {
    static MARKS: AtomicUsize = AtomicUsize::new(0);
    black_box(MARK);
    MARKS.fetch_add(1, Ordering::Relaxed) + 1
}
