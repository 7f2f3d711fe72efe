//! The backend that serves the guests' cards.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::name::NameError;

/// The earlier name of [`Backend::Kernel`], still read in files and on the command line.
const KERNEL_BEFORE: &str = "netback";

/// The guests' network backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The kernel's own: netback on a Xen host, vhost-net on a KVM host, elsewhere a tap or a veth pair.
    #[default]
    #[serde(alias = "netback")]
    Kernel,
    /// Fairlane: in dom0 of a Xen host, elsewhere over vhost-user.
    Fairlane,
}

impl Backend {
    /// All backends.
    pub const ALL: [Backend; 2] = [Backend::Kernel, Backend::Fairlane];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Kernel => "kernel",
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
        let name = if word == KERNEL_BEFORE { Backend::Kernel.name() } else { word };
        Backend::ALL.into_iter().find(|backend| backend.name() == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_are_parsed_and_serialized_alike() {
        for backend in Backend::ALL {
            assert_eq!(backend.name().parse(), Ok(backend));
            assert_eq!(serde_json::to_value(backend).unwrap(), backend.name());
        }
        let error = "vhost".parse::<Backend>().unwrap_err().to_string();
        assert!(error.contains("kernel and fairlane"), "{error}");
    }

    #[test]
    fn the_earlier_name_of_the_kernel_backend_is_read() {
        assert_eq!(KERNEL_BEFORE.parse(), Ok(Backend::Kernel));
        assert_eq!(serde_json::from_value::<Backend>(KERNEL_BEFORE.into()).unwrap(), Backend::Kernel);
    }

    #[test]
    fn topologies_of_saved_results_are_read() {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/xen");
        for (run, backend) in [("netback", Backend::Kernel), ("fairlane", Backend::Fairlane)] {
            let path = results.join(format!("isolation-equal-rate-{run}/result.json"));
            let text = std::fs::read_to_string(&path).unwrap();
            let result: serde_json::Value = serde_json::from_str(&text).unwrap();
            let read = saved_backends(&result);
            assert!(!read.is_empty(), "{} has no topology", path.display());
            assert!(read.iter().all(|read| *read == backend), "{}: {read:?}", path.display());
        }
    }

    /// The backends of all topologies in a result file.
    fn saved_backends(value: &serde_json::Value) -> Vec<Backend> {
        match value {
            serde_json::Value::Object(fields) => fields
                .iter()
                .flat_map(|(key, value)| match (key.as_str(), value.get("backend")) {
                    ("topology", Some(backend)) => vec![serde_json::from_value(backend.clone()).unwrap()],
                    _ => saved_backends(value),
                })
                .collect(),
            serde_json::Value::Array(values) => values.iter().flat_map(saved_backends).collect(),
            _ => Vec::new(),
        }
    }
}
