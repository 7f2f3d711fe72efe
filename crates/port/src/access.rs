//! Access to memory that a guest may write at the same moment: words of its rings by atomics, all other bytes by one
//! copy.
//!
//! No other code reads or writes such memory, and no reference to its plain bytes is made: the compiler can then
//! neither read twice what the code reads once, nor assume that what it read is unchanged. `clippy.toml` forbids the
//! copies used here elsewhere.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};

/// An integer that is read and written atomically.
pub(crate) trait Word {
    /// Its value.
    type Value;

    /// Reads the value.
    fn load(&self, order: Ordering) -> Self::Value;

    /// Writes the value.
    fn store(&self, value: Self::Value, order: Ordering);
}

/// Implements [`Word`] for atomics.
macro_rules! word {
    ($($atomic:ty: $value:ty),*) => {$(
        impl Word for $atomic {
            type Value = $value;

            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                <$atomic>::load(self, order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                <$atomic>::store(self, value, order);
            }
        }
    )*};
}

#[cfg(test)]
pub(crate) mod model;

/// The words that rings, and other data shared between threads without a lock, consist of. A model checker has words of
/// its own, so that the code it checks is the code that runs.
pub(crate) trait Words {
    /// 16 bits.
    type Half: Word<Value = u16>;
    /// 32 bits.
    type Word: Word<Value = u32>;
    /// 64 bits.
    type Long: Word<Value = u64>;
    /// An address.
    type Address: Word<Value = usize>;

    /// Orders memory accesses before it and after it, as [`std::sync::atomic::fence`] does.
    fn fence(order: Ordering);
}

/// The processor's own words.
pub(crate) struct Processor;

impl Words for Processor {
    type Half = AtomicU16;
    type Word = AtomicU32;
    type Long = AtomicU64;
    type Address = AtomicUsize;

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }
}

word!(AtomicU16: u16, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);

/// Copies bytes out of a guest's memory, into it, or from one guest's to another's.
///
/// Guests may change what is read, and read or overwrite what is written, at the same moment: then any mixture arrives,
/// but of these bytes only. So no decision may rest on a guest's bytes before they are copied and [`copied`] is called.
/// The copy is an ordinary one, as a copy of atomics takes several times its instructions. Race detectors are shown the
/// bytes one by one, each an atomic.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes, whatever guests do meanwhile. They may overlap.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(not(any(miri, race)))]
    // SAFETY: the caller's. That a guest writes meanwhile is outside of what the compiler may assume away: it is
    // another program, and nothing is concluded from the bytes here.
    #[expect(clippy::disallowed_methods, reason = "the only place that may")]
    unsafe {
        std::ptr::copy(from, to, len)
    };
    #[cfg(any(miri, race))]
    // SAFETY: the caller's.
    unsafe {
        copy_by_bytes(from, to, len)
    };
}

/// Separates copies out of a guest's memory from the first look at them: as far as the compiler knows the source may
/// change here, so a read of the copy cannot be turned into a second read of the source. Costs no instruction.
#[inline(always)]
pub(crate) fn copied() {
    compiler_fence(Ordering::SeqCst);
}

/// [`copy`] for race detectors.
///
/// # Safety
/// As [`copy`].
#[cfg(any(miri, race))]
unsafe fn copy_by_bytes(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::AtomicU8;
    // Where the ranges overlap, no byte is overwritten before it was read.
    let last = len.wrapping_sub(1) * usize::from(to.cast_const() > from);
    for at in 0..len {
        let at = if last > 0 { last - at } else { at };
        // SAFETY: `at` is below `len`, and a byte is always aligned.
        unsafe {
            let byte = AtomicU8::from_ptr(from.cast_mut().add(at)).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}
