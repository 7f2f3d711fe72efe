//! Request numbers of Xen's devices.

/// `_IOC(_IOC_NONE, kind, number, size)`
pub(super) const fn request<T>(kind: u8, number: u32) -> libc::Ioctl {
    ((size_of::<T>() as u32) << 16 | (kind as u32) << 8 | number) as libc::Ioctl
}
