//! What a frame's sender left for the receiver, or a card, to do: the neutral form of `virtio_net_hdr` and netif's extra info.

/// The state of a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// In the frame, not verified by anyone.
    #[default]
    Present,
    /// In the frame and known to be right (VIRTIO_NET_HDR_F_DATA_VALID).
    Valid,
    /// To be completed: sum from `start` to the end, store at `start + offset` (VIRTIO_NET_HDR_F_NEEDS_CSUM).
    /// The pseudo-header's sum is in the field already. Both count from the Ethernet header and were checked against the frame's length.
    Partial {
        /// First byte that is summed.
        start: u16,
        /// Place of the checksum, from `start`.
        offset: u16,
    },
}

/// What a large frame is to be cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// A frame larger than the wire takes, to be cut by whoever must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The protocol.
    pub kind: GsoKind,
    /// Whether TCP's CWR flag belongs to the first segment only (VIRTIO_NET_HDR_GSO_ECN).
    pub ecn: bool,
    /// Payload bytes of a segment, never 0.
    pub size: u16,
    /// Ethernet, IP and TCP headers together, in bytes.
    pub header: u16,
}

/// Everything that was left to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The transport checksum.
    pub checksum: Checksum,
    /// Segmentation.
    pub gso: Option<Gso>,
}
