//! What the fleet as a whole guarantees to tenants: a bucket with a key for each tenant.

use crate::store::{entries, failed};
use crate::{Error, Fleet};
use async_nats::jetstream::kv;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is guaranteed to a tenant on all hosts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarantee {
    /// What its guests may send in any case, in bits a second.
    pub min_rate: u64,
}

impl Guarantee {
    /// What an entry of the bucket says; none if the guarantee was taken away, or is not understood.
    pub(crate) fn read(entry: &kv::Entry) -> Option<Guarantee> {
        let value = (entry.operation == kv::Operation::Put).then_some(&entry.value)?;
        serde_json::from_slice(value).ok()
    }
}

impl Fleet {
    /// All guarantees, by tenant.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn guarantees(&self) -> Result<BTreeMap<String, Guarantee>, Error> {
        let entries = entries(&self.tenants, "list its tenants").await?;
        Ok(entries.into_iter().filter_map(|entry| Some((entry.key.clone(), Guarantee::read(&entry)?))).collect())
    }

    /// Gives a tenant a guarantee in place of a former one, or takes it away.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn guarantee(&self, tenant: &str, guarantee: Option<Guarantee>) -> Result<(), Error> {
        let keep = || format!("keep the guarantee of tenant {tenant}");
        match guarantee {
            Some(guarantee) => {
                let json = serde_json::to_vec(&guarantee).expect("a guarantee has no maps");
                self.tenants.put(tenant, json.into()).await.map(drop).map_err(failed(keep))
            }
            // What remains says to hosts that are away that it is gone.
            None => self.tenants.delete(tenant).await.map_err(failed(keep)),
        }
    }
}
