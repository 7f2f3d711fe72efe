//! A moment that whoever emulates this computer is to see.

use std::{
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
};

/// What the emulator's plugin (`crates/lab/plugin`) looks for in an instruction.
const MARK: u64 = u64::from_le_bytes(*b"FAIRLANE");

/// Marks this moment: executes an instruction that no other program has, one that moves [`MARK`] into a register. Answers
/// how many marks this program has made.
#[inline(never)]
pub fn mark() -> usize {
    static MARKS: AtomicUsize = AtomicUsize::new(0);
    black_box(MARK);
    MARKS.fetch_add(1, Ordering::Relaxed) + 1
}
