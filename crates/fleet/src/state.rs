//! What a host reports of itself.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a host, as its agent last saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The revision of the policy in force; none if no policy of the store is.
    pub revision: Option<u64>,
    /// The newest revision, if the host refused it.
    pub refused: Option<Refused>,
    /// Guaranteed rates that are not met although frames wait.
    pub broken: Vec<Promise>,
    /// Those who get less of their link than their weight gives them although their frames wait.
    pub below_due: Vec<Promise>,
    /// The host's parts in force of what the fleet guarantees to tenants, in bits a second.
    #[serde(default)]
    pub parts: BTreeMap<String, u64>,
}

/// A policy that a host refused. The former one stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Its revision.
    pub revision: u64,
    /// What is wrong with it, a line for each problem.
    pub reason: String,
}

/// Something a policy says, and what is true instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Who it was made to: `vif web`.
    pub to: String,
    /// What is wrong: `sends 2.1Mbit/s, less than its min_rate of 20Mbit/s`.
    pub is: String,
}
