//! A frontend may truncate the file behind its guest's memory; touching the missing pages then raises SIGBUS, which would
//! end the backend and with it every neighbour's network.
//!
//! So mapped ranges stand in a table, and the signal's handler puts empty pages where a range broke and marks it torn.
//! The port notices and disables itself. A fault anywhere else takes its usual course.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ranges of all guests of this process at most.
const RANGES: usize = 4096;

struct Range {
    /// First address; 0 while the entry is free.
    start: AtomicUsize,
    len: AtomicUsize,
    torn: AtomicBool,
}

static TABLE: [Range; RANGES] =
    [const { Range { start: AtomicUsize::new(0), len: AtomicUsize::new(0), torn: AtomicBool::new(false) } }; RANGES];
/// The handler that was there before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// An entry of the table, freed when dropped. Drop it before the range is unmapped or reused.
pub struct Guard(&'static Range);

impl Guard {
    /// Guards a mapped range. `None` if the table is full.
    pub fn over(start: usize, len: usize) -> Option<Guard> {
        BEFORE.get_or_init(install);
        let free = |range: &&Range| {
            // The length is published by the start: a handler sees both or a free entry.
            range.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let range = TABLE.iter().find(free)?;
        range.torn.store(false, Ordering::Relaxed);
        range.len.store(len, Ordering::Relaxed);
        range.start.store(start, Ordering::Release);
        Some(Guard(range))
    }

    /// Whether pages of the range went away.
    #[inline]
    pub fn torn(&self) -> bool {
        self.0.torn.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::Release);
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
    for range in &TABLE {
        let start = range.start.load(Ordering::Acquire);
        let len = range.len.load(Ordering::Relaxed);
        // An entry that was freed and taken again meanwhile has another start, and the length is of that.
        let is_whole = range.start.load(Ordering::Acquire) == start;
        if start > 1 && is_whole && address.wrapping_sub(start) < len {
            range.torn.store(true, Ordering::Relaxed);
            // SAFETY: the range is a mapping of a guest's memory that its owner still holds (it frees the entry before it
            // unmaps); empty pages take its place, and every pointer into it stays readable and writable.
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
            break;
        }
    }
    // SAFETY: what was there before takes over, or the default action while it is not known; the instruction faults again.
    unsafe {
        match BEFORE.get() {
            Some(before) => _ = libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()),
            None => _ = libc::signal(libc::SIGBUS, libc::SIG_DFL),
        }
    }
}
