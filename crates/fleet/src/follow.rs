//! The agent of a host: follows its policy in the store, and reports what became of it.

use crate::division::{Division, OfLinks};
use crate::hosts::HEARTBEAT;
use crate::state::{Promise, Refused, State};
use crate::store::{Fleet, Revision, failed};
use crate::{Access, Error};
use async_nats::jetstream::kv;
use fairlane_core::partition::{MEASURE, Measured, PERIOD};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// How often a host is looked at if there is something to divide, as a look costs it some time.
const LOOK: Duration = Duration::from_nanos(MEASURE.0);

/// How often it is looked at otherwise, and how long until the store is tried again.
const SELDOM: Duration = Duration::from_nanos(PERIOD.0);

/// The host that an agent works for. Its functions may take a moment: the agent has nothing else to do.
pub trait Host {
    /// The policy that the host starts with; none if there is none that is right.
    fn policy(&self) -> Option<String>;

    /// Checks a policy, puts it in force and keeps it. Returns how much has changed.
    ///
    /// # Errors
    /// Then the former policy is in force and kept.
    fn apply(&mut self, policy: &str) -> Result<usize, Refusal>;

    /// What was measured since the last look, and what was not met in the last seconds.
    fn look(&mut self) -> Look;

    /// Guarantees a rate to a tenant on some links, in bits a second; none for what the host's own policy says.
    ///
    /// # Errors
    /// It is not in force, or not on all of them.
    fn guarantee(&mut self, tenant: &str, min_rates: Option<&BTreeMap<String, u64>>) -> Result<(), Refusal>;
}

/// What a host sees of itself.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Guaranteed rates that are not met.
    pub broken: Vec<Promise>,
    /// Shares below due.
    pub below_due: Vec<Promise>,
    /// What was measured of tenants; none if nothing could be.
    pub tenants: Option<OfLinks<Measured>>,
}

/// Why a policy is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is wrong here.
    Wrong(String),
    /// There is no backend that could say. It is tried again.
    NoBackend(String),
}

/// Follows a host's policy for ever. A host that the store does not know gives it the policy that it has.
///
/// The store is not needed for anything but changes: without it, the host goes on with what it has. `say` gets a line for each event.
///
/// # Errors
/// What waiting does not help against: [`Error::Credentials`], or a server address that is none.
pub async fn follow(
    access: &Access,
    name: &str,
    host: &mut impl Host,
    say: &mut impl FnMut(String),
) -> Result<Infallible, Error> {
    let client = access.connect_when_possible().await?;
    let mut said = String::new();
    let mut agent =
        Agent { name, host, say, wanted: None, try_again: false, denied: Vec::new(), state: State::default() };
    loop {
        let fleet = Fleet::open(client.clone()).await;
        let ended = match fleet {
            Ok(fleet) => agent.serve(&fleet).await,
            Err(error) => Err(error),
        };
        let Err(error) = ended;
        if std::mem::replace(&mut said, error.to_string()) != said {
            (agent.say)(format!("{said}; waiting for it, with the policy that is in force"));
        }
        sleep(SELDOM).await;
    }
}

/// The agent of a host.
struct Agent<'a, H, S> {
    name: &'a str,
    host: &'a mut H,
    say: &'a mut S,
    /// The newest policy.
    wanted: Option<Revision>,
    /// Whether it may be refused for a reason that goes away.
    try_again: bool,
    /// Why parts of tenants' guarantees are not in force.
    denied: Vec<String>,
    state: State,
}

impl<H: Host, S: FnMut(String)> Agent<'_, H, S> {
    /// Serves until the watch ends.
    async fn serve(&mut self, fleet: &Fleet) -> Result<Infallible, Error> {
        self.adopt(fleet).await?;
        let name = self.name;
        let follow = || format!("follow the policy of {name}");
        let mut watch = fleet.policies.watch_with_history(name).await.map_err(failed(follow))?;
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut division = Division::open(fleet, name).await?;
        let mut reported: Option<(State, Instant)> = None;
        let mut looked: Option<Instant> = None;
        loop {
            tokio::select! {
                entry = watch.next() => match entry {
                    // Those that newer ones follow at once, after the host was away, are not worth a try.
                    Some(Ok(entry)) if entry.delta > 0 || entry.operation != kv::Operation::Put => continue,
                    Some(Ok(entry)) => {
                        self.wanted = Some(entry.into());
                        self.apply();
                        self.divide(&mut division);
                    }
                    // The server was silent for a while. The watch goes on where it was.
                    Some(Err(_)) => continue,
                    None => return Err(Error::Store { what: follow(), why: "it ended the watch".to_owned() }),
                },
                now = looks.tick() => {
                    if !division.has_guarantees() && looked.is_some_and(|at| now - at < SELDOM) {
                        continue;
                    }
                    looked = Some(now);
                    let look = self.host.look();
                    (self.state.broken, self.state.below_due) = (look.broken, look.below_due);
                    if let Some(measured) = look.tenants.filter(|_| fleet.is_connected()) {
                        division.claim(&measured).await?;
                    }
                    self.divide(&mut division);
                }
                changed = division.change() => {
                    changed?;
                    self.divide(&mut division);
                }
            }
            let is_news = |(state, at): &(State, Instant)| *state != self.state || at.elapsed() >= HEARTBEAT;
            if reported.as_ref().is_none_or(is_news) && fleet.is_connected() {
                if self.try_again {
                    self.apply();
                }
                // What is lost now is reported the next time.
                let kept = fleet.report(self.name, &self.state).await;
                reported = kept.ok().map(|()| (self.state.clone(), Instant::now()));
            }
        }
    }

    /// Puts the host's own policy into the store if it has none there, so that there is one to go back to.
    async fn adopt(&mut self, fleet: &Fleet) -> Result<(), Error> {
        if fleet.policy(self.name).await?.is_none()
            && let Some(own) = self.host.policy()
        {
            let what = || format!("keep the first policy of {}", self.name);
            let number = fleet.policies.create(self.name, own.into()).await.map_err(failed(what))?;
            (self.say)(format!("revision {number} is what this host has had"));
        }
        Ok(())
    }

    /// Puts the newest policy in force, if the host takes it.
    fn apply(&mut self) {
        let Some(wanted) = &self.wanted else { return };
        let applied = self.host.apply(&wanted.text);
        self.try_again = matches!(applied, Err(Refusal::NoBackend(_)));
        let (revision, former) = (wanted.number, self.state.refused.take());
        match applied {
            Ok(changes) => {
                // What was not true of the former policy says nothing of this one.
                let parts = std::mem::take(&mut self.state.parts);
                self.state = State { revision: Some(revision), parts, ..State::default() };
                (self.say)(format!("revision {revision} is in force; changes: {changes}"));
            }
            Err(Refusal::Wrong(reason) | Refusal::NoBackend(reason)) => {
                let refused = Some(Refused { revision, reason });
                if refused != former {
                    let reason = refused.as_ref().map_or("", |refused| &refused.reason);
                    (self.say)(format!("revision {revision} is refused: {reason}"));
                }
                self.state.refused = refused;
            }
        }
    }

    /// Puts this host's parts of tenants' guarantees in force.
    fn divide(&mut self, division: &mut Division) {
        let (mut parts, mut denied) = (BTreeMap::new(), Vec::new());
        for (tenant, here) in division.parts() {
            match (self.host.guarantee(&tenant, here.as_ref()), here) {
                (Ok(()), Some(here)) => drop(parts.insert(tenant, here.values().sum())),
                (Ok(()), None) => division.forget(&tenant),
                (Err(Refusal::Wrong(why) | Refusal::NoBackend(why)), _) => {
                    // What it had is in force.
                    parts.extend(self.state.parts.remove_entry(&tenant));
                    denied.push(format!("tenant {tenant} has not its part: {why}"));
                }
            }
        }
        let news = denied.iter().filter(|line| !self.denied.contains(line));
        news.for_each(|line| (self.say)(line.clone()));
        (self.denied, self.state.parts) = (denied, parts);
    }
}
