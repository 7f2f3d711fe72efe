//! TCP sequence numbers: order and distance modulo 2^32.

/// A sequence number (RFC 9293, 3.4). A number is later than another if it is less than 2^31 ahead of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Seq(pub u32);

impl Seq {
    /// The number `bytes` later.
    #[inline]
    pub(super) fn plus(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }

    /// Bytes from `earlier` to here, modulo 2^32.
    #[inline]
    pub(super) fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Bytes from here to `edge`; 0 if `edge` is earlier.
    #[inline]
    pub(super) fn room(self, edge: Seq) -> u32 {
        if edge.after(self) { edge.since(self) } else { 0 }
    }

    /// Whether this comes before `other`.
    #[inline]
    pub(super) fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether this comes after `other`.
    #[inline]
    pub(super) fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// The later of both.
    #[inline]
    pub(super) fn latest(self, other: Seq) -> Seq {
        if other.after(self) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_is_by_distance(start: u32, bytes in 1u32..1 << 31) {
            let (here, there) = (Seq(start), Seq(start).plus(bytes));
            prop_assert!(here.before(there) && there.after(here) && !there.before(here) && !here.after(here));
            prop_assert_eq!((there.since(here), here.room(there), there.room(here)), (bytes, bytes, 0));
            prop_assert_eq!((here.latest(there), there.latest(here)), (there, there));
        }
    }

    #[test]
    fn numbers_wrap() {
        assert!(Seq(u32::MAX - 5).before(Seq(10)));
        assert_eq!(Seq(10).since(Seq(u32::MAX - 5)), 16);
    }
}
