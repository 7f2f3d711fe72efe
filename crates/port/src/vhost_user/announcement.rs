//! The frame that tells switches where a guest is now that was moved and does not tell by itself (SEND_RARP): a request of
//! the reverse address resolution protocol (RFC 903), from the guest to everybody.

/// Bytes of the least Ethernet frame, without its checksum.
const LEN: usize = 60;

/// EtherType, Ethernet and IPv4 with the lengths of their addresses, "request reverse" (RFC 903).
const REQUEST: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];

/// At most one frame that waits to be offered as if the guest had sent it.
#[derive(Default)]
pub struct Announcement {
    frame: Option<[u8; LEN]>,
    offered: bool,
}

impl Announcement {
    /// Has a guest with this MAC address announced.
    pub fn announce(&mut self, mac: [u8; 6]) {
        let mut frame = [0; LEN];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&mac);
        frame[12..22].copy_from_slice(&REQUEST);
        // Who asks and who is asked about.
        frame[22..28].copy_from_slice(&mac);
        frame[32..38].copy_from_slice(&mac);
        *self = Announcement { frame: Some(frame), offered: false };
    }

    /// Whether a frame waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.frame.is_some()
    }

    /// The frame, as what is offered now.
    pub fn offer(&mut self) -> &[u8] {
        self.offered = self.waits();
        self.frame.as_ref().map_or(&[], |frame| frame)
    }

    /// Whether what was offered last was the frame; it is taken, if `frames` is not 0.
    #[inline]
    pub fn consume(&mut self, frames: usize) -> bool {
        if !self.offered {
            return false;
        }
        if frames > 0 {
            *self = Announcement::default();
        }
        true
    }
}
