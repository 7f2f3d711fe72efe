//! Numbered frames with their sender, time and number; and the addresses of guests and hosts.

use crate::card::Frame;
use fairlane_core::packet::Mac;
use fairlane_core::time::Nanos;

/// The EtherType of numbered frames: for local experiments (IEEE 802.1Q).
const NUMBERED: [u8; 2] = [0x88, 0xb5];

/// The shortest one in bytes.
pub(crate) const SHORTEST: usize = 60;

/// A sender: a guest in one of its lives, or a host behind the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Station {
    Guest(u32),
    Host(u32),
}

impl Station {
    pub(crate) fn mac(self) -> Mac {
        let (kind, number) = match self {
            Station::Guest(number) => (0x52, number),
            Station::Host(number) => (0x56, number),
        };
        let [a, b, c, d] = number.to_be_bytes();
        Mac([kind, 0x54, a, b, c, d])
    }

    /// The owner of an address; none for a group address.
    pub(crate) fn of(mac: &[u8]) -> Option<Station> {
        let number = u32::from_be_bytes(mac[2..6].try_into().expect("four bytes"));
        match mac[0] {
            0x52 => Some(Station::Guest(number)),
            0x56 => Some(Station::Host(number)),
            _ => None,
        }
    }
}

/// The contents of a numbered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    /// Its sender, whatever its source address.
    pub sender: Station,
    /// Its number among that sender's frames.
    pub number: u64,
    pub sent: Nanos,
}

/// A frame of at least [`SHORTEST`] bytes.
pub(crate) fn write(to: Mac, from: Mac, Number { sender, number, sent }: Number, len: usize) -> Frame {
    let mut frame = vec![number as u8; len];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..14].copy_from_slice(&NUMBERED);
    frame[14..20].copy_from_slice(&sender.mac().0);
    frame[20..28].copy_from_slice(&number.to_be_bytes());
    frame[28..36].copy_from_slice(&sent.0.to_be_bytes());
    frame[36..40].copy_from_slice(&(len as u32).to_be_bytes());
    frame.into()
}

/// Parses a numbered frame; none for other frames.
///
/// # Panics
/// The frame was changed.
pub(crate) fn read(frame: &[u8]) -> Option<Number> {
    if frame.len() < SHORTEST || frame[12..14] != NUMBERED {
        return None;
    }
    let number = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().expect("eight bytes"));
    let len = u32::from_be_bytes(frame[36..40].try_into().expect("four bytes"));
    let read = Number {
        sender: Station::of(&frame[14..20]).expect("it was written so"),
        number: number(20),
        sent: Nanos(number(28)),
    };
    assert!(len as usize == frame.len(), "{read:?} had {len} bytes and has {}", frame.len());
    // All bytes rather than up to the first difference: so the compiler compares many at a time.
    let differing = frame[40..].iter().fold(0, |all, byte| all | (byte ^ read.number as u8));
    assert!(differing == 0, "bytes of {read:?} are another frame's");
    Some(read)
}
