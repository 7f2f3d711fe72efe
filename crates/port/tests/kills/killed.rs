//! Kills a process after an exact number of stores to some memory.
//!
//! The memory is mapped read-only. A store faults, and the handler makes the memory writable for just this instruction;
//! after it, the memory is made read-only again, or the process is killed.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The processor flag that traps after each instruction.
const TRAP: i64 = 0x100;

/// The memory, and how many stores are left. Set in children only.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Runs `work` in a child of this process that is killed after its `stores`th store to `memory`, unless it is done
/// before. Returns whether it was killed.
///
/// # Panics
/// If the child panics or ends otherwise.
pub(crate) fn after(memory: Range<usize>, stores: u32, work: impl FnOnce()) -> bool {
    // SAFETY: the child works on memory that it shares, allocates (which the C library allows after a fork), and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        START.store(memory.start, Ordering::Relaxed);
        LEN.store(memory.len(), Ordering::Relaxed);
        LEFT.store(stores, Ordering::Relaxed);
        handle(libc::SIGSEGV, on_store);
        handle(libc::SIGTRAP, on_stored);
        allow(libc::PROT_READ);
        let done = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: this ends the process without running any of its code.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
    assert!(killed || (libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0), "the child failed: {status:x}");
    killed
}

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

fn handle(signal: libc::c_int, handler: Handler) {
    // SAFETY: all zeros is a valid action, and the handlers call only what is allowed in a handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_sigaction = handler as *const () as usize;
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

/// Sets the protection of the memory.
fn allow(access: libc::c_int) {
    let start = START.load(Ordering::Relaxed) as *mut libc::c_void;
    // SAFETY: it is a mapping of ours, of whole pages; forbidden stores lead to the handler.
    let allowed = unsafe { libc::mprotect(start, LEN.load(Ordering::Relaxed), access) };
    assert_eq!(allowed, 0);
}

/// Makes the processor trap after the next instruction, or not.
fn step(context: *mut libc::c_void, is_on: bool) {
    // SAFETY: the kernel passes a handler the context that it interrupted, which nothing else uses.
    let flags = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize] };
    *flags = if is_on { *flags | TRAP } else { *flags & !TRAP };
}

extern "C" fn on_store(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: a fault has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if address.wrapping_sub(START.load(Ordering::Relaxed)) >= LEN.load(Ordering::Relaxed) {
        // Not in the memory: it faults again, and ends the process.
        // SAFETY: the default action is always valid.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    allow(libc::PROT_READ | libc::PROT_WRITE);
    step(context, true);
}

extern "C" fn on_stored(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
        // SAFETY: this ends the process at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    allow(libc::PROT_READ);
    step(context, false);
}

#[test]
fn a_process_is_killed_after_the_exact_number_of_stores() {
    // SAFETY: integers, for which any bits are valid.
    let memory = unsafe { &mut *crate::shared::shared::<[u32; 2048]>() };
    let bytes = memory.as_ptr_range();
    for stores in 1..=20 {
        memory.fill(0);
        // Across both pages.
        let killed = after(bytes.start as usize..bytes.end as usize, stores, || {
            for at in 0..10 {
                // SAFETY: it is a reference.
                unsafe { ptr::write_volatile(&mut memory[at * 200], 7) };
            }
        });
        let stored = memory.iter().filter(|number| **number == 7).count() as u32;
        assert_eq!((killed, stored), (stores <= 10, stores.min(10)));
    }
}
