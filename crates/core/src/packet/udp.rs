//! UDP (RFC 768).

use super::{Error, get16, need};

const SOURCE_PORT: usize = 0;
const DESTINATION_PORT: usize = 2;
const LENGTH: usize = 4;
pub(super) const CHECKSUM: usize = 6;
const HEADER: usize = 8;

/// A UDP header.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a>(&'a [u8]);

impl<'a> Udp<'a> {
    /// # Errors
    /// Fewer than 8 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Udp<'a>, Error> {
        need("UDP header", bytes, HEADER)?;
        Ok(Udp(bytes))
    }

    /// The source port.
    pub fn source_port(&self) -> u16 {
        get16(self.0, SOURCE_PORT)
    }

    /// The destination port.
    pub fn destination_port(&self) -> u16 {
        get16(self.0, DESTINATION_PORT)
    }

    /// Bytes of header and payload, by the length field.
    pub fn len(&self) -> usize {
        get16(self.0, LENGTH).into()
    }

    /// Whether the payload is empty, by the length field.
    pub fn is_empty(&self) -> bool {
        self.len() <= HEADER
    }

    /// The checksum; 0 if there is none.
    pub fn checksum(&self) -> u16 {
        get16(self.0, CHECKSUM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [0, 68, 0, 67, 0, 9, 1, 2, 99];
        let udp = Udp::new_checked(&bytes).unwrap();
        assert_eq!((udp.source_port(), udp.destination_port(), udp.len(), udp.checksum()), (68, 67, 9, 0x0102));
        assert!(!udp.is_empty());
        assert!(matches!(Udp::new_checked(&bytes[..7]), Err(Error::Short { has: 7, needs: 8, .. })));
    }
}
