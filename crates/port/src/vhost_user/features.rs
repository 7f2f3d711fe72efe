//! What the backend offers, and what a frontend took of it.

use super::rejection::Rejection;
use vhost::vhost_user::message::{VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures};
use virtio_bindings::bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF,
};
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Virtio features, one bit each (virtio 1.2, sections 5.1.3 and 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// What a card with this many queue pairs is offered, at a frontend that took these of the protocol's features. A driver
    /// that sees MQ or GUEST_ANNOUNCE wants the control queue, which a frontend that has several queues (QEMU, virtio-user)
    /// serves itself, and one that moves guests (QEMU), which takes RARP. User-Mode Linux's driver fails without it.
    pub fn offered(queues: u16, protocol: Protocol) -> Features {
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
        if queues > 1 {
            bits |= 1 << VIRTIO_NET_F_MQ;
        }
        if protocol.contains(Protocol::RARP) {
            bits |= 1 << VIRTIO_NET_F_GUEST_ANNOUNCE;
        }
        Features(bits)
    }

    /// The bits on the wire.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What the frontend acknowledged of these.
    ///
    /// # Errors
    /// It took what was not offered or left out what is needed.
    pub fn acknowledge(self, bits: u64) -> Result<Features, Rejection> {
        if bits & !self.0 != 0 {
            return Err(Rejection::Features(bits & !self.0));
        }
        let taken = Features(bits);
        if !taken.has(VIRTIO_F_VERSION_1) {
            return Err(Rejection::Legacy);
        }
        Ok(taken)
    }

    fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Receive buffers may be joined for one frame.
    pub fn mergeable(self) -> bool {
        self.has(VIRTIO_NET_F_MRG_RXBUF)
    }

    /// Notifications are asked for by index.
    pub fn event_idx(self) -> bool {
        self.has(VIRTIO_RING_F_EVENT_IDX)
    }

    /// A descriptor may name a table of descriptors.
    pub fn indirect(self) -> bool {
        self.has(VIRTIO_RING_F_INDIRECT_DESC)
    }

    /// The guest completes partial checksums of what it receives.
    pub fn guest_checksum(self) -> bool {
        self.has(VIRTIO_NET_F_GUEST_CSUM)
    }

    /// The guest takes large TCP frames: over IPv4, over IPv6, with ECN.
    pub fn guest_segmentation(self) -> [bool; 3] {
        [VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_ECN].map(|bit| self.has(bit))
    }

    /// Pages of the guest's buffers that are written are to be logged.
    pub fn log_all(self) -> bool {
        self.0 & VhostUserVirtioFeatures::LOG_ALL.bits() != 0
    }

    /// Rings wait for SET_VRING_ENABLE (they are enabled from the start where protocol features were not taken).
    pub fn protocol(self) -> bool {
        self.0 & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0
    }
}

/// The protocol's features that are offered. BACKEND_REQ is of no use here, but User-Mode Linux has no interrupts without it.
pub fn protocol() -> Protocol {
    Protocol::MQ
        | Protocol::LOG_SHMFD
        | Protocol::RARP
        | Protocol::REPLY_ACK
        | Protocol::BACKEND_REQ
        | Protocol::CONFIGURE_MEM_SLOTS
        | Protocol::STATUS
}
