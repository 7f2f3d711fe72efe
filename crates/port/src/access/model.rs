//! Words of the model checker Loom, which tries every order in which two threads may see each other's writes; and
//! variants without part of the ordering, to check that the checker notices.

use super::{Word, Words};
use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

word!(AtomicU16: u16, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);

/// What a model's threads may share.
pub(crate) trait Shared: Default + Send + Sync {}

impl<W: Default + Send + Sync> Shared for W {}

/// Words that a model's threads share.
pub(crate) trait Modelled: Words<Half: Shared, Word: Shared, Long: Shared, Address: Shared> + 'static {}

impl Modelled for Model {}
impl Modelled for Unfenced {}
impl Modelled for Unordered {}

/// Unchanged.
pub(crate) struct Model;

impl Words for Model {
    type Half = AtomicU16;
    type Word = AtomicU32;
    type Long = AtomicU64;
    type Address = AtomicUsize;

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Without fences.
pub(crate) struct Unfenced;

impl Words for Unfenced {
    type Half = AtomicU16;
    type Word = AtomicU32;
    type Long = AtomicU64;
    type Address = AtomicUsize;

    fn fence(_order: Ordering) {}
}

/// A word whose accesses order nothing else.
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
    type Address = Loose<AtomicUsize>;

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// `count` words, all zero.
pub(crate) fn zeros<W: Default>(count: usize) -> Vec<W> {
    (0..count).map(|_| W::default()).collect()
}

/// Fails if a side of a ring sleeps with work to do: it took `taken` items, saw no more before it slept, and was
/// notified of none of the rest.
pub(crate) fn assert_woken(side: &str, taken: usize, awake: bool, notified: &[bool]) {
    assert!(awake || taken == notified.len() || notified[taken..].contains(&true), "{side} sleeps at {taken}");
}
