//! Walks a chain of descriptors, and the indirect table it may lead to (virtio 1.2, section 2.7.5).

use super::layout::MAX_SIZE;
use super::memory::GuestMemory;
use super::split::{Descriptor, Table};
use super::violation::Violation;
use crate::access::Words;

/// VRING_DESC_F_NEXT
pub(super) const NEXT: u16 = 1;
/// VRING_DESC_F_WRITE
pub(super) const WRITE: u16 = 2;
/// VRING_DESC_F_INDIRECT
pub(super) const INDIRECT: u16 = 4;

/// Which way a chain's buffers are used: read by the device, or written by it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The device reads (transmit queue).
    Read,
    /// The device writes (receive queue).
    Write,
}

/// Walks the chain of `table` from `head` on and passes each buffer's place to `buffer`, which may end the walk by an
/// error. Indirect tables are followed if `indirect` was negotiated.
///
/// Every descriptor is read once. A buffer that crosses from one memory region into the next is passed as several
/// segments. None is empty, so a bound on segments is a bound on the descriptors walked.
///
/// # Errors
/// The rule that the chain breaks, or the error of `buffer`.
#[inline]
pub(super) fn walk<A: Words>(
    mut table: Table<A>,
    head: u16,
    direction: Direction,
    indirect: bool,
    memory: &GuestMemory,
    mut buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let mut inside = false;
    let mut index = table.find(head)?;
    // A chain is never longer than its table, so this also ends circular chains.
    let mut remaining = table.last;
    loop {
        // SAFETY: `index` was found in the table.
        let Descriptor { address, len, flags, next } = unsafe { table.read(index) };
        if flags & INDIRECT != 0 {
            if !indirect {
                return Err(Violation::NotNegotiated);
            }
            if inside || flags & NEXT != 0 || len == 0 || !len.is_multiple_of(16) || len / 16 > MAX_SIZE.into() {
                return Err(Violation::Indirect { flags, len });
            }
            table = match memory.guest(address, len) {
                // SAFETY: the place was just found to have so many bytes, which are whole descriptors.
                Some((start, whole)) if whole == len => unsafe { Table::over(start, len / 16 - 1) },
                _ => return Err(Violation::Buffer { address, len }),
            };
            (inside, index, remaining) = (true, 0, len / 16 - 1);
            continue;
        }
        if (flags & WRITE != 0) != (direction == Direction::Write) {
            return Err(Violation::Direction { wanted_writable: direction == Direction::Write });
        }
        segments(address, len, memory, &mut buffer)?;
        if flags & NEXT == 0 {
            return Ok(());
        }
        // Checked here, so that it costs nothing where a frame has one descriptor.
        index = table.find(next)?;
        if remaining == 0 {
            return Err(Violation::EndlessChain);
        }
        remaining -= 1;
    }
}

/// Passes a buffer's segments to `buffer`, one for each region that it lies in.
#[inline(always)]
fn segments(
    address: u64,
    len: u32,
    memory: &GuestMemory,
    buffer: &mut impl FnMut(*mut u8, u32) -> Result<(), Violation>,
) -> Result<(), Violation> {
    if len == 0 {
        return Err(Violation::EmptyBuffer);
    }
    let (mut at, mut rest) = (address, len);
    loop {
        let (start, here) = memory.guest(at, rest).ok_or(Violation::Buffer { address, len })?;
        buffer(start, here)?;
        (at, rest) = (at.wrapping_add(here.into()), rest - here);
        if rest == 0 {
            return Ok(());
        }
    }
}
