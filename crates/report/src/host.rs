//! The host a result was measured on, described from `/proc`.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

/// The hardware and software that a result was measured with. It has no host name or user name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The running kernel's release.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// Logical processors online.
    pub cores: usize,
    /// Usable memory in bytes.
    pub memory: u64,
    /// Versions of the software, by name.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
}

impl Host {
    /// Reads `/proc`. A value that cannot be read is `unknown` or zero, as a run should not fail for lack of a description.
    pub fn of_this_machine() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let versions = BTreeMap::from([("fairlane".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
        Self {
            versions,
            ..Self::parse(&read("/proc/sys/kernel/osrelease"), &read("/proc/cpuinfo"), &read("/proc/meminfo"))
        }
    }

    fn parse(osrelease: &str, cpuinfo: &str, meminfo: &str) -> Self {
        let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        // Arm's cpuinfo names no model.
        let cpu = value(cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
        let memory = value(meminfo, "MemTotal").and_then(|text| text.strip_suffix(" kB")?.trim().parse::<u64>().ok());
        Self {
            kernel: or_unknown(osrelease.trim()),
            cpu: or_unknown(cpu),
            cores: cpuinfo.lines().filter(|line| key_value(line).is_some_and(|(key, _)| key == "processor")).count(),
            memory: memory.unwrap_or(0).saturating_mul(1024),
            versions: BTreeMap::new(),
        }
    }
}

fn key_value(line: &str) -> Option<(&str, &str)> {
    line.split_once(':').map(|(key, value)| (key.trim(), value.trim()))
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().filter_map(key_value).find(|(found, _)| *found == key).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_parsed() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Model A\n\nprocessor\t: 1\nmodel name\t: Model A\n";
        let host = Host::parse("6.1.0-44-amd64\n", cpuinfo, "MemFree: 1 kB\nMemTotal:       16384 kB\n");
        assert_eq!((host.kernel.as_str(), host.cpu.as_str()), ("6.1.0-44-amd64", "Model A"));
        assert_eq!((host.cores, host.memory), (2, 16 << 20));
    }

    #[test]
    fn values_that_cannot_be_read_are_unknown() {
        let host = Host::parse("", "", "MemTotal: many");
        assert_eq!((host.kernel.as_str(), host.cores, host.memory), ("unknown", 0, 0));
    }

    #[test]
    fn this_machine_is_known() {
        let host = Host::of_this_machine();
        assert!(host.cores > 0 && host.memory > 0 && host.kernel != "unknown");
    }
}
