//! What serves the guests' cards.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::name::NameError;

/// The guests' network backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The machine's own: Linux netback, on a Xen host; on others a tap or a veth pair.
    #[default]
    Netback,
    /// Fairlane: in dom0 of a Xen host, on others over vhost-user.
    Fairlane,
}

impl Backend {
    /// All there are.
    pub const ALL: [Backend; 2] = [Backend::Netback, Backend::Fairlane];

    /// The name, as a command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Netback => "netback",
            Backend::Fairlane => "fairlane",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = NameError;

    fn from_str(word: &str) -> Result<Backend, NameError> {
        let known = || Backend::ALL.map(Backend::name).join(" and ");
        let unknown = || NameError { word: word.to_owned(), kind: "backend", known: known() };
        Backend::ALL.into_iter().find(|backend| backend.name() == word).ok_or_else(unknown)
    }
}
