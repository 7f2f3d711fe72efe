//! How hosts divide a tenant's guarantee for all of them together: a pure rule, so that hosts that heard the same claims come to the
//! same parts, without anybody who decides for all.
//!
//! - That a guarantee for many is partitioned among them by demand, max-min, and that what nobody demands is given out as well, is
//!   ElasticSwitch's (Popa et al., "ElasticSwitch: Practical Work-Conserving Bandwidth Guarantees for Cloud Computing", SIGCOMM 2013:
//!   guarantee partitioning). There one VM's guarantee is partitioned among those that it talks to; here a tenant's among its hosts.
//! - That whoever sees a link measures it and tells the others once a period, so that no more is given than it has room for, is EyeQ's
//!   (Jeyakumar et al., "EyeQ: Practical Network Performance Isolation at the Edge", NSDI 2013: the receiver's feedback). There it is
//!   the link of a receiver, and the answer a rate; here that of a sender, and the answer a claim.
//! - Where a tenant has guests on several links of a host, each link is a place of its own, with its own claim and part. What is said of
//!   hosts here is true of these.
//! - The floors, the damping ([`Demand`]) and what silence means ([`Heard`]) are our own.

mod demand;
mod heard;
#[cfg(test)]
mod tests;

pub use demand::{Demand, Measured};
pub use heard::{Heard, SILENCE, claimant};

use crate::time::{Nanos, SECOND};
use serde::{Deserialize, Serialize};

/// How often a host says what it claims, if that does not change.
pub const PERIOD: Nanos = Nanos(SECOND);

/// How often it measures. A claim that has changed is said at once.
pub const MEASURE: Nanos = Nanos::from_millis(250);

/// How long a host waits for more claims, once one has changed, before it divides anew.
pub const GATHER: Nanos = Nanos::from_millis(100);

/// What a host says of a tenant. Rates are in bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// What must be guaranteed to it there in any case: the sum of its guests' own guarantees.
    pub floor: u64,
    /// What its guests would send there; [`u64::MAX`] if more waits than can be known.
    pub demand: u64,
    /// The most that can be guaranteed to it there: the link's rate without what others are guaranteed.
    pub room: u64,
}

/// Divides `guarantee` among hosts. Returns each host's part, in the order of their claims.
///
/// Parts are as equal as they can be while no host has more than its room, none has less than its demand if the guarantee suffices for
/// all demands, and none has more than its demand if it does not. Their sum is the guarantee, but for less than a bit each, or all
/// there is room for. It is above the guarantee only if the floors are.
pub fn divide(guarantee: u64, claims: &[Claim]) -> Vec<u64> {
    let demand = |claim: &Claim| claim.demand.max(claim.floor).min(claim.room);
    let demands: u128 = claims.iter().map(|claim| u128::from(demand(claim))).sum();
    let bounds = |claim: &Claim| match demands >= guarantee.into() {
        true => (claim.floor.min(claim.room), demand(claim)),
        false => (demand(claim), claim.room),
    };
    fill(guarantee, &claims.iter().map(bounds).collect::<Vec<_>>())
}

/// Fills vessels, each from its lower to its upper bound, to the highest common level for which `total` suffices.
fn fill(total: u64, bounds: &[(u64, u64)]) -> Vec<u64> {
    let at = |level: u64| bounds.iter().map(move |(low, high)| level.clamp(*low, *high));
    let suffices = |level: u64| at(level).map(u128::from).sum::<u128>() <= total.into();
    let raised = |level: u64, bit: u32| level | 1 << bit;
    let level = (0..u64::BITS)
        .rev()
        .fold(0, |level, bit| if suffices(raised(level, bit)) { raised(level, bit) } else { level });
    at(level).collect()
}
