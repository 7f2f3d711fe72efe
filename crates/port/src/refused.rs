//! System calls that a seccomp filter turns away by a signal (SECCOMP_RET_TRAP of seccomp(2)). Each ends as on a kernel that does not know
//! it (ENOSYS), and its number stands here until somebody asks.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that are kept: those of x86_64 are below 512, or in the range of another ABI.
const NUMBERS: usize = 1024;

/// A bit a number.
static CALLED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// `si_code` of such a signal, SYS_SECCOMP of asm-generic/siginfo.h.
const BY_FILTER: libc::c_int = 1;

/// The part of siginfo_t that is SIGSYS's, as asm-generic/siginfo.h has it.
#[repr(C)]
struct Info {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    address: *mut libc::c_void,
    call: libc::c_int,
    architecture: libc::c_uint,
}

/// Has calls that are turned away end in this way, for the whole process. To be called before a filter is set.
///
/// # Errors
/// What the system says.
pub fn end_with_error() -> io::Result<()> {
    // SAFETY: the handler makes no call, and has the signature SA_SIGINFO asks for. It runs on the stack that Rust gives each thread for
    // signals.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_refused_call as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Numbers of calls that were turned away since this was asked last, each once, in order.
pub fn take() -> Vec<usize> {
    let words = CALLED.iter().map(|word| word.swap(0, Ordering::Relaxed)).enumerate();
    words.flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)).collect()
}

extern "C" fn on_refused_call(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t, which begins with these fields whenever the signal is SIGSYS and longer than they are.
    let info = unsafe { &*info.cast::<Info>() };
    if info.code != BY_FILTER {
        return;
    }
    let number = info.call as usize % NUMBERS;
    CALLED[number / 64].fetch_or(1 << (number % 64), Ordering::Relaxed);
    // SAFETY: the kernel passes a valid context.
    answer(unsafe { &mut *context.cast::<libc::ucontext_t>() });
}

/// Has the call return its error: the thread goes on with these registers.
#[cfg(target_arch = "x86_64")]
fn answer(context: &mut libc::ucontext_t) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::ENOSYS);
}

/// Where there are no lists, there are no filters.
#[cfg(not(target_arch = "x86_64"))]
fn answer(_context: &mut libc::ucontext_t) {}
