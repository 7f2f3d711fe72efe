//! Access to memory that a guest may write to at the same moment: words of its rings as atomics, all other bytes by one copy.
//!
//! Nothing else reads or writes such memory, and no reference to plain bytes of it is made: the compiler may then neither read twice
//! what the code reads once, nor take what it read for unchanged. `clippy.toml` has the copies that belong here alone.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};

/// A number that is read and written in one piece.
pub(crate) trait Word {
    /// What it holds.
    type Value;

    /// Reads it.
    fn load(&self, order: Ordering) -> Self::Value;

    /// Writes it.
    fn store(&self, value: Self::Value, order: Ordering);
}

/// Makes an atomic a [`Word`].
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

/// What rings, and what else threads share without a lock, are made of. A model checker has words of its own, so that the code which it
/// checks is the one that runs.
pub(crate) trait Words {
    /// Of 16 bits.
    type Half: Word<Value = u16>;
    /// Of 32 bits.
    type Word: Word<Value = u32>;
    /// Of 64 bits.
    type Long: Word<Value = u64>;
    /// Of an address.
    type Address: Word<Value = usize>;

    /// Orders what comes before it and what comes behind it, as [`std::sync::atomic::fence`] does.
    fn fence(order: Ordering);
}

/// The processor's own.
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
/// Guests may change what is read, and read or overwrite what is written, at the same moment: then what arrives is any mixture, and
/// nothing but these bytes. So no decision rests on bytes of a guest before they were copied and [`copied`] was called. The copy is the
/// machine's, as one of atomics would take several times its instructions; tools that look for races are shown the bytes one by one,
/// each an atomic.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes, whatever guests do meanwhile. They may overlap.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(not(any(miri, race)))]
    // SAFETY: the caller's. That a guest writes meanwhile is outside of what the compiler may assume away: it is another program,
    // and nothing is concluded from the bytes here.
    #[expect(clippy::disallowed_methods, reason = "the one place that may")]
    unsafe {
        std::ptr::copy(from, to, len)
    };
    #[cfg(any(miri, race))]
    // SAFETY: the caller's.
    unsafe {
        copy_by_bytes(from, to, len)
    };
}

/// Comes between copies out of a guest's memory and the first look at them: from here on, as far as the compiler knows, the source may be
/// another, so that what reads a copy cannot be made to read the source a second time. It costs no instruction of its own.
#[inline(always)]
pub(crate) fn copied() {
    compiler_fence(Ordering::SeqCst);
}

/// [`copy`] for tools that look for races.
///
/// # Safety
/// As [`copy`].
#[cfg(any(miri, race))]
unsafe fn copy_by_bytes(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::AtomicU8;
    // Where they overlap, none is overwritten before it was read.
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
