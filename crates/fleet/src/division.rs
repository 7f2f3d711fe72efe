//! A host's parts of what the fleet guarantees to tenants: it claims once a second and when its claim changes, hears all hosts'
//! claims, and divides.
//!
//! The rule is [`fairlane_core::partition`]'s. Claims are messages and are not kept: one subject for each tenant, heard by the hosts
//! that have it.

use crate::store::failed;
use crate::tenants::Guarantee;
use crate::{Error, Fleet};
use async_nats::jetstream::kv;
use async_nats::{Message, Subscriber};
use fairlane_core::partition::{Claim, Demand, GATHER, Heard, Measured, PERIOD, claimant};
use fairlane_core::time::Nanos;
use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// What subjects of claims begin with.
const CLAIMS: &str = "fairlane.claims.";

/// A message.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Said {
    /// Or a link of one ([`claimant`]).
    host: String,
    #[serde(flatten)]
    claim: Claim,
}

/// A tenant to which the fleet guarantees something, or did.
#[derive(Default)]
struct Tenant {
    /// None once it was taken away.
    guarantee: Option<Guarantee>,
    /// If this host has guests of it.
    here: Option<Here>,
}

/// A tenant on this host.
struct Here {
    heard: Heard,
    /// The links that have guests of it.
    links: BTreeMap<String, Link>,
    /// The last claims, by name.
    said: BTreeMap<String, Claim>,
    /// When they were said.
    at: Option<Nanos>,
}

impl Here {
    fn new(host: &str) -> Here {
        Here { heard: Heard::new(host), links: BTreeMap::new(), said: BTreeMap::new(), at: None }
    }

    /// Leaves out the links that are not among these, and adds those that are new.
    fn keep<'a>(mut self, links: impl Iterator<Item = &'a String>) -> Here {
        self.links = links.map(|link| (link.clone(), self.links.remove(link).unwrap_or_default())).collect();
        self
    }

    /// What is to be said after a measurement: all that is claimed, if it has changed or was said a second ago.
    fn claims(&mut self, host: &str, measured: &BTreeMap<String, Measured>, now: Nanos) -> Vec<Said> {
        let several = self.links.len() > 1;
        let of_link = |(link, here): (&String, &mut Link)| {
            let claim = here.demand.claim(*measured.get(link)?, now);
            Some((claimant(host, link, several), claim))
        };
        let mut claims: BTreeMap<String, Claim> = self.links.iter_mut().filter_map(of_link).collect();
        if claims == self.said && self.at.is_some_and(|at| now.since(at) < PERIOD) {
            return Vec::new();
        }
        self.at = Some(now);
        // A link without guests needs nothing any more, nor does the former name of one that is now one of several, or alone.
        for gone in mem::replace(&mut self.said, claims.clone()).into_keys() {
            claims.entry(gone).or_default();
        }
        claims.into_iter().map(|(host, claim)| Said { host, claim }).collect()
    }

    /// Takes everything back that was claimed.
    fn end(self) -> impl Iterator<Item = Said> {
        self.said.into_keys().map(|host| Said { host, claim: Claim::default() })
    }
}

/// A tenant on a link of this host.
#[derive(Default)]
struct Link {
    demand: Demand,
    /// Its last part. It is kept while none can be computed.
    part: Option<u64>,
}

/// Something of each tenant on each link that has guests of it.
pub type OfLinks<T> = BTreeMap<String, BTreeMap<String, T>>;

/// What a host does for tenants across hosts.
pub(crate) struct Division<'a> {
    fleet: &'a Fleet,
    host: &'a str,
    start: Instant,
    guarantees: kv::Watch,
    claims: SelectAll<Subscriber>,
    tenants: BTreeMap<String, Tenant>,
    /// When parts are computed again, if something has changed.
    due: Option<Instant>,
}

impl<'a> Division<'a> {
    pub(crate) async fn open(fleet: &'a Fleet, host: &'a str) -> Result<Division<'a>, Error> {
        let guarantees = fleet.tenants.watch_with_history(">").await.map_err(failed(follow))?;
        let (claims, tenants) = (SelectAll::new(), BTreeMap::new());
        Ok(Division { fleet, host, start: Instant::now(), guarantees, claims, tenants, due: None })
    }

    /// Waits until parts may have changed.
    pub(crate) async fn change(&mut self) -> Result<(), Error> {
        loop {
            let due = self.due;
            tokio::select! {
                entry = self.guarantees.next() => match entry {
                    Some(Ok(entry)) => {
                        self.tenants.entry(entry.key.clone()).or_default().guarantee = Guarantee::read(&entry);
                        self.change_soon();
                    }
                    // The server was silent for a while. The watch goes on where it was.
                    Some(Err(_)) => {}
                    None => return Err(Error::Store { what: follow(), why: "it ended the watch".to_owned() }),
                },
                Some(message) = self.claims.next() => self.hear(&message),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.due = None;
                    return Ok(());
                }
            }
        }
    }

    /// Whether the fleet guarantees something to a tenant.
    pub(crate) fn has_guarantees(&self) -> bool {
        self.tenants.values().any(|tenant| tenant.guarantee.is_some())
    }

    fn change_soon(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + Duration::from_nanos(GATHER.0));
    }

    fn hear(&mut self, message: &Message) {
        let now = self.now();
        let tenant = message.subject.strip_prefix(CLAIMS).and_then(|tenant| self.tenants.get_mut(tenant));
        if let Some(here) = tenant.and_then(|tenant| tenant.here.as_mut())
            && let Ok(Said { host, claim }) = serde_json::from_slice(&message.payload)
            && here.heard.hear(&host, claim, now)
        {
            self.change_soon();
        }
    }

    /// Claims parts for what was measured of this host's tenants.
    pub(crate) async fn claim(&mut self, measured: &OfLinks<Measured>) -> Result<(), Error> {
        let mut all = self.find(measured).await?;
        let now = self.now();
        for (name, tenant) in &mut self.tenants {
            if let (Some(here), Some(measured)) = (&mut tenant.here, measured.get(name)) {
                all.extend(here.claims(self.host, measured, now).into_iter().map(|said| (name.clone(), said)));
            }
        }
        for (tenant, said) in all {
            let json = serde_json::to_vec(&said).expect("a claim has no maps");
            // What is lost now is said again in a second, or its silence is noticed.
            let _ = self.fleet.client.publish(format!("{CLAIMS}{tenant}"), json.into()).await;
        }
        Ok(())
    }

    /// Listens to claims of the tenants that this host has, and to no others. Returns what is taken back for those that it had, by tenant.
    async fn find(&mut self, measured: &OfLinks<Measured>) -> Result<Vec<(String, Said)>, Error> {
        let (mut changed, mut back) = (false, Vec::new());
        for (name, tenant) in &mut self.tenants {
            let links = measured.get(name).filter(|_| tenant.guarantee.is_some());
            changed |= links.is_some() != tenant.here.is_some();
            let former = tenant.here.take();
            match links {
                Some(links) => {
                    tenant.here = Some(former.unwrap_or_else(|| Here::new(self.host)).keep(links.keys()));
                }
                None => back.extend(former.into_iter().flat_map(Here::end).map(|said| (name.clone(), said))),
            }
        }
        if changed {
            self.claims.clear();
            for (name, _) in self.tenants.iter().filter(|(_, tenant)| tenant.here.is_some()) {
                let subject = format!("{CLAIMS}{name}");
                let hear = || format!("hear the claims of tenant {name}");
                self.claims.push(self.fleet.client.subscribe(subject).await.map_err(failed(hear))?);
            }
        }
        Ok(back)
    }

    /// What the fleet guarantees here: of each tenant its part of each link, or none if the fleet guarantees nothing to it any more.
    pub(crate) fn parts(&mut self) -> Vec<(String, Option<BTreeMap<String, u64>>)> {
        let now = self.now();
        let part = |(name, tenant): (&String, &mut Tenant)| {
            let Some(guarantee) = tenant.guarantee else { return Some((name.clone(), None)) };
            let Here { heard, links, .. } = tenant.here.as_mut()?;
            let (parts, several) = (heard.parts(guarantee.min_rate, now).unwrap_or_default(), links.len() > 1);
            for (link, here) in links.iter_mut() {
                here.part = parts.get(&claimant(self.host, link, several)).copied().or(here.part);
            }
            let parts: BTreeMap<_, _> =
                links.iter().filter_map(|(link, here)| Some((link.clone(), here.part?))).collect();
            (!parts.is_empty()).then(|| (name.clone(), Some(parts)))
        };
        self.tenants.iter_mut().filter_map(part).collect()
    }

    /// A tenant without a guarantee of the fleet has its host's own.
    pub(crate) fn forget(&mut self, tenant: &str) {
        self.tenants.remove(tenant);
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }
}

fn follow() -> String {
    "follow the guarantees of tenants".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a host claims, as name and demand, when its tenant sends so much on each of these links.
    fn claimed(here: &mut Here, sent: &[(&str, u64)], second: u64) -> Vec<(String, u64)> {
        let measured: BTreeMap<String, Measured> = sent
            .iter()
            .map(|(link, sent)| ((*link).to_owned(), Measured { sent: Some(*sent), floor: 0, room: 1000 }))
            .collect();
        *here = mem::replace(here, Here::new("one")).keep(measured.keys());
        let claims = here.claims("one", &measured, Nanos::from_millis(1000 * second));
        claims.into_iter().map(|Said { host, claim }| (host, claim.demand)).collect()
    }

    fn are(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|(name, demand)| ((*name).to_owned(), *demand)).collect()
    }

    #[test]
    fn what_is_claimed_no_more_is_taken_back_once() {
        let mut here = Here::new("one");
        assert_eq!(claimed(&mut here, &[("lan", 80)], 0), are(&[("one", 100)]));
        // The host is now two claimants, and was another one.
        let both = [("dmz", 40), ("lan", 80)];
        assert_eq!(claimed(&mut here, &both, 1), are(&[("one", 0), ("one/dmz", 50), ("one/lan", 100)]));
        assert_eq!(claimed(&mut here, &both, 2), are(&[("one/dmz", 50), ("one/lan", 100)]));
        assert_eq!(claimed(&mut here, &[("lan", 80)], 3), are(&[("one", 100), ("one/dmz", 0), ("one/lan", 0)]));
        assert_eq!(claimed(&mut here, &[("lan", 80)], 4), are(&[("one", 100)]));
        assert_eq!(claimed(&mut here, &[("lan", 80)], 4), [], "it was said a moment ago");
        assert_eq!(claimed(&mut here, &[("lan", 88)], 4), are(&[("one", 110)]), "it has changed");
        let back: Vec<Said> = here.end().collect();
        assert_eq!(back, [Said { host: "one".to_owned(), claim: Claim::default() }]);
    }

    #[test]
    fn a_link_that_comes_back_claims_anew() {
        let mut here = Here::new("one");
        claimed(&mut here, &[("dmz", 40), ("lan", 80)], 0);
        claimed(&mut here, &[("lan", 80)], 1);
        // Its earlier demand, which would be believed to come back for ten seconds, is forgotten.
        assert_eq!(claimed(&mut here, &[("dmz", 24), ("lan", 80)], 2)[1], ("one/dmz".to_owned(), 30));
    }
}
