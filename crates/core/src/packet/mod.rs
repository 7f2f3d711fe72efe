//! Checked views over the bytes of a frame.
//!
//! A view borrows bytes and checks once, when created, that its header is complete; after that its accessors cannot
//! fail. Decisions see only the first bytes of a frame, so a view requires only its own header: the caller compares the
//! payload length in the header with the frame's real length.

mod amend;
mod arp;
pub mod checksum;
mod compose;
pub mod ecn;
mod ethernet;
mod icmp;
mod ip;
mod ipv4;
mod ipv6;
mod mac;
mod offload;
mod segment;
mod tcp;
#[cfg(test)]
pub(crate) mod testing;
mod udp;
mod upper;

pub use amend::Amend;
pub use arp::Arp;
pub use compose::Compose;
pub use ethernet::{Ethernet, ethertype};
pub use icmp::{Icmp, NEIGHBOUR_ADVERTISEMENT};
pub use ip::Ip;
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use mac::{Mac, MacError};
pub use offload::{Checksum, Gso, GsoKind, Offload};
pub use segment::Segments;
pub use tcp::{Tcp, TcpFlags, TcpOptions};
pub use udp::Udp;
pub use upper::{Upper, protocol};

/// Why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header has.
    #[error("{header}: {has} bytes are present, {needs} are needed")]
    Short {
        /// The header.
        header: &'static str,
        /// Bytes present, from the header's start.
        has: usize,
        /// Bytes needed.
        needs: usize,
    },
    /// An invalid field.
    #[error("{field} is {value}; it must be {right}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// The valid values, and the rule's source.
        right: &'static str,
    },
}

/// Checks that `bytes` hold at least `needs` bytes of a header.
#[inline]
fn need(header: &'static str, bytes: &[u8], needs: usize) -> Result<(), Error> {
    if bytes.len() < needs { Err(Error::Short { header, has: bytes.len(), needs }) } else { Ok(()) }
}

/// The fixed first `N` bytes of a header, which can be read without further checks.
#[inline]
fn fixed<'a, const N: usize>(header: &'static str, bytes: &'a [u8]) -> Result<&'a [u8; N], Error> {
    bytes.first_chunk().ok_or(Error::Short { header, has: bytes.len(), needs: N })
}

/// The big-endian 16 bits at `at`.
#[inline]
pub(crate) fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// The big-endian 32 bits at `at`.
#[inline]
fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// The `N` bytes at `at`.
#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}

/// Writes big-endian 16 bits at `at`.
#[inline]
fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes big-endian 32 bits at `at`.
#[inline]
fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
