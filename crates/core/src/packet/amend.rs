//! Changes fields of a TCP header where it lies, and its checksum with them.

use super::{Checksum, checksum, get16, put16, tcp};

/// A TCP header that is changed in place.
///
/// A complete checksum is updated with each change (RFC 1624); a partial one does not cover the header yet.
pub struct Amend<'a> {
    segment: &'a mut [u8],
    covered: bool,
}

impl<'a> Amend<'a> {
    /// The header at `transport` in a frame's head, which the caller has checked with [`super::Tcp`].
    pub fn new(head: &'a mut [u8], transport: usize, checksum: Checksum) -> Amend<'a> {
        let covered = !matches!(checksum, Checksum::Partial { .. });
        Amend { segment: &mut head[transport..], covered }
    }

    /// Sets the acknowledgment number.
    pub fn acknowledgment(&mut self, number: u32) {
        self.put(tcp::ACKNOWLEDGMENT, (number >> 16) as u16);
        self.put(tcp::ACKNOWLEDGMENT + 2, number as u16);
    }

    /// Sets the window, unscaled.
    pub fn window(&mut self, window: u16) {
        self.put(tcp::WINDOW, window);
    }

    /// Overwrites the option of `len` bytes at `at`, from the start of the TCP header, with no-operations.
    pub fn blank(&mut self, at: usize, len: usize) {
        for byte in at..at + len {
            let word = byte & !1;
            let [high, low] = get16(self.segment, word).to_be_bytes();
            let pair = if byte == word { [1, low] } else { [high, 1] };
            self.put(word, u16::from_be_bytes(pair));
        }
    }

    fn put(&mut self, at: usize, value: u16) {
        let old = get16(self.segment, at);
        put16(self.segment, at, value);
        if self.covered {
            let sum = checksum::update(get16(self.segment, tcp::CHECKSUM), old, value);
            put16(self.segment, tcp::CHECKSUM, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Tcp, TcpFlags, testing};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_checksum_stays_right(number: u32, window: u16, sequence: u32, payload: Vec<u8>) {
            let options = [1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0];
            let mut frame = testing::tcp_frame(false, &[], &testing::tcp(TcpFlags::ACK, sequence, &options, &payload));
            let ip = testing::ipv4([10, 0, 0, 1].into(), [10, 9, 8, 7].into(), 6, &frame[34..]);
            frame[14..].copy_from_slice(&ip);
            let mut amended = frame.clone();
            let sum = checksum::Sum::default();
            let pseudo = checksum::pseudo_header(&frame[26..34], 6, frame.len() - 34);
            prop_assert_ne!(pseudo, sum);
            let sum = pseudo.with(&frame[34..]).checksum();
            put16(&mut amended[34..], tcp::CHECKSUM, sum);
            prop_assert_eq!(checksum::verify(&amended), Ok(true));
            let mut header = Amend::new(&mut amended, 34, Checksum::Present);
            header.acknowledgment(number);
            header.window(window);
            header.blank(21, 10);
            prop_assert_eq!(checksum::verify(&amended), Ok(true));
            let tcp = Tcp::new_checked(&amended[34..]).unwrap();
            prop_assert_eq!((tcp.acknowledgment(), tcp.window()), (number, window));
            prop_assert_eq!(&amended[54..66], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0][..]);

            let partial = Checksum::Partial { start: 34, offset: 16 };
            Amend::new(&mut frame, 34, partial).acknowledgment(number);
            prop_assert_eq!(Tcp::new_checked(&frame[34..]).unwrap().checksum(), 0);
        }
    }
}
