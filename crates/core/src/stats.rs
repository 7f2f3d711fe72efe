//! Counters of a port, and why frames were dropped.

use serde::{Deserialize, Serialize};

/// Why a frame was dropped. Every dropped frame is counted under exactly one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum DropReason {
    /// The source MAC address is not the vif's.
    SpoofedMac,
    /// The source IP address, or the sender address of an ARP packet, is not the vif's.
    SpoofedAddress,
    /// Shorter than its headers claim, or not Ethernet.
    Malformed,
    /// No port may receive it: its destination is the port it came from, a bridge group address (IEEE 802.1D, 7.12.6)
    /// or a guest behind isolation, or it is flooded on a link without other ports.
    NoDestination,
    /// The receiver's ring was full, and its receive queue as well.
    RxQueueFull,
    /// It waited too long in the receiver's queue.
    RxQueueTimeout,
    /// The receiver's queue did not get shorter for too long, and the frame could not carry a mark ([`crate::codel`]).
    RxCongested,
    /// The receiver got more of the worker's time than its share, while others had to wait ([`crate::inflow`]).
    RxOverShare,
    /// The receiver is not connected or was disabled.
    ReceiverDown,
    /// Larger than the receiver's buffers or rules allow.
    TooLarge,
    /// The uplink's queue was full and the policy does not allow waiting (`backpressure = false`).
    UplinkFull,
    /// Dropped by a fault injector.
    Injected,
    /// A guest's ACK that only repeats what was acknowledged early ([`crate::ack`]).
    Suppressed,
    /// Arrived from the wire while the card's ring was full.
    RingFull,
    /// Queued on a card but never sent: the kernel refused it, or the interface went down first.
    Refused,
}

impl DropReason {
    /// Every reason, in the order of [`Drops`].
    pub const ALL: [DropReason; 15] = [
        DropReason::SpoofedMac,
        DropReason::SpoofedAddress,
        DropReason::Malformed,
        DropReason::NoDestination,
        DropReason::RxQueueFull,
        DropReason::RxQueueTimeout,
        DropReason::RxCongested,
        DropReason::RxOverShare,
        DropReason::ReceiverDown,
        DropReason::TooLarge,
        DropReason::UplinkFull,
        DropReason::Injected,
        DropReason::Suppressed,
        DropReason::RingFull,
        DropReason::Refused,
    ];

    /// The name in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::SpoofedMac => "spoofed_mac",
            DropReason::SpoofedAddress => "spoofed_address",
            DropReason::Malformed => "malformed",
            DropReason::NoDestination => "no_destination",
            DropReason::RxQueueFull => "rx_queue_full",
            DropReason::RxQueueTimeout => "rx_queue_timeout",
            DropReason::RxCongested => "rx_congested",
            DropReason::RxOverShare => "rx_over_share",
            DropReason::ReceiverDown => "receiver_down",
            DropReason::TooLarge => "too_large",
            DropReason::UplinkFull => "uplink_full",
            DropReason::Injected => "injected",
            DropReason::Suppressed => "suppressed",
            DropReason::RingFull => "ring_full",
            DropReason::Refused => "refused",
        }
    }
}

/// Frames dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts `frames` dropped for one reason.
    #[inline]
    pub fn add(&mut self, reason: DropReason, frames: u64) {
        self.0[reason as usize] += frames;
    }

    /// The sum of both.
    pub fn and(mut self, other: Drops) -> Drops {
        other.iter().for_each(|(reason, frames)| self.add(reason, frames));
        self
    }

    /// Frames dropped for one reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason))).filter(|(_, count)| *count > 0)
    }
}

/// Traffic of one port from its guest's side: `sent` left the guest, `received` reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken from the guest.
    pub sent_frames: u64,
    /// Bytes of those frames.
    pub sent_bytes: u64,
    /// Frames put into the guest's ring.
    pub received_frames: u64,
    /// Bytes of those frames.
    pub received_bytes: u64,
    /// Frames from this port's peer that were dropped, by reason. Each copy of a flooded frame counts.
    pub drops: Drops,
    /// Frames for this port's guest that were dropped in front of its ring, by reason. They are not among their senders' drops.
    pub receive_drops: Drops,
    /// Frames for this port's guest that were marked because of congestion (CE, RFC 3168).
    pub marked_frames: u64,
}
