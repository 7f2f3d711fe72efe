//! Checked views over the bytes of a frame.

mod offload;

pub use offload::{Checksum, Gso, GsoKind, Offload};

/// A MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);
