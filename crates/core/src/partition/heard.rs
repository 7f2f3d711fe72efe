//! The claims that a host has heard of a tenant, its own among them, and its parts.

use super::{Claim, PERIOD, divide};
use crate::time::Nanos;
use std::collections::BTreeMap;

/// A host that is not heard of for so long has no part any more.
pub const SILENCE: Nanos = Nanos(5 * PERIOD.0);

/// A host that has not heard its own claim for so long was cut off.
const CUT_OFF: Nanos = Nanos(5 * PERIOD.0 / 2);

/// So long a host listens before it divides.
const LISTEN: Nanos = Nanos(2 * PERIOD.0);

/// The name of a host's claim. A host on which a tenant has guests on several links claims for each of them, as if each was a host. So
/// links are nothing that other hosts need to know of.
pub fn claimant(host: &str, link: &str, several: bool) -> String {
    if several { format!("{host}/{link}") } else { host.to_owned() }
}

/// The claims of a tenant's hosts, as one host hears them, by their names ([`claimant`]).
///
/// A host hears its own claims in the same way as all others. One that does not was cut off, or never connected: it keeps the part that
/// it has. Afterwards it listens for a while first, and nobody counts as silent for what could not be heard meanwhile.
#[derive(Clone, Debug)]
pub struct Heard {
    host: String,
    claims: BTreeMap<String, (Claim, Nanos)>,
    /// When it heard itself last.
    itself: Option<Nanos>,
    /// Since when it hears.
    since: Nanos,
}

impl Heard {
    /// Nothing heard yet by the host of this name.
    pub fn new(host: &str) -> Heard {
        Heard { host: host.to_owned(), claims: BTreeMap::new(), itself: None, since: Nanos(0) }
    }

    /// A claim of this name arrives at `now`. Returns whether it is news.
    pub fn hear(&mut self, name: &str, claim: Claim, now: Nanos) -> bool {
        if self.is_own(name) && self.itself.replace(now).is_none_or(|at| now.since(at) >= CUT_OFF) {
            self.since = now;
        }
        let former = self.claims.insert(name.to_owned(), (claim, now));
        former.is_none_or(|(former, _)| former != claim)
    }

    /// The parts of the tenant's guarantee at `now` for the host's own claims, by name; none if the host is to keep those that it has.
    pub fn parts(&mut self, guarantee: u64, now: Nanos) -> Option<BTreeMap<String, u64>> {
        if now.since(self.itself?) >= CUT_OFF || now.since(self.since) < LISTEN {
            return None;
        }
        let since = self.since;
        self.claims.retain(|_, (_, at)| now.since((*at).max(since)) < SILENCE);
        let claims: Vec<Claim> = self.claims.values().map(|(claim, _)| *claim).collect();
        let parts = self.claims.keys().zip(divide(guarantee, &claims));
        Some(parts.filter(|(name, _)| self.is_own(name)).map(|(name, part)| (name.clone(), part)).collect())
    }

    fn is_own(&self, name: &str) -> bool {
        name.split('/').next() == Some(&self.host)
    }
}
