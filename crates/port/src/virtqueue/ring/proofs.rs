//! Index arithmetic over its whole domain, and the walk over every table of a few descriptors, against virtio 1.2,
//! section 2.7. The whole domain takes minutes (`make proofs`); `make test` runs a sample and the edges.
//!
//! The ring uses only differences of indices, each a `wrapping_sub`, which do not change if all indices move by the
//! same amount. So the domain is that of the differences, from any one origin; three origins are tried.

use super::super::chain::{self, INDIRECT, NEXT, WRITE};
use super::super::layout::MAX_SIZE;
use super::super::memory::Region;
use super::super::notification::needs_event;
use super::super::split::{Parts, Split};
use super::super::table::DESCRIPTOR;
use super::*;
use std::sync::atomic::Ordering;

/// Step of the sample, besides the edges: prime, so that all bits change.
const STRIDE: usize = 499;

/// Numbers of 16 bits: all or a sample.
fn numbers(step: usize) -> impl Iterator<Item = u16> + Clone {
    let edges = [0, 1, 2, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];
    edges.into_iter().chain((0..=u16::MAX).step_by(step))
}

/// Origins of indices: both sides of the wrap, and one that depends on the number, so all are covered over all numbers.
fn origins(number: u16) -> [u16; 3] {
    [0, 0xffff, number.wrapping_mul(40503)]
}

/// A queue's words, and the device's side of it. One valid descriptor follows the table.
struct Queue {
    descriptors: Vec<[u64; DESCRIPTOR]>,
    available: Vec<u16>,
    used: Vec<u16>,
    elements: Vec<u32>,
    event: u16,
}

impl Queue {
    fn new(size: u16) -> Box<Queue> {
        let size = usize::from(size);
        let (descriptors, available) = (vec![words(BEHIND); size + 1], vec![0; 3 + size]);
        Box::new(Queue { descriptors, available, used: vec![0; 2], elements: vec![0; 2 * size], event: 0 })
    }

    fn ring(&mut self, indirect: bool) -> Ring<Split> {
        let parts = Parts {
            descriptors: self.descriptors.as_mut_ptr().cast_const().cast(),
            available: self.available.as_mut_ptr().cast_const().cast(),
            used: self.used.as_mut_ptr().cast_const().cast(),
            elements: self.elements.as_mut_ptr().cast_const().cast(),
            available_event: (&raw mut self.event).cast_const().cast(),
        };
        let layout = Layout { size: self.descriptors.len() as u16 - 1, event_idx: true, indirect, ..Layout::default() };
        // SAFETY: the words are aligned, and each test keeps them as long as the ring and touches them through it
        // alone.
        Ring::over(unsafe { Split::over(parts, layout.size, None) }, &layout, None)
    }
}

/// A driver is notified if and only if the entry it asked for is among those published since its last notification.
fn notified_of_the_entry_asked_for(step: usize) {
    for count in numbers(step) {
        for distance in numbers(step) {
            for before in origins(distance) {
                let (event, next) = (before.wrapping_add(distance), before.wrapping_add(count));
                assert_eq!(needs_event(event, next, before), distance < count, "{event} {next} {before}");
            }
        }
    }
}

/// An index is valid if and only if it did not move back and is at most the queue's size ahead of the completed
/// entries.
fn only_valid_indices_are_accepted(sizes: &[u16], step: usize) {
    for size in sizes {
        let mut queue = Queue::new(*size);
        let mut ring = queue.ring(false);
        for seen in numbers(step).filter(|seen| seen <= size) {
            for ahead in numbers(step) {
                for next in origins(ahead) {
                    (ring.queue.next, ring.queue.available_index) = (next, next.wrapping_add(seen));
                    ring.queue.available_field(1).store(next.wrapping_add(ahead), Ordering::Relaxed);
                    let right = seen <= ahead && ahead <= *size;
                    let more = ring.available(seen).ok();
                    assert_eq!(more, right.then(|| ahead - seen), "size {size}, {next}, {seen} seen, {ahead} ahead");
                    let known = if right { ahead } else { seen };
                    assert_eq!(ring.queue.available_index.wrapping_sub(next), known);
                    assert!(known == 0 || ring.available(known - 1).ok() == Some(1));
                }
            }
        }
    }
}

/// A device sleeps if and only if the entry it waits for is not available, and that entry is the one it asked for.
fn asleep_without_the_entry(step: usize) {
    let mut queue = Queue::new(MAX_SIZE);
    let mut ring = queue.ring(false);
    for skip in numbers(step).filter(|skip| *skip <= MAX_SIZE) {
        for ahead in numbers(step) {
            for next in origins(ahead) {
                ring.queue.next = next;
                ring.queue.available_field(1).store(next.wrapping_add(ahead), Ordering::Relaxed);
                assert_eq!(ring.enable_notifications(skip), ahead > skip);
                assert_eq!(ring.queue.available_event().load(Ordering::Relaxed), next.wrapping_add(skip));
            }
        }
    }
}

const SIZES: [u16; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768];

#[test]
fn rule_2_7_7_2_a_driver_is_notified_of_the_entry_it_asked_for() {
    notified_of_the_entry_asked_for(STRIDE);
}

#[test]
#[ignore = "the whole domain: make proofs"]
fn proof_2_7_7_2_a_driver_is_notified_of_the_entry_it_asked_for() {
    notified_of_the_entry_asked_for(1);
}

#[test]
fn rule_2_7_6_1_indices_wrap_and_never_move_back() {
    only_valid_indices_are_accepted(&SIZES, STRIDE);
}

#[test]
#[ignore = "the whole domain: make proofs"]
fn proof_2_7_6_1_indices_wrap_and_never_move_back() {
    only_valid_indices_are_accepted(&SIZES, 1);
}

#[test]
fn rule_2_7_10_a_device_sleeps_until_the_entry_it_asked_for() {
    asleep_without_the_entry(STRIDE);
}

#[test]
#[ignore = "the whole domain: make proofs"]
fn proof_2_7_10_a_device_sleeps_until_the_entry_it_asked_for() {
    asleep_without_the_entry(1);
}

/// Both over the whole domain.
#[test]
fn proof_2_7_13_entries_are_those_of_the_index_modulo_the_size() {
    for size in SIZES {
        let mut queue = Queue::new(size);
        (0..size).for_each(|entry| queue.available[2 + usize::from(entry)] = entry);
        let mut ring = queue.ring(false);
        for next in 0..=u16::MAX {
            ring.queue.next = next;
            assert_eq!(ring.queue.head(0).unwrap(), next % size);
            assert_eq!(ring.queue.head(size - 1).unwrap(), next.wrapping_add(size - 1) % size);
            ring.complete(next, 7);
            assert_eq!(ring.queue.next, next.wrapping_add(1));
            // SAFETY: the element is in the part.
            let id = unsafe { &*ring.queue.parts.elements.add(2 * usize::from(next % size)) };
            assert_eq!(id.load(Ordering::Relaxed), u32::from(next));
        }
        // Here the next entry is the first.
        ring.queue.available_field(2).store(size, Ordering::Relaxed);
        assert!(ring.queue.head(0).is_err(), "no descriptor is so far");
    }
}

/// Where the guest's memory is: two adjacent regions.
const GUEST: u64 = 0x1000;
const PART: u64 = 64;

/// A guest's memory of two regions, and the pointers to their bytes.
fn guest() -> (GuestMemory, [*mut u8; 2]) {
    let mut memory = GuestMemory::default();
    let parts = [0, 1].map(|part| {
        let start = GUEST + part * PART;
        memory.add_anonymous(Region { guest: start, len: PART, user: start, offset: 0 })
    });
    (memory, parts)
}

/// A descriptor as the specification defines it.
type Entry = (u64, u32, u16, u16);

fn words((address, len, flags, next): Entry) -> [u64; DESCRIPTOR] {
    [address, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48]
}

/// A chain's buffers according to the specification, as the address of each byte; none if it is invalid. `inner` is the
/// only indirect table, with its address.
fn reference(table: &[Entry], head: u16, writable: bool, inner: Option<(u64, &[Entry])>) -> Option<Vec<u64>> {
    let (mut seen, mut bytes, mut index) = (vec![false; table.len()], Vec::new(), usize::from(head));
    loop {
        let (address, len, flags, next) = *table.get(index)?;
        // 2.7.5.2: loops are forbidden.
        if std::mem::replace(&mut seen[index], true) {
            return None;
        }
        if flags & INDIRECT != 0 {
            // 2.7.5.3.1: one table a chain, at its end, only where that was negotiated; 2.7.5.3.2: WRITE is ignored on it.
            let (place, inner) = inner?;
            let whole = flags & NEXT == 0 && len > 0 && len.is_multiple_of(16) && address == place;
            let entries = inner.get(..len as usize / 16).filter(|_| whole)?;
            bytes.extend(reference(entries, 0, writable, None)?);
            return Some(bytes);
        }
        // 2.7.4.2, 2.7.5.1: all of the queue's direction; and our own rule: a buffer is not empty.
        let end = address.checked_add(len.into())?;
        if (flags & WRITE != 0) != writable || len == 0 || address < GUEST || end > GUEST + 2 * PART {
            return None;
        }
        bytes.extend(address..end);
        if flags & NEXT == 0 {
            return Some(bytes);
        }
        index = next.into();
    }
}

/// The same according to the ring.
fn walked(
    ring: &Ring<Split>,
    head: u16,
    writable: bool,
    memory: &GuestMemory,
    parts: [*mut u8; 2],
) -> Option<Vec<u64>> {
    let mut bytes = Vec::new();
    let direction = if writable { Direction::Write } else { Direction::Read };
    let outcome = chain::walk(ring.queue.table(), head, direction, ring.indirect, memory, |start, len| {
        let within = |part: usize| (start as u64).wrapping_sub(parts[part] as u64);
        let first = GUEST + if within(0) < PART { within(0) } else { PART + within(1) };
        bytes.extend(first..first + u64::from(len));
        Ok(())
    });
    outcome.ok().map(|()| bytes)
}

/// Possible descriptors of a table of `count`: each of these buffers, with all flags and each next index, valid and
/// not.
fn entries(buffers: &[(u64, u32)], count: u16) -> Vec<Entry> {
    let mut all = Vec::new();
    for (address, len) in buffers {
        for flags in 0..8 {
            let nexts = if flags & NEXT != 0 { count + 1 } else { 1 };
            all.extend((0..nexts).map(|next| (*address, *len, flags, next)));
        }
    }
    all
}

/// Compares ring and specification from every head, in both directions.
fn compare(
    queue: &mut Queue,
    table: &[Entry],
    inner: Option<(u64, &[Entry])>,
    memory: &GuestMemory,
    parts: [*mut u8; 2],
) {
    queue.descriptors.iter_mut().zip(table).for_each(|(to, entry)| *to = words(*entry));
    let ring = queue.ring(inner.is_some());
    for head in 0..table.len() as u16 {
        for writable in [false, true] {
            let (real, right) = (walked(&ring, head, writable, memory, parts), reference(table, head, writable, inner));
            assert_eq!(real, right, "{table:?} from {head}, writable: {writable}, indirect: {inner:?}");
        }
    }
}

/// Writes an indirect table at any address of the guest's memory, and one more descriptor after it.
fn place(parts: [*mut u8; 2], at: u64, table: &[Entry]) {
    for (index, byte) in
        table.iter().chain([&BEHIND]).flat_map(|entry| words(*entry)).flat_map(u64::to_le_bytes).enumerate()
    {
        // SAFETY: tests place tables within the first region.
        unsafe { parts[0].add((at - GUEST) as usize + index).write(byte) };
    }
}

/// Buffers: a valid one, one over both regions, one past the end, an empty one, and one valid for a table.
const RIGHT: (u64, u32) = (GUEST + 3, 2);
const ACROSS: (u64, u32) = (GUEST + PART - 1, 2);
const PAST: (u64, u32) = (GUEST + 2 * PART - 1, 2);
const EMPTY: (u64, u32) = (GUEST, 0);
const TABLE: (u64, u32) = (GUEST + 8, 32);
/// A valid descriptor, but after the end of its table.
const BEHIND: Entry = (RIGHT.0, RIGHT.1, 0, 0);

#[test]
fn proof_2_7_5_2_chains_of_four_descriptors_have_no_loops() {
    let ((memory, parts), mut queue) = (guest(), Queue::new(4));
    let plain: Vec<Entry> = entries(&[RIGHT, PAST], 4).into_iter().filter(|entry| entry.2 & INDIRECT == 0).collect();
    for a in &plain {
        for b in &plain {
            for c in &plain {
                for d in &plain {
                    compare(&mut queue, &[*a, *b, *c, *d], None, &memory, parts);
                }
            }
        }
    }
}

#[test]
fn proof_2_7_5_3_two_descriptors_of_all_kinds_before_an_indirect_table() {
    let ((memory, parts), mut queue) = (guest(), Queue::new(2));
    let inner = [(RIGHT.0, RIGHT.1, NEXT, 1), (ACROSS.0, ACROSS.1, 0, 0)];
    place(parts, TABLE.0, &inner);
    let all = entries(&[RIGHT, ACROSS, PAST, EMPTY, TABLE, (TABLE.0, 24), (TABLE.0, 16)], 2);
    for a in &all {
        for b in &all {
            compare(&mut queue, &[*a, *b], Some((TABLE.0, &inner)), &memory, parts);
            compare(&mut queue, &[*a, *b], None, &memory, parts);
        }
    }
}

#[test]
fn proof_2_7_5_3_1_all_tables_of_two_descriptors_at_any_address() {
    let ((memory, parts), mut queue) = (guest(), Queue::new(1));
    let all = entries(&[RIGHT, ACROSS, PAST, EMPTY, TABLE], 2);
    for at in [8, 12, 9] {
        for a in &all {
            for b in &all {
                let inner = [*a, *b];
                place(parts, GUEST + at, &inner);
                for len in [16, 24, 32] {
                    let table = [(GUEST + at, len, INDIRECT, 0)];
                    compare(&mut queue, &table, Some((GUEST + at, &inner)), &memory, parts);
                }
            }
        }
    }
}

/// Our own rules: no table has more descriptors than a queue may, and none spans two regions.
#[test]
fn tables_too_long_or_in_two_regions_are_refused() {
    let (mut memory, mut queue) = (GuestMemory::default(), Queue::new(1));
    let (longest, after) = (16 * u32::from(MAX_SIZE), GUEST + 0x10_0000);
    for start in [GUEST, after] {
        let region = memory.add_anonymous(Region { guest: start, len: after - GUEST, user: start, offset: 0 });
        // The first descriptor of either table below.
        for at in [0, after - GUEST - 16] {
            for (index, word) in words(BEHIND).into_iter().enumerate() {
                // SAFETY: within the region, and aligned.
                unsafe { region.add(at as usize + 8 * index).cast::<u64>().write(word) };
            }
        }
    }
    for (address, len, right) in
        [(GUEST, longest, true), (GUEST, longest + 16, false), (after - 16, 16, true), (after - 16, 32, false)]
    {
        queue.descriptors[0] = words((address, len, INDIRECT, 0));
        let outcome = queue.ring(true).walk(0, Direction::Read, &memory, |_, _| Ok(()));
        assert_eq!(outcome.is_ok(), right, "{len} bytes at {address:#x}");
    }
}
