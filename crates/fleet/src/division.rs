//! A host's parts of what the fleet guarantees to tenants: it claims once a second, hears all hosts' claims, and divides.
//!
//! The rule is [`fairlane_core::partition`]'s. Claims are messages and are not kept: one subject for each tenant, heard by the hosts
//! that have it.

use crate::store::failed;
use crate::tenants::Guarantee;
use crate::{Error, Fleet};
use async_nats::jetstream::kv;
use async_nats::{Message, Subscriber};
use fairlane_core::partition::{Claim, Demand, GATHER, Heard, Measured};
use fairlane_core::time::Nanos;
use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// What subjects of claims begin with.
const CLAIMS: &str = "fairlane.claims.";

/// A message.
#[derive(Serialize, Deserialize)]
struct Said {
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
    demand: Demand,
    heard: Heard,
    /// The last part of this host. It is kept while none can be computed.
    part: Option<u64>,
}

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
    pub(crate) async fn claim(&mut self, measured: &BTreeMap<String, Measured>) -> Result<(), Error> {
        self.find(measured).await?;
        let now = self.now();
        for (name, tenant) in &mut self.tenants {
            let (Some(here), Some(measured)) = (&mut tenant.here, measured.get(name)) else { continue };
            let said = Said { host: self.host.to_owned(), claim: here.demand.claim(*measured, now) };
            let json = serde_json::to_vec(&said).expect("a claim has no maps");
            // What is lost now is said again in a second.
            let _ = self.fleet.client.publish(format!("{CLAIMS}{name}"), json.into()).await;
        }
        Ok(())
    }

    /// Listens to claims of the tenants that this host has, and to no others.
    async fn find(&mut self, measured: &BTreeMap<String, Measured>) -> Result<(), Error> {
        let mut changed = false;
        for (name, tenant) in &mut self.tenants {
            let is_here = tenant.guarantee.is_some() && measured.contains_key(name);
            changed |= is_here != tenant.here.is_some();
            match is_here {
                true => drop(tenant.here.get_or_insert_with(|| Here {
                    demand: Demand::default(),
                    heard: Heard::new(self.host),
                    part: None,
                })),
                false => tenant.here = None,
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
        Ok(())
    }

    /// What the fleet guarantees here: of each tenant its part, or none if the fleet guarantees nothing to it any more.
    pub(crate) fn parts(&mut self) -> Vec<(String, Option<u64>)> {
        let now = self.now();
        let part = |(name, tenant): (&String, &mut Tenant)| {
            let Some(guarantee) = tenant.guarantee else { return Some((name.clone(), None)) };
            let here = tenant.here.as_mut()?;
            here.part = here.heard.part(guarantee.min_rate, now).or(here.part);
            Some((name.clone(), Some(here.part?)))
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
