//! Why a port refuses a frame.

use fairlane_core::stats::DropReason;

/// Why a port did not accept a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No room now; wait for [`Sink::room`](crate::Sink::room).
    Full,
    /// This frame will never be accepted.
    Never(DropReason),
}
