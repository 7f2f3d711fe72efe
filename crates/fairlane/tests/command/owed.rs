//! A guest that receives data over many connections and acknowledges nothing, so that early ack retains all of it.

use crate::frontend::{BUFFERS, F_PROTOCOL, F_VERSION_1, Frontend, HEADER, WRITE};
use crate::guests::wait_for;
use fairlane_core::packet::{Compose, TcpFlags};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// Connections, and bytes over each: less than a window without scaling, and together over 90% of what is retained for a guest.
const FLOWS: u16 = 260;
const BYTES: u32 = 60_000;

/// Entries of each ring, which all have the same buffer: contents do not matter to who receives.
const SIZE: u16 = 128;
const BUFFER: u32 = 0x10000;

/// First sequence numbers of the sender and of the guest.
const THEIRS: u32 = 7_000;
const OURS: u32 = 90_000;

/// The guest, and the one that sends to it.
pub(crate) struct Owed {
    guest: Side,
    sender: Side,
}

impl Owed {
    /// Connects both to their sockets, and sends the data.
    pub(crate) fn new(guest: &Path, sender: &Path) -> Owed {
        let mut owed = Owed { guest: Side::new(guest, 1), sender: Side::new(sender, 2) };
        for flow in 0..FLOWS {
            owed.send((flow, THEIRS, 0, TcpFlags::SYN, 0));
            owed.answer((flow, OURS, THEIRS + 1, TcpFlags::SYN.with(TcpFlags::ACK), 0));
            owed.send((flow, THEIRS + 1, OURS + 1, TcpFlags::ACK, BYTES));
        }
        owed
    }

    /// Has the guest acknowledge everything.
    pub(crate) fn acknowledge(&mut self) {
        for flow in 0..FLOWS {
            self.answer((flow, OURS + 1, THEIRS + 1 + BYTES, TcpFlags::ACK, 0));
        }
    }

    fn send(&mut self, segment: Segment) {
        self.sender.send(segment, &mut self.guest);
    }

    fn answer(&mut self, segment: Segment) {
        self.guest.send(segment, &mut self.sender);
    }
}

/// A flow's number, sequence and acknowledgment numbers, flags, and bytes of payload.
type Segment = (u16, u32, u32, TcpFlags, u32);

/// One side, which has a fixed address.
struct Side {
    frontend: Frontend,
    number: u8,
}

impl Side {
    fn new(socket: &Path, number: u8) -> Side {
        let mut frontend = Frontend::connect(socket, SIZE);
        frontend.set_up(F_VERSION_1 | F_PROTOCOL, 2);
        for index in 0..SIZE {
            frontend.descriptor(0, index, BUFFERS, BUFFER, WRITE, 0);
            frontend.push(0, index);
        }
        frontend.kick(0);
        Side { frontend, number }
    }

    fn mac(&self) -> [u8; 6] {
        [0x52, 0x54, 0, 0, 9, self.number]
    }

    /// Sends a segment, and waits until the backend has taken it and passed it on, or answered it.
    fn send(&mut self, (flow, sequence, acknowledgment, flags, payload): Segment, to: &mut Side) {
        let end = |side: &Side| {
            let port = if side.number == 1 { 80 } else { 1000 + flow };
            (IpAddr::V4(Ipv4Addr::new(10, 9, 0, side.number)), port)
        };
        let link = [to.mac(), self.mac()].concat();
        let (source, destination, window) = (end(self), end(to), u16::MAX);
        let segment =
            Compose { link: &link, source, destination, sequence, acknowledgment, flags, window, timestamps: None };
        let mut frame = Vec::new();
        segment.write(&mut frame, |out| out.resize(out.len() + payload as usize, 7));
        let before = self.frontend.used_index(1);
        let at = BUFFERS + u64::from(BUFFER);
        self.frontend.write(at, &[0; HEADER]);
        self.frontend.write(at + HEADER as u64, &frame);
        self.frontend.descriptor(1, 0, at, (HEADER + frame.len()) as u32, 0, 0);
        self.frontend.push(1, 0);
        self.frontend.kick(1);
        wait_for("a segment to be taken", || self.frontend.used_index(1) != before);
        // All buffers that were used are available again.
        for side in [self, to] {
            let next = side.frontend.used_index(0).wrapping_add(SIZE);
            side.frontend.set_available(0, next);
        }
    }
}
