//! A change of many hosts' policies: one host first, then twice as many each time, and all back if one does not take it.

use crate::hosts::Hosts;
use crate::store::{Fleet, Revision};
use crate::{Error, State};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How often the time that hosts have left is looked at.
const TICK: Duration = Duration::from_millis(100);

/// A policy that a host is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The host.
    pub host: String,
    /// The text of the policy file.
    pub text: String,
}

/// How fast a change goes from host to host.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long guarantees must be met, after a policy is in force, before the next hosts get theirs.
    pub settle: Duration,
    /// How long a host that was there before may take to say what became of its policy. Time without a server is not counted.
    pub patience: Duration,
}

/// A host that has its new policy.
struct Done<'a> {
    host: &'a str,
    /// The text of its former one.
    former: String,
    number: u64,
    /// Whether the host was away before, so that nobody waits for it.
    away: bool,
    /// To whom promises were broken before.
    broken: BTreeSet<String>,
}

/// What came of waiting.
type Waited = Result<Result<(), String>, Error>;

/// Gives hosts their policies: the first of `wanted` alone, then two, four and so on. Hosts that are away are the last; each gets its
/// policy when it is back, and nobody waits for it. `say` gets a line for each step.
///
/// If a host refuses its policy, if a guarantee that was met before is not met, or if a host is silent, all get their former policies.
/// A host that is to have what it has is left alone, so a change that was interrupted is completed by the same one.
///
/// # Errors
/// [`Error::UnknownHost`] before anything has changed; [`Error::WentBack`]; [`Error::Store`].
pub async fn apply(fleet: &Fleet, wanted: &[Wanted], pace: Pace, say: &mut dyn FnMut(String)) -> Result<(), Error> {
    let mut hosts = Hosts::open(fleet).await?;
    let mut changes = Vec::new();
    for Wanted { host, text } in wanted {
        let mut former = fleet.policy(host).await?.ok_or_else(|| Error::UnknownHost(host.clone()))?;
        let state = hosts.reports().get(host).map(|report| &report.state);
        let refused = state.filter(|state| state.refused.as_ref().is_some_and(|it| it.revision == former.number));
        if former.text == *text && refused.is_none() {
            continue;
        }
        // A host that refuses what the store has goes back to what is in force there.
        if let Some(in_force) = refused.and_then(|state| state.revision)
            && let Some(kept) = fleet.policy_at(host, in_force).await?
        {
            former.text = kept.text;
        }
        changes.push((host, text, former));
    }
    changes.sort_by_key(|(host, ..)| hosts.is_away(host));
    say(format!("{} of {} hosts get another policy", changes.len(), wanted.len()));
    let mut rollout = Rollout { fleet, hosts: &mut hosts, pace, say, done: Vec::new() };
    let mut changes = changes.into_iter();
    while changes.len() > 0 {
        let begin = rollout.done.len();
        for (host, text, former) in changes.by_ref().take(begin + 1) {
            if let Err(error) = rollout.put(host, text, former).await {
                return Err(rollout.back(error.to_string()).await);
            }
        }
        let settled = match rollout.in_force(begin).await? {
            Ok(()) => rollout.settle().await?,
            refused => refused,
        };
        if let Err(why) = settled {
            return Err(rollout.back(why).await);
        }
    }
    Ok(())
}

/// A change on its way.
struct Rollout<'a, 'b> {
    fleet: &'a Fleet,
    hosts: &'a mut Hosts,
    pace: Pace,
    say: &'a mut dyn FnMut(String),
    done: Vec<Done<'b>>,
}

impl<'b> Rollout<'_, 'b> {
    async fn put(&mut self, host: &'b str, text: &str, former: Revision) -> Result<(), Error> {
        let away = self.hosts.is_away(host);
        let number = self.fleet.put(host, text, former.number).await?;
        let later = if away { ", which is away and will follow" } else { "" };
        (self.say)(format!("revision {number} for {host}{later}"));
        let broken = self
            .state(host)
            .map_or(BTreeSet::new(), |state| state.broken.iter().map(|promise| promise.to.clone()).collect());
        self.done.push(Done { host, former: former.text, number, away, broken });
        Ok(())
    }

    fn state(&self, host: &str) -> Option<&State> {
        self.hosts.reports().get(host).map(|report| &report.state)
    }

    /// Whether a host has yet to say that its policy is in force.
    fn waits_for(&self, done: &Done) -> bool {
        let in_force = self.state(done.host).and_then(|state| state.revision);
        !done.away && in_force != Some(done.number)
    }

    /// Waits until hosts have their policies in force, from the one with this index on.
    async fn in_force(&mut self, begin: usize) -> Waited {
        let mut left = self.pace.patience;
        loop {
            let silent = self.done[begin..].iter().find(|done| self.waits_for(done));
            let Some(silent) = silent.map(|done| done.host) else { return Ok(Ok(())) };
            if let Some(why) = self.trouble() {
                return Ok(Err(why));
            }
            if left.is_zero() {
                return Ok(Err(format!("{silent} does not say that it has its policy")));
            }
            left = left.saturating_sub(self.tick().await?);
        }
    }

    /// Waits while all guarantees have to be met.
    async fn settle(&mut self) -> Waited {
        let mut left = self.pace.settle;
        loop {
            if let Some(why) = self.trouble() {
                return Ok(Err(why));
            }
            if left.is_zero() {
                return Ok(Ok(()));
            }
            left = left.saturating_sub(self.tick().await?);
        }
    }

    /// Waits for news, but not for long. Returns how much time has passed with a server.
    async fn tick(&mut self) -> Result<Duration, Error> {
        let start = Instant::now();
        if let Ok(news) = timeout(TICK, self.hosts.next()).await {
            news?;
        }
        Ok(if self.fleet.is_connected() { start.elapsed() } else { Duration::ZERO })
    }

    /// A host that has refused its policy, or on which it has broken a promise.
    fn trouble(&self) -> Option<String> {
        self.done.iter().find_map(|done| {
            let state = self.state(done.host)?;
            if let Some(refused) = state.refused.as_ref().filter(|refused| refused.revision == done.number) {
                return Some(format!("{} refuses its policy: {}", done.host, refused.reason));
            }
            let broken = state.broken.iter().filter(|_| state.revision == Some(done.number));
            let new = broken.clone().find(|promise| !done.broken.contains(&promise.to))?;
            Some(format!("{}: {} {}", done.host, new.to, new.is))
        })
    }

    /// Gives all hosts their former policies.
    async fn back(&mut self, why: String) -> Error {
        (self.say)(format!("going back: {why}"));
        let mut lost = Vec::new();
        for done in &mut self.done {
            match self.fleet.put(done.host, &done.former, done.number).await {
                Ok(number) => done.number = number,
                Err(error) => {
                    lost.push(error.to_string());
                    done.away = true;
                }
            }
        }
        let mut left = self.pace.patience;
        let silent = |rollout: &Self| -> Vec<&str> {
            rollout.done.iter().filter(|done| rollout.waits_for(done)).map(|done| done.host).collect()
        };
        while !silent(self).is_empty() && !left.is_zero() {
            match self.tick().await {
                Ok(passed) => left = left.saturating_sub(passed),
                Err(error) => return error,
            }
        }
        lost.extend(silent(self).into_iter().map(|host| format!("{host} does not say so")));
        let back = match lost.is_empty() {
            true => "all hosts have their former policies".to_owned(),
            false => format!("the others have their former policies, but: {}", lost.join("; ")),
        };
        Error::WentBack { why, back }
    }
}
