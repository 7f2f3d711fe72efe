//! The features that the backend offers, and those that a frontend acknowledged.

use super::rejection::Rejection;
use vhost::vhost_user::message::{VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures};
use virtio_bindings::bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1};
use virtio_bindings::bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
};
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Virtio features, one bit each (virtio 1.2, sections 5.1.3 and 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features(u64);

impl Features {
    /// The features offered to a frontend with this many queue pairs that negotiated these protocol features. A driver
    /// that sees MQ or GUEST_ANNOUNCE needs the control queue. Frontends with several queues (QEMU, virtio-user) serve
    /// it themselves, and so does one that migrates guests (QEMU), which negotiates RARP. User-Mode Linux's driver
    /// fails without it. A driver that sees MTU reads it from the device's configuration, which frontends that negotiate
    /// NET_MTU (QEMU) serve; User-Mode Linux's would read an arbitrary one.
    pub(super) fn offered(queues: u16, packed: bool, protocol: Protocol) -> Features {
        let always = [
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_GUEST_TSO4,
            VIRTIO_NET_F_GUEST_TSO6,
            VIRTIO_NET_F_GUEST_ECN,
            VIRTIO_NET_F_HOST_TSO4,
            VIRTIO_NET_F_HOST_TSO6,
            VIRTIO_NET_F_HOST_ECN,
            VIRTIO_NET_F_MRG_RXBUF,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_F_VERSION_1,
            VIRTIO_F_IN_ORDER,
        ];
        let own = VhostUserVirtioFeatures::PROTOCOL_FEATURES | VhostUserVirtioFeatures::LOG_ALL;
        let mut bits = always.iter().fold(own.bits(), |bits, bit| bits | 1 << bit);
        if packed {
            bits |= 1 << VIRTIO_F_RING_PACKED;
        }
        if queues > 1 {
            bits |= 1 << VIRTIO_NET_F_MQ;
        }
        if protocol.contains(Protocol::RARP) {
            bits |= 1 << VIRTIO_NET_F_GUEST_ANNOUNCE;
        }
        if protocol.contains(Protocol::MTU) {
            bits |= 1 << VIRTIO_NET_F_MTU;
        }
        Features(bits)
    }

    /// The feature bits as sent in messages.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// The features that the frontend acknowledged out of these.
    ///
    /// # Errors
    /// It acknowledged a feature that was not offered, or not one that is required.
    pub(super) fn acknowledge(self, bits: u64) -> Result<Features, Rejection> {
        if bits & !self.0 != 0 {
            return Err(Rejection::Features(bits & !self.0));
        }
        let acknowledged = Features(bits);
        if !acknowledged.has(VIRTIO_F_VERSION_1) {
            return Err(Rejection::Legacy);
        }
        Ok(acknowledged)
    }

    fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// A frame may span several receive buffers.
    pub(super) fn mergeable(self) -> bool {
        self.has(VIRTIO_NET_F_MRG_RXBUF)
    }

    /// Notifications are requested by index.
    pub(super) fn event_idx(self) -> bool {
        self.has(VIRTIO_RING_F_EVENT_IDX)
    }

    /// A descriptor may refer to an indirect table.
    pub(super) fn indirect(self) -> bool {
        self.has(VIRTIO_RING_F_INDIRECT_DESC)
    }

    /// Queues are packed instead of split.
    pub(super) fn packed(self) -> bool {
        self.has(VIRTIO_F_RING_PACKED)
    }

    /// One completion may stand for several.
    pub(super) fn in_order(self) -> bool {
        self.has(VIRTIO_F_IN_ORDER)
    }

    /// The guest completes partial checksums of frames that it receives.
    pub(super) fn guest_checksum(self) -> bool {
        self.has(VIRTIO_NET_F_GUEST_CSUM)
    }

    /// The guest receives large TCP frames: over IPv4, over IPv6, with ECN.
    pub(super) fn guest_segmentation(self) -> [bool; 3] {
        [VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_ECN].map(|bit| self.has(bit))
    }

    /// Pages of the guest's buffers are to be logged when written.
    pub(super) fn log_all(self) -> bool {
        self.0 & VhostUserVirtioFeatures::LOG_ALL.bits() != 0
    }

    /// Rings wait for SET_VRING_ENABLE (without protocol features they are enabled from the start).
    pub(super) fn protocol(self) -> bool {
        self.0 & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0
    }
}

/// The protocol features offered. BACKEND_REQ is not used here, but User-Mode Linux has no interrupts without it.
pub(super) fn protocol() -> Protocol {
    Protocol::MQ
        | Protocol::LOG_SHMFD
        | Protocol::RARP
        | Protocol::REPLY_ACK
        | Protocol::MTU
        | Protocol::BACKEND_REQ
        | Protocol::CONFIGURE_MEM_SLOTS
        | Protocol::STATUS
}
