//! The frame that tells switches a migrated guest's new location, if the guest does not announce it itself (SEND_RARP):
//! a request of the reverse address resolution protocol (RFC 903), broadcast from the guest's address.

/// Bytes of the shortest Ethernet frame, without its checksum.
const LEN: usize = 60;

/// EtherType, Ethernet and IPv4 with the lengths of their addresses, "request reverse" (RFC 903).
const REQUEST: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];

/// At most one frame, waiting to be offered as if the guest had sent it.
#[derive(Default)]
pub(super) struct Announcement {
    frame: Option<[u8; LEN]>,
    offered: bool,
}

impl Announcement {
    /// Queues an announcement of the guest with this MAC address.
    pub(super) fn announce(&mut self, mac: [u8; 6]) {
        let mut frame = [0; LEN];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&mac);
        frame[12..22].copy_from_slice(&REQUEST);
        // Sender and target hardware address.
        frame[22..28].copy_from_slice(&mac);
        frame[32..38].copy_from_slice(&mac);
        *self = Announcement { frame: Some(frame), offered: false };
    }

    /// Whether a frame is waiting.
    #[inline]
    pub(super) fn waiting(&self) -> bool {
        self.frame.is_some()
    }

    /// The frame, as the current offer.
    pub(super) fn offer(&mut self) -> &[u8] {
        self.offered = self.waiting();
        self.frame.as_ref().map_or(&[], |frame| frame)
    }

    /// Whether the last offer was this frame. It is consumed if `frames` is not 0.
    #[inline]
    pub(super) fn consume(&mut self, frames: usize) -> bool {
        if !self.offered {
            return false;
        }
        if frames > 0 {
            *self = Announcement::default();
        }
        true
    }
}
