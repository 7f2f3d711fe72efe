//! Boolean state of a flow.

/// A set of flags. Every bit pattern is valid, as it is read from memory that outlives the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Flags(u16);

impl Flags {
    /// The guest sent its SYN, with or without ACK.
    pub(super) const GUEST_SYN: Flags = Flags(1 << 0);
    /// The sender outside sent its SYN, with or without ACK.
    pub(super) const SENDER_SYN: Flags = Flags(1 << 1);
    /// The guest's SYN had a window scale.
    pub(super) const GUEST_SCALES: Flags = Flags(1 << 2);
    /// The sender's SYN had a window scale.
    pub(super) const SENDER_SCALES: Flags = Flags(1 << 3);
    /// The guest's SYN had timestamps.
    pub(super) const GUEST_STAMPS: Flags = Flags(1 << 4);
    /// The sender's SYN had timestamps.
    pub(super) const SENDER_STAMPS: Flags = Flags(1 << 5);
    /// The guest's SYN permitted SACK.
    pub(super) const GUEST_SACKS: Flags = Flags(1 << 6);
    /// Both ends are being reset because the guest did not accept the sender's data.
    pub(super) const RESET: Flags = Flags(1 << 7);
    /// The sender's FIN was seen.
    pub(super) const FIN: Flags = Flags(1 << 8);
    /// The sender's SYN permitted SACK.
    pub(super) const SENDER_SACKS: Flags = Flags(1 << 9);
    /// The guest acknowledged the sender's SYN.
    pub(super) const BEGUN: Flags = Flags(1 << 10);
    /// The flow's numbers are being [learned again](super::watch).
    pub(super) const LEARNS: Flags = Flags(1 << 11);
    /// A segment from outside was noted since learning started.
    pub(super) const MARKED: Flags = Flags(1 << 12);
    /// An early ACK or a reset for outside [waits](super::EarlyAck::next_ack).
    pub(super) const PENDING: Flags = Flags(1 << 13);
    /// The sender expects an answer that it did not get yet.
    pub(super) const ASKED: Flags = Flags(1 << 14);
    /// The flow was exported, and the guest has not run here since.
    pub(super) const FROZEN: Flags = Flags(1 << 15);

    /// Both ends sent their SYN.
    pub(super) const SYNS: Flags = Flags::GUEST_SYN.with(Flags::SENDER_SYN);
    /// Both ends agreed on window scales (RFC 7323, 2.2).
    pub(super) const SCALES: Flags = Flags::GUEST_SCALES.with(Flags::SENDER_SCALES);
    /// Both ends agreed on timestamps (RFC 7323, 3.2).
    pub(super) const STAMPS: Flags = Flags::GUEST_STAMPS.with(Flags::SENDER_STAMPS);
    /// Both ends permitted SACK (RFC 2018, 2).
    pub(super) const SACKS: Flags = Flags::GUEST_SACKS.with(Flags::SENDER_SACKS);
    /// Flags that a resumed or imported flow loses.
    pub(super) const TRANSIENT: Flags = Flags::MARKED.with(Flags::PENDING).with(Flags::ASKED);

    /// Flags from the bits of an export.
    pub(super) fn from_bits(bits: u16) -> Flags {
        Flags(bits)
    }

    /// The bits, for an export.
    pub(super) fn bits(self) -> u16 {
        self.0
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub(super) fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The union with `flags`.
    pub(super) const fn with(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }

    /// The set without `flags`.
    pub(super) const fn without(self, flags: Flags) -> Flags {
        Flags(self.0 & !flags.0)
    }

    /// Sets all of `flags`.
    #[inline]
    pub(super) fn set(&mut self, flags: Flags) {
        *self = self.with(flags);
    }

    /// Clears all of `flags`.
    #[inline]
    pub(super) fn clear(&mut self, flags: Flags) {
        *self = self.without(flags);
    }
}
