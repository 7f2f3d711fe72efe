//! A process that is killed after so many stores to some memory, exactly.
//!
//! The memory may not be written there. A store is a fault, which opens it for just this instruction; when that is done, it is closed
//! again, or was the last.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The processor's flag by which it stops after each instruction.
const TRAP: i64 = 0x100;

/// The memory, and how many stores are left. Only children have any.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Has a child of this process do some work and end after its `stores`th store to `memory`, or after the work. Returns whether it was killed
/// before it was done.
///
/// # Panics
/// If it panics or ends otherwise.
pub fn after(memory: Range<usize>, stores: u32, work: impl FnOnce()) -> bool {
    // SAFETY: the child works on memory that it shares, allocates (which the system's library allows after a fork), and ends.
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
        // SAFETY: it ends this process, and runs nothing of it any more.
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
    // SAFETY: all zeros is an action, and the handlers do nothing that may not be done in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_sigaction = handler as *const () as usize;
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

/// Sets what may be done with the memory.
fn allow(access: libc::c_int) {
    let start = START.load(Ordering::Relaxed) as *mut libc::c_void;
    // SAFETY: it is a mapping of ours, of whole pages; who stores there nevertheless comes to the handler.
    let allowed = unsafe { libc::mprotect(start, LEN.load(Ordering::Relaxed), access) };
    assert_eq!(allowed, 0);
}

/// Has the processor stop after the next instruction, or not.
fn step(context: *mut libc::c_void, is_on: bool) {
    // SAFETY: the kernel gives a handler the context of what it interrupted, which is nobody else's.
    let flags = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize] };
    *flags = if is_on { *flags | TRAP } else { *flags & !TRAP };
}

extern "C" fn on_store(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: a fault has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if address.wrapping_sub(START.load(Ordering::Relaxed)) >= LEN.load(Ordering::Relaxed) {
        // Not ours: it comes again, and ends the process.
        // SAFETY: the default is always an action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    allow(libc::PROT_READ | libc::PROT_WRITE);
    step(context, true);
}

extern "C" fn on_stored(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
        // SAFETY: it ends this process, at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    allow(libc::PROT_READ);
    step(context, false);
}

#[test]
fn a_process_ends_after_just_so_many_stores() {
    // SAFETY: numbers, of whatever bits.
    let memory = unsafe { &mut *crate::shared::shared::<[u32; 2048]>() };
    let bytes = memory.as_ptr_range();
    for stores in 1..=20 {
        memory.fill(0);
        // Over both pages.
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
