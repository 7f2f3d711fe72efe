//! TCP segments as fields and as frames.

use fairlane_core::packet::checksum::{self, Sum};
use fairlane_core::packet::{Ethernet, Ip, Tcp, TcpFlags, ethertype, protocol};

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub v6: bool,
    /// VLAN tags, outermost first; 0 is none.
    pub vlans: [u16; 2],
    /// The port outside, which distinguishes connections.
    pub port: u16,
}

/// A segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub seq: u32,
    pub ack: u32,
    pub flags: TcpFlags,
    pub window: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub stamps: Option<(u32, u32)>,
    pub blocks: Vec<(u32, u32)>,
    pub payload: Vec<u8>,
}

const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 2];

impl Packet {
    /// The segment as a frame from outside.
    pub(crate) fn inward(&self, place: Place) -> Vec<u8> {
        self.frame(place, true)
    }

    /// The segment as a frame from the guest.
    pub(crate) fn outward(&self, place: Place) -> Vec<u8> {
        self.frame(place, false)
    }

    fn frame(&self, place: Place, inward: bool) -> Vec<u8> {
        let (from, to) = if inward { (OUTSIDE, GUEST) } else { (GUEST, OUTSIDE) };
        let (from_port, to_port) = if inward { (place.port, 80) } else { (80, place.port) };
        let options = self.options();
        let mut segment = from_port.to_be_bytes().to_vec();
        segment.extend(to_port.to_be_bytes());
        segment.extend(self.seq.to_be_bytes());
        segment.extend(self.ack.to_be_bytes());
        segment.extend([((20 + options.len()) << 2) as u8, self.flags.0]);
        segment.extend(self.window.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend(options);
        segment.extend(&self.payload);

        let mut frame = [to, from].concat();
        for vlan in place.vlans.into_iter().filter(|vlan| *vlan != 0) {
            frame.extend(ethertype::VLAN.to_be_bytes());
            frame.extend(vlan.to_be_bytes());
        }
        let (outside, inside) = (from[5], to[5]);
        let mut pseudo = Vec::new();
        if place.v6 {
            frame.extend(ethertype::IPV6.to_be_bytes());
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((segment.len() as u16).to_be_bytes());
            frame.extend([protocol::TCP, 64]);
            let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
            pseudo.extend([address(outside), address(inside)].concat());
            frame.extend(&pseudo);
        } else {
            frame.extend(ethertype::IPV4.to_be_bytes());
            let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol::TCP, 0, 0];
            ip[2..4].copy_from_slice(&(20 + segment.len() as u16).to_be_bytes());
            pseudo.extend([10, 0, 0, outside, 10, 0, 0, inside]);
            ip.extend(&pseudo);
            let sum = Sum::default().with(&ip).checksum();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend(ip);
        }
        pseudo.extend([0, protocol::TCP]);
        pseudo.extend((segment.len() as u16).to_be_bytes());
        let sum = Sum::default().with(&pseudo).with(&segment).checksum();
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        frame.extend(segment);
        frame
    }

    fn options(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mss) = self.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if let Some(scale) = self.scale {
            options.extend([1, 3, 3, scale]);
        }
        if self.sack_permitted {
            options.extend([1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.stamps {
            options.extend([1, 1, 8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        if !self.blocks.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * self.blocks.len() as u8]);
            for (left, right) in &self.blocks {
                options.extend(left.to_be_bytes());
                options.extend(right.to_be_bytes());
            }
        }
        options
    }

    /// Parses a frame, and checks its checksums.
    pub(crate) fn read(frame: &[u8]) -> Packet {
        assert_eq!(checksum::verify(frame), Ok(true), "{frame:x?}");
        let ethernet = Ethernet::new_checked(frame).unwrap();
        let ip = Ip::of(&ethernet).unwrap().unwrap();
        let upper = ip.upper().unwrap();
        let tcp = Tcp::new_checked(upper.payload).unwrap();
        let options = tcp.options().unwrap();
        let mut blocks = Vec::new();
        let mut rest = &upper.payload[20..tcp.header_len()];
        while let [kind, tail @ ..] = rest {
            rest = match kind {
                0 => &[],
                1 => tail,
                _ => {
                    if *kind == 5 {
                        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
                        let pairs = rest[2..rest[1].into()].chunks(8);
                        blocks.extend(pairs.map(|pair| (number(&pair[..4]), number(&pair[4..]))));
                    }
                    &rest[rest[1].into()..]
                }
            };
        }
        Packet {
            seq: tcp.sequence(),
            ack: tcp.acknowledgment(),
            flags: tcp.flags(),
            window: tcp.window(),
            mss: options.mss,
            scale: options.window_scale,
            sack_permitted: options.sack_permitted,
            stamps: options.timestamps,
            blocks,
            payload: tcp.payload().to_vec(),
        }
    }
}
