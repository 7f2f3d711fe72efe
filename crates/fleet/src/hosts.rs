//! All hosts of the fleet and what they report.

use crate::state::State;
use crate::store::failed;
use crate::{Error, Fleet};
use async_nats::jetstream::kv;
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// How often a host reports, whether or not something has changed.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(3);

/// A host whose newest report is this much older than that of another one is away.
const AWAY: Duration = Duration::from_secs(10);

/// What hosts report, kept up to date.
pub struct Hosts {
    watch: kv::Watch,
    reports: BTreeMap<String, Report>,
}

/// The newest report of a host.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it says.
    pub state: State,
    /// When it came, by the server's clock.
    pub at: SystemTime,
}

impl Hosts {
    /// Reads what all hosts have reported so far.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn open(fleet: &Fleet) -> Result<Hosts, Error> {
        let read = || "read the states of hosts".to_owned();
        let watch = fleet.states.watch_with_history(">").await.map_err(failed(read))?;
        let mut awaited = fleet.reporters().await?;
        let mut hosts = Hosts { watch, reports: BTreeMap::new() };
        // Not until the watch says that it is current: that is a count of what is to come, which goes wrong like that of `keys`.
        while !awaited.is_empty() {
            awaited.remove(&hosts.entry().await?.key);
        }
        Ok(hosts)
    }

    /// Waits for the next report; returns its host. It may be one that was forgotten.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn next(&mut self) -> Result<String, Error> {
        Ok(self.entry().await?.key)
    }

    /// The newest report of each host, by name.
    pub fn reports(&self) -> &BTreeMap<String, Report> {
        &self.reports
    }

    /// Whether a host has not been heard of for a while.
    ///
    /// Reports are compared with each other, since clocks differ. So if nobody is heard of, nobody is away.
    pub fn is_away(&self, host: &str) -> bool {
        let newest = self.reports.values().map(|report| report.at).max();
        let age = |report: &Report| newest?.duration_since(report.at).ok();
        self.reports.get(host).is_none_or(|report| age(report).is_some_and(|age| age > AWAY))
    }

    async fn entry(&mut self) -> Result<kv::Entry, Error> {
        loop {
            let entry = match self.watch.next().await {
                Some(Ok(entry)) => entry,
                // The server was silent for a while. The watch goes on where it was.
                Some(Err(_)) => continue,
                None => {
                    return Err(Error::Store { what: "follow hosts".to_owned(), why: "it ended the watch".to_owned() });
                }
            };
            match (entry.operation, serde_json::from_slice(&entry.value)) {
                (kv::Operation::Put, Ok(state)) => {
                    self.reports.insert(entry.key.clone(), Report { state, at: entry.created.into() });
                }
                _ => drop(self.reports.remove(&entry.key)),
            }
            return Ok(entry);
        }
    }
}
