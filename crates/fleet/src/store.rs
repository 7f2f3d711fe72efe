//! The store: buckets of NATS JetStream. Two have a key for every host; that of tenants is in [`crate::tenants`].

use crate::access::with_sources;
use crate::state::State;
use crate::{Access, Error};
use async_nats::Client;
use async_nats::connection;
use async_nats::jetstream::stream::{Config, DiscardPolicy, InfoError};
use async_nats::jetstream::{self, kv};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;
use std::time::Duration;

/// The bucket of policies: the text of each host's policy file.
const POLICIES: &str = "fairlane-policies";

/// The bucket of [`State`]s, as JSON.
const STATES: &str = "fairlane-states";

/// The bucket of [`crate::Guarantee`]s, as JSON, by tenant.
const TENANTS: &str = "fairlane-tenants";

/// Revisions of each policy that are kept: the most that NATS keeps of a key.
const HISTORY: i64 = 64;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How many entries are read at once.
const READS: usize = 64;

/// How often a server that is there may refuse a policy: one that has just started does so for a moment.
const REFUSALS: u32 = 10;

/// A connection to the fleet's store.
#[derive(Clone)]
pub struct Fleet {
    pub(crate) client: Client,
    pub(crate) policies: kv::Store,
    pub(crate) states: kv::Store,
    pub(crate) tenants: kv::Store,
}

/// A policy in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its number. It grows with every change of any host's policy.
    pub number: u64,
    /// The text of the policy file.
    pub text: String,
}

impl Fleet {
    /// Connects to the store, and creates its buckets if they are not there.
    ///
    /// # Errors
    /// [`Error::Credentials`], [`Error::NoServer`], and [`Error::Store`], for example if JetStream is off.
    pub async fn connect(access: &Access) -> Result<Fleet, Error> {
        Fleet::open(access.connect().await?).await
    }

    pub(crate) async fn open(client: Client) -> Result<Fleet, Error> {
        let jetstream =
            jetstream::context::ContextBuilder::new().timeout(PATIENCE).ack_timeout(PATIENCE).build(client.clone());
        let policies = bucket(&jetstream, POLICIES, HISTORY).await?;
        let states = bucket(&jetstream, STATES, 1).await?;
        let tenants = bucket(&jetstream, TENANTS, HISTORY).await?;
        Ok(Fleet { client, policies, states, tenants })
    }

    /// Whether the server is reachable, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == connection::State::Connected
    }

    /// The names of all hosts that have a policy, in order.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn hosts(&self) -> Result<BTreeSet<String>, Error> {
        Ok(entries(&self.policies, "list its hosts").await?.into_iter().map(|entry| entry.key).collect())
    }

    /// The hosts that have reported a state, or had before they were forgotten.
    pub(crate) async fn reporters(&self) -> Result<BTreeSet<String>, Error> {
        keys(&self.states).await.map_err(failed(|| "list the states of hosts".to_owned()))
    }

    /// The newest policy of a host; none if the store has none.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn policy(&self, host: &str) -> Result<Option<Revision>, Error> {
        let entry = self.policies.entry(host).await.map_err(failed(|| format!("read the policy of {host}")))?;
        Ok(entry.filter(|entry| entry.operation == kv::Operation::Put).map(Revision::from))
    }

    /// A former policy of a host; none if it is not kept.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn policy_at(&self, host: &str, number: u64) -> Result<Option<Revision>, Error> {
        let entry = self.policies.entry_for_revision(host, number).await;
        let entry = entry.map_err(failed(|| format!("read revision {number} of {host}")))?;
        Ok(entry.filter(|entry| entry.operation == kv::Operation::Put).map(Revision::from))
    }

    /// Puts a policy of a host in place of its revision `former`. Returns its revision.
    ///
    /// While the server is away, it waits.
    ///
    /// # Errors
    /// [`Error::Overtaken`] if `former` is not the newest; [`Error::Store`].
    pub async fn put(&self, host: &str, text: &str, former: u64) -> Result<u64, Error> {
        let mut refusals = 0;
        loop {
            let why = match self.policies.update(host, text.to_owned().into(), former).await {
                Ok(number) => return Ok(number),
                Err(error) => with_sources(error),
            };
            // The server may have written it before it died.
            match self.policy(host).await {
                Ok(Some(newest)) if newest.number != former && newest.text == text => return Ok(newest.number),
                Ok(Some(newest)) if newest.number != former => {
                    return Err(Error::Overtaken { host: host.to_owned(), revision: newest.number });
                }
                _ if self.is_connected() => refusals += 1,
                _ => {}
            }
            if refusals == REFUSALS {
                return Err(Error::Store { what: format!("keep a policy of {host}"), why });
            }
            tokio::time::sleep(PATIENCE / 10).await;
        }
    }

    /// Forgets a host.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn forget(&self, host: &str) -> Result<(), Error> {
        for bucket in [&self.policies, &self.states] {
            bucket.purge(host).await.map_err(failed(|| format!("forget {host}")))?;
        }
        Ok(())
    }

    /// Reports the state of a host.
    pub(crate) async fn report(&self, host: &str, state: &State) -> Result<(), Error> {
        let json = serde_json::to_vec(state).expect("a state has text as keys");
        let kept = self.states.put(host, json.into()).await;
        kept.map(drop).map_err(failed(|| format!("keep the state of {host}")))
    }
}

impl From<kv::Entry> for Revision {
    fn from(entry: kv::Entry) -> Revision {
        Revision { number: entry.revision, text: String::from_utf8_lossy(&entry.value).into_owned() }
    }
}

/// All keys of a bucket, deleted ones too.
///
/// [`kv::Store::keys`] counts what is still to come, and waits for ever if one that it counted is replaced meanwhile.
async fn keys(bucket: &kv::Store) -> Result<BTreeSet<String>, InfoError> {
    let subjects = bucket.stream.info_with_subjects(format!("{}>", bucket.prefix)).await?;
    let key = |(subject, _): (String, usize)| subject.strip_prefix(&bucket.prefix).map(str::to_owned);
    subjects.try_filter_map(async |subject| Ok(key(subject))).try_collect().await
}

/// The newest entry of each key that was not deleted.
pub(crate) async fn entries(bucket: &kv::Store, what: &str) -> Result<Vec<kv::Entry>, Error> {
    let what = || what.to_owned();
    let keys = keys(bucket).await.map_err(failed(what))?;
    let entry = async |key: String| bucket.entry(key).await.map_err(failed(what));
    let has_value = async |entry: Option<kv::Entry>| Ok(entry.filter(|entry| entry.operation == kv::Operation::Put));
    stream::iter(keys).map(entry).buffered(READS).try_filter_map(has_value).try_collect().await
}

/// Describes a failed request.
pub(crate) fn failed<E: std::error::Error>(what: impl FnOnce() -> String) -> impl FnOnce(E) -> Error {
    move |error| Error::Store { what: what(), why: with_sources(error) }
}

async fn bucket(jetstream: &jetstream::Context, name: &str, history: i64) -> Result<kv::Store, Error> {
    if let Ok(bucket) = jetstream.get_key_value(name).await {
        return Ok(bucket);
    }
    // As NATS's own clients create buckets (ADR-8). Not by `create_key_value`, which asks servers what those before 2.10 do not know.
    let config = Config {
        name: format!("KV_{name}"),
        subjects: vec![format!("$KV.{name}.>")],
        max_messages_per_subject: history,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        num_replicas: 1,
        ..Default::default()
    };
    jetstream.create_stream(config).await.map_err(failed(|| format!("create its bucket {name}")))?;
    jetstream.get_key_value(name).await.map_err(failed(|| format!("open its bucket {name}")))
}
