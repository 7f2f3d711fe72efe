//! What a host claims that its tenant would send: from what it sent, up at once and down with care.

use super::{Claim, PERIOD};
use crate::time::Nanos;

/// A fourth more is claimed than was sent. A tenant that is given as much does not wait, so it can be seen that it needs no more.
const HEADROOM: u64 = 4;

/// A demand that fell by less than half is believed to come back for so long.
const HOLD: Nanos = Nanos(10 * PERIOD.0);

/// What a host measured of a tenant. Rates are in bits a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// What its guests sent; none if frames waited all the time and no limit of their own says so, so that they would have sent more.
    pub sent: Option<u64>,
    /// As [`Claim::floor`].
    pub floor: u64,
    /// As [`Claim::room`].
    pub room: u64,
}

/// The demand of a tenant on one host, as it is claimed.
///
/// It grows at once, and falls once two measurements one after the other are less than half of what was claimed: others wait for that,
/// and one alone may be a stream that pauses. A smaller change is seen only after ten seconds, so that not every measurement moves the
/// parts of all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    claimed: u64,
    /// When that was.
    at: Nanos,
    /// Whether the last measurement was less than half of it.
    is_low: bool,
}

impl Demand {
    /// What to claim at `now`, when this was measured.
    pub fn claim(&mut self, measured: Measured, now: Nanos) -> Claim {
        let Measured { sent, floor, room } = measured;
        let needed = sent.map_or(u64::MAX, |sent| sent.saturating_add(sent / HEADROOM));
        let was_low = std::mem::replace(&mut self.is_low, needed < self.claimed / 2);
        if needed > self.claimed || (was_low && self.is_low) || now.since(self.at) >= HOLD {
            *self = Demand { claimed: needed, at: now, is_low: false };
        }
        Claim { floor, demand: self.claimed, room }
    }
}
