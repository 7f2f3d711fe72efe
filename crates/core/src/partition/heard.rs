//! The claims that a host has heard of a tenant, its own among them, and its part.

use super::{Claim, PERIOD, divide};
use crate::time::Nanos;
use std::collections::BTreeMap;

/// A host that is not heard of for so long has no part any more.
pub const SILENCE: Nanos = Nanos(5 * PERIOD.0);

/// A host that has not heard its own claim for so long was cut off.
const CUT_OFF: Nanos = Nanos(5 * PERIOD.0 / 2);

/// So long a host listens before it divides.
const LISTEN: Nanos = Nanos(2 * PERIOD.0);

/// The claims of a tenant's hosts, as one host hears them.
///
/// A host hears its own claims in the same way as all others. One that does not was cut off, or never connected: it keeps the part that
/// it has. Afterwards it listens for a while first, and nobody counts as silent for what could not be heard meanwhile.
#[derive(Clone, Debug)]
pub struct Heard {
    own: String,
    claims: BTreeMap<String, (Claim, Nanos)>,
    /// Since when it hears.
    since: Nanos,
}

impl Heard {
    /// Nothing heard yet by the host of this name.
    pub fn new(own: &str) -> Heard {
        Heard { own: own.to_owned(), claims: BTreeMap::new(), since: Nanos(0) }
    }

    /// A host's claim arrives at `now`. Returns whether it is news.
    pub fn hear(&mut self, host: &str, claim: Claim, now: Nanos) -> bool {
        let former = self.claims.insert(host.to_owned(), (claim, now));
        if host == self.own && former.is_none_or(|(_, at)| now.since(at) >= CUT_OFF) {
            self.since = now;
        }
        former.is_none_or(|(former, _)| former != claim)
    }

    /// The own part of the tenant's guarantee at `now`; none if the host is to keep the one that it has.
    pub fn part(&mut self, guarantee: u64, now: Nanos) -> Option<u64> {
        let (_, at) = self.claims.get(&self.own)?;
        if now.since(*at) >= CUT_OFF || now.since(self.since) < LISTEN {
            return None;
        }
        let since = self.since;
        self.claims.retain(|_, (_, at)| now.since((*at).max(since)) < SILENCE);
        let own = self.claims.keys().position(|host| *host == self.own)?;
        let claims: Vec<Claim> = self.claims.values().map(|(claim, _)| *claim).collect();
        divide(guarantee, &claims).get(own).copied()
    }
}
