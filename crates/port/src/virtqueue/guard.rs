//! A frontend may truncate the file behind its guest's memory; touching the missing pages then raises SIGBUS, which would
//! end the backend and with it every neighbour's network.
//!
//! So mapped ranges stand in a table, and the signal's handler puts empty pages where a range broke and marks it torn.
//! The port notices and disables itself. A fault anywhere else takes its usual course.

mod bounds;

use bounds::Bounds;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Ranges of a part of the table. It grows by such parts, so that no guest has places that another wants; what each may have
/// mapped is bounded where it is mapped.
const PART: usize = 32;

/// A mapped range, if it has an owner.
#[derive(Default)]
struct Range {
    bounds: Bounds,
    torn: AtomicBool,
}

/// A part of the table, and the next one once there is one. None is ever freed: a signal's handler may be in it.
#[derive(Default)]
struct Part {
    ranges: [Range; PART],
    next: OnceLock<Box<Part>>,
}

static TABLE: OnceLock<Box<Part>> = OnceLock::new();
/// Entries without an owner. The handler does not look here.
static FREE: Mutex<Vec<&'static Range>> = Mutex::new(Vec::new());
/// The handler that was there before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn parts() -> impl Iterator<Item = &'static Part> {
    successors(TABLE.get(), |part| part.next.get()).map(|part| &**part)
}

/// The entry whose range has an address, with the range.
fn find(address: usize) -> Option<(&'static Range, usize, usize)> {
    parts().flat_map(|part| &part.ranges).find_map(|range| {
        let (start, len) = range.bounds.get()?;
        (address.wrapping_sub(start) < len).then_some((range, start, len))
    })
}

/// An entry of the table, freed when dropped. Drop it before the range is unmapped or reused.
pub struct Guard(&'static Range);

impl Guard {
    /// Guards a mapped range.
    pub fn over(start: usize, len: usize) -> Guard {
        // Miri has no signals.
        if !cfg!(miri) {
            BEFORE.get_or_init(install);
        }
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let range = free.pop().unwrap_or_else(|| {
            let end = parts().last().map_or(&TABLE, |part| &part.next);
            let [first, others @ ..] = &end.get_or_init(Box::default).ranges;
            free.extend(others);
            first
        });
        drop(free);
        range.torn.store(false, Ordering::Relaxed);
        range.bounds.set(start, len);
        Guard(range)
    }

    /// Whether pages of the range went away.
    #[inline]
    pub fn torn(&self) -> bool {
        self.0.torn.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.bounds.set(0, 0);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Answers what was done on the signal before: Rust's own report of a stack that overflows, or whatever a program set.
fn install() -> libc::sigaction {
    // SAFETY: the handler only uses async-signal-safe calls and atomics, and has the signature SA_SIGINFO asks for. It runs on the
    // stack that Rust gives each thread for signals.
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
        // SAFETY: the range is a mapping of a guest's memory that its owner still holds (it frees the entry before it
        // unmaps, and only the thread that owns it touches it, which is this one); empty pages take its place, and every
        // pointer into it stays readable and writable.
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
        // No memory for the table of pages, say: to return would be to fault for ever.
    }
    // SAFETY: what was there before takes over, or the default action while it is not known; the instruction faults again.
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
    fn there_is_a_place_for_everyone_and_it_is_found() {
        // Addresses that nobody has mapped.
        const FAR: usize = 1 << 60;
        let guards: Vec<Guard> = (0..10_000).map(|at| Guard::over(FAR + at * 0x2000, 0x1000)).collect();
        for at in [0, 63, 64, 9_999] {
            let (range, start, len) = find(FAR + at * 0x2000 + 0xfff).unwrap();
            assert_eq!((start, len), (FAR + at * 0x2000, 0x1000));
            range.torn.store(true, Ordering::Relaxed);
            assert!(guards[at].torn());
            assert!(find(FAR + at * 0x2000 + 0x1000).is_none());
        }
        let parts_then = parts().count();
        drop(guards);
        assert!(find(FAR).is_none());
        let again: Vec<Guard> = (0..10_000).map(|at| Guard::over(FAR + at * 0x2000, 0x1000)).collect();
        assert!(again.iter().all(|guard| !guard.torn()));
        assert!(parts().count() <= parts_then + 2, "places are used again");
    }
}
