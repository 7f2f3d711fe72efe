//! System calls that a seccomp filter refuses by a signal (SECCOMP_RET_TRAP of seccomp(2)). Each returns ENOSYS, as on
//! a kernel without it, and its number is recorded until it is read.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Call numbers that are recorded: those of x86_64 are below 512, or in the range of another ABI.
const NUMBERS: usize = 1024;

/// One bit for each number.
static CALLED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// `si_code` of such a signal: SYS_SECCOMP of asm-generic/siginfo.h.
const BY_FILTER: libc::c_int = 1;

/// The fields of siginfo_t that SIGSYS sets, as in asm-generic/siginfo.h.
#[repr(C)]
struct Info {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    address: *mut libc::c_void,
    call: libc::c_int,
    architecture: libc::c_uint,
}

/// Installs the signal handler, for the whole process. Call it before the filter is set.
///
/// # Errors
/// The system's error.
pub fn end_with_error() -> io::Result<()> {
    // SAFETY: the handler makes no call, and has the signature that SA_SIGINFO requires. It runs on the stack that Rust
    // gives each thread for signals.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_refused_call as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Numbers of the calls refused since the last call of this function, each once, in ascending order.
pub fn take() -> Vec<usize> {
    let words = CALLED.iter().map(|word| word.swap(0, Ordering::Relaxed)).enumerate();
    words.flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)).collect()
}

extern "C" fn on_refused_call(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t, which is at least this long and begins with these fields for SIGSYS.
    let info = unsafe { &*info.cast::<Info>() };
    if info.code != BY_FILTER {
        return;
    }
    let number = info.call as usize % NUMBERS;
    CALLED[number / 64].fetch_or(1 << (number % 64), Ordering::Relaxed);
    // SAFETY: the kernel passes a valid context.
    set_result(unsafe { &mut *context.cast::<libc::ucontext_t>() });
}

/// Makes the call return its error: the thread continues with these registers.
#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::ENOSYS);
}

/// Only x86_64 has a filter.
#[cfg(not(target_arch = "x86_64"))]
fn set_result(_context: &mut libc::ucontext_t) {}
