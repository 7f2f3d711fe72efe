//! Why a frame goes no further.

use fairlane_core::stats::DropReason;

/// Why a port did not take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No room now; wait for [`Sink::room`](crate::Sink::room).
    Full,
    /// This frame will never be taken.
    Never(DropReason),
}
