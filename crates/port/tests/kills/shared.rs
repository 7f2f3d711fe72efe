//! Memory that two processes share.

use std::ptr;

/// A new mapping for a value of which all zeros is one, and that does not care who else changes it. It stays as long as the process.
///
/// # Safety
/// All zeros is a value of the type, and so is every pattern of bits that another process may store there.
pub unsafe fn shared<T>() -> *mut T {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping harms nobody.
    let start = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}
