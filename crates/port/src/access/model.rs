//! Words of the model checker's (Loom), which tries every order in which two threads may see each other's writes; and the same with a
//! part of what orders them taken away, to see that the checker notices.

use super::{Word, Words};
use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

word!(AtomicU16: u16, AtomicU32: u32, AtomicU64: u64);

/// As they are.
pub(crate) struct Model;

impl Words for Model {
    type Half = AtomicU16;
    type Word = AtomicU32;
    type Long = AtomicU64;

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Without fences.
pub(crate) struct Unfenced;

impl Words for Unfenced {
    type Half = AtomicU16;
    type Word = AtomicU32;
    type Long = AtomicU64;

    fn fence() {}
}

/// A word whose reads and writes order nothing else.
#[derive(Default)]
pub(crate) struct Loose<W>(W);

impl<W: Word> Word for Loose<W> {
    type Value = W::Value;

    fn load(&self, _order: Ordering) -> W::Value {
        self.0.load(Ordering::Relaxed)
    }

    fn store(&self, value: W::Value, _order: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Without Acquire and Release.
pub(crate) struct Unordered;

impl Words for Unordered {
    type Half = Loose<AtomicU16>;
    type Word = Loose<AtomicU32>;
    type Long = Loose<AtomicU64>;

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// So many words, all zero.
pub(crate) fn zeros<W: Default>(count: usize) -> Vec<W> {
    (0..count).map(|_| W::default()).collect()
}
