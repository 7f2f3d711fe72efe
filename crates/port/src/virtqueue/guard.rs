//! Catches SIGBUS on guest memory. A frontend may truncate the file behind its guest's memory; touching the missing
//! pages then raises SIGBUS, which would end the backend and with it every neighbour's network.
//!
//! So mapped ranges are kept in a table. The signal handler replaces a broken range with empty pages and marks it torn,
//! and the port that owns it disables itself. A fault at any other address is handled as before.

mod bounds;

use bounds::Bounds;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Ranges in a chunk of the table. The table grows by chunks, so guests do not compete for entries; how much each may
/// map is bounded elsewhere.
const CHUNK: usize = 32;

/// A mapped range, or a free entry.
#[derive(Default)]
struct Range {
    bounds: Bounds,
    torn: AtomicBool,
}

/// A chunk of the table, and the next chunk if there is one. None is ever freed: a signal handler may be reading it.
#[derive(Default)]
struct Chunk {
    ranges: [Range; CHUNK],
    next: OnceLock<Box<Chunk>>,
}

static TABLE: OnceLock<Box<Chunk>> = OnceLock::new();
/// Free entries. The handler does not look here.
static FREE: Mutex<Vec<&'static Range>> = Mutex::new(Vec::new());
/// The handler that was installed before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    successors(TABLE.get(), |chunk| chunk.next.get()).map(|chunk| &**chunk)
}

/// The entry whose range contains an address, with the range.
fn find(address: usize) -> Option<(&'static Range, usize, usize)> {
    chunks().flat_map(|chunk| &chunk.ranges).find_map(|range| {
        let (start, len) = range.bounds.get()?;
        (address.wrapping_sub(start) < len).then_some((range, start, len))
    })
}

/// An entry of the table, freed when dropped. Drop it before the range is unmapped or reused.
pub(super) struct Guard(&'static Range);

impl Guard {
    /// Guards a mapped range.
    pub(super) fn over(start: usize, len: usize) -> Guard {
        // Miri has no signals.
        if !cfg!(miri) {
            BEFORE.get_or_init(install);
        }
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let range = free.pop().unwrap_or_else(|| {
            let end = chunks().last().map_or(&TABLE, |chunk| &chunk.next);
            let [first, others @ ..] = &end.get_or_init(Box::default).ranges;
            free.extend(others);
            first
        });
        drop(free);
        range.torn.store(false, Ordering::Relaxed);
        range.bounds.set(start, len);
        Guard(range)
    }

    /// Whether pages of the range are gone.
    #[inline]
    pub(super) fn torn(&self) -> bool {
        self.0.torn.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.bounds.set(0, 0);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Installs the handler and returns the one before: Rust's own report of a stack overflow, or one that a program set.
fn install() -> libc::sigaction {
    // SAFETY: the handler only uses async-signal-safe calls and atomics, and has the signature that SA_SIGINFO
    // requires. It runs on the stack that Rust gives each thread for signals.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, &mut before);
        before
    }
}

extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, and for SIGBUS it holds an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some((range, start, len)) = find(address) {
        range.torn.store(true, Ordering::Relaxed);
        // SAFETY: the range is a mapping of a guest's memory that its owner still holds: the owner frees the entry
        // before it unmaps, and only the thread that owns it, this one, touches it. Empty pages take its place, so
        // every pointer into it stays readable and writable.
        let replaced = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            return;
        }
        // This fails, for example, without memory for page tables: returning would fault for ever.
    }
    // SAFETY: restores the previous handler, or the default action if it is not known yet; the instruction then faults
    // again.
    unsafe {
        match BEFORE.get() {
            Some(before) => _ = libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()),
            None => _ = libc::signal(libc::SIGBUS, libc::SIG_DFL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_grows_and_entries_are_found_and_reused() {
        // Addresses that are not mapped.
        const FAR: usize = 1 << 60;
        let guards: Vec<Guard> = (0..10_000).map(|at| Guard::over(FAR + at * 0x2000, 0x1000)).collect();
        for at in [0, 63, 64, 9_999] {
            let (range, start, len) = find(FAR + at * 0x2000 + 0xfff).unwrap();
            assert_eq!((start, len), (FAR + at * 0x2000, 0x1000));
            range.torn.store(true, Ordering::Relaxed);
            assert!(guards[at].torn());
            assert!(find(FAR + at * 0x2000 + 0x1000).is_none());
        }
        let chunks_then = chunks().count();
        drop(guards);
        assert!(find(FAR).is_none());
        let again: Vec<Guard> = (0..10_000).map(|at| Guard::over(FAR + at * 0x2000, 0x1000)).collect();
        assert!(again.iter().all(|guard| !guard.torn()));
        assert!(chunks().count() <= chunks_then + 2, "entries are reused");
    }
}
