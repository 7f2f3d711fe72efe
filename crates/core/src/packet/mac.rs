//! A MAC address.

use std::fmt;
use std::str::FromStr;

/// A MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it is a group address, broadcast included (IEEE 802, the I/G bit).
    #[inline]
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it can be a source address: neither a group address nor all zeros.
    #[inline]
    pub fn is_station(self) -> bool {
        !self.is_multicast() && self != Mac::default()
    }

    /// Whether bridges must not forward frames to it: 01:80:c2:00:00:00 to :0f (IEEE 802.1Q, table 8-1).
    #[inline]
    pub fn is_bridge_group(self) -> bool {
        self.0[..5] == [0x01, 0x80, 0xc2, 0x00, 0x00] && self.0[5] < 0x10
    }
}

impl From<Mac> for u64 {
    /// The address as a number of 48 bits.
    #[inline]
    fn from(Mac([a, b, c, d, e, f]): Mac) -> u64 {
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// Text that is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address: it must be six pairs of hexadecimal digits, as in 52:54:00:12:34:56")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Mac, MacError> {
        let wrong = || MacError(text.to_owned());
        let mut mac = Mac::default();
        let mut pairs = text.split(':');
        for byte in &mut mac.0 {
            let pair = pairs.next().ok_or_else(wrong)?;
            if pair.len() != 2 || !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        if pairs.next().is_some() { Err(wrong()) } else { Ok(mac) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn displayed_text_parses(bytes: [u8; 6]) {
            prop_assert_eq!(Mac(bytes).to_string().parse(), Ok(Mac(bytes)));
            prop_assert_eq!(Mac(bytes).to_string().to_uppercase().parse(), Ok(Mac(bytes)));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Mac>();
        }
    }

    #[test]
    fn invalid_text_is_refused_with_an_example() {
        for text in
            ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "52:54:00:12:34:5", "52-54-00-12-34-56", "+1:54:00:12:34:56"]
        {
            let error = text.parse::<Mac>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("52:54:00:12:34:56"), "{error}");
        }
    }

    #[test]
    fn groups() {
        assert!(Mac::BROADCAST.is_multicast());
        assert!(!Mac([0x52, 0, 0, 0, 0, 1]).is_multicast() && Mac([0x52, 0, 0, 0, 0, 1]).is_station());
        assert!(!Mac::default().is_station());
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0x0e]).is_bridge_group());
        assert!(!Mac([1, 0x80, 0xc2, 0, 0, 0x10]).is_bridge_group());
    }
}
