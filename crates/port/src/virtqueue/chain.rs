//! The walk along a chain of descriptors, through an indirect table if it leads there (virtio 1.2, section 2.7.5).

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

/// Who may touch a chain's buffers: the guest transmits into our hands, or lends us room to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The device reads (transmit queue).
    Read,
    /// The device writes (receive queue).
    Write,
}

/// Walks the chain of a table from `head` on and gives each buffer's place to `buffer`, which answers whether it wants more. Tables in
/// descriptors are followed if `indirect` was negotiated.
///
/// Every descriptor is read once. A buffer that crosses from one memory region into the next comes in pieces. None is without
/// bytes, so who bounds the pieces that it takes bounds the descriptors that are walked.
///
/// # Errors
/// What the chain breaks, or what `buffer` says.
#[inline]
pub fn walk<A: Words>(
    mut table: Table<A>,
    head: u16,
    direction: Direction,
    indirect: bool,
    memory: &GuestMemory,
    mut buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let mut inside = false;
    let mut index = table.find(head)?;
    // A chain is never longer than its table, so this also ends chains that run in circles.
    let mut left = table.last;
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
            (inside, index, left) = (true, 0, len / 16 - 1);
            continue;
        }
        if (flags & WRITE != 0) != (direction == Direction::Write) {
            return Err(Violation::Direction { wanted_writable: direction == Direction::Write });
        }
        pieces(address, len, memory, &mut buffer)?;
        if flags & NEXT == 0 {
            return Ok(());
        }
        // Here, so that it costs nothing where a frame is in one piece.
        index = table.find(next)?;
        if left == 0 {
            return Err(Violation::EndlessChain);
        }
        left -= 1;
    }
}

/// Gives a buffer's pieces, one for each region that it lies in.
#[inline(always)]
fn pieces(
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
