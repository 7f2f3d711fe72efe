//! Memory that two processes share.

use std::ptr;

/// A new shared mapping for a value. It stays mapped as long as the process lives.
///
/// # Safety
/// All zeros is a valid value of the type, and so is every bit pattern that another process may store there.
pub(crate) unsafe fn shared<T>() -> *mut T {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping touches no memory of ours.
    let start = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}
