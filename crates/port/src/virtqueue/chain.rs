//! Walks a split queue's chain of descriptors, and the indirect table it may lead to (virtio 1.2, section 2.7.5); and
//! the checks of a descriptor that both formats need.

use super::layout::MAX_SIZE;
use super::memory::GuestMemory;
use super::table::{DESCRIPTOR, DESCRIPTOR_BYTES, Table};
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

/// A split queue's descriptor as it was read.
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// Decodes two words: the address, and, from the low bits up, length, flags and the next index.
    #[inline(always)]
    fn parse([address, rest]: [u64; DESCRIPTOR]) -> Descriptor {
        Descriptor { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
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
        let Descriptor { address, len, flags, next } = Descriptor::parse(unsafe { table.read(index) });
        if flags & INDIRECT != 0 {
            if inside {
                return Err(Violation::Indirect { flags, len });
            }
            table = self::table(address, len, flags, indirect, memory)?;
            (inside, index, remaining) = (true, 0, table.last);
            continue;
        }
        self::buffer(address, len, flags, direction, memory, &mut buffer)?;
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

/// The table that a descriptor with the flag INDIRECT refers to.
///
/// # Errors
/// None was negotiated, or it is followed by a descriptor, is no whole number of descriptors, or is not in guest memory.
#[inline(always)]
pub(super) fn table<A: Words>(
    address: u64,
    len: u32,
    flags: u16,
    indirect: bool,
    memory: &GuestMemory,
) -> Result<Table<A>, Violation> {
    const EACH: u32 = DESCRIPTOR_BYTES as u32;
    if !indirect {
        return Err(Violation::NotNegotiated);
    }
    if flags & NEXT != 0 || len == 0 || !len.is_multiple_of(EACH) || len / EACH > MAX_SIZE.into() {
        return Err(Violation::Indirect { flags, len });
    }
    match memory.guest(address, len) {
        // SAFETY: the place was just found to have so many bytes, which are whole descriptors.
        Some((start, whole)) if whole == len => Ok(unsafe { Table::over(start, len / EACH - 1) }),
        _ => Err(Violation::Buffer { address, len }),
    }
}

/// Passes the segments of a descriptor's buffer to `buffer`, one for each region that it lies in.
///
/// # Errors
/// It is of the other direction, empty, or not in guest memory; or the error of `buffer`.
#[inline(always)]
pub(super) fn buffer(
    address: u64,
    len: u32,
    flags: u16,
    direction: Direction,
    memory: &GuestMemory,
    buffer: &mut impl FnMut(*mut u8, u32) -> Result<(), Violation>,
) -> Result<(), Violation> {
    if (flags & WRITE != 0) != (direction == Direction::Write) {
        return Err(Violation::Direction { wanted_writable: direction == Direction::Write });
    }
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
