//! Where a frame goes: learn, look up, refuse spoofed sources.

use crate::PortId;
use crate::stats::DropReason;

/// What the switch says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To one port.
    To(PortId),
    /// To every port that may hear this sender, except the sender.
    Flood,
    /// To nobody.
    Drop(DropReason),
}
