//! What serves the guests' cards on a Xen host: dom0's kernel, or Fairlane in its place.

use std::fmt;
use std::str::FromStr;

use fairlane_agent::Command;
use serde::{Deserialize, Serialize};

use super::{Node, Topology, wiring};
use crate::{Agent, Error, Job};

/// Fairlane's policy in dom0.
const POLICY: &str = "/etc/fairlane.toml";

/// The guests' network backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The machine's own: Linux netback, on a Xen host.
    #[default]
    Netback,
    /// Fairlane, in dom0 of a Xen host.
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
    type Err = String;

    fn from_str(word: &str) -> Result<Backend, String> {
        Backend::ALL.into_iter().find(|backend| backend.name() == word).ok_or_else(|| {
            let names = Backend::ALL.map(Backend::name).join(" and ");
            format!("{word} is no backend; there are {names}")
        })
    }
}

/// Starts Fairlane in dom0, where it takes every guest's card. Its uplink is a tap that stands for the only card the host is
/// to join to its link: what guests send each other does not come by there. The job is the daemon.
pub(super) fn start(dom0: &Agent, topology: &Topology) -> Result<Job, Error> {
    let rate = topology.link.map(|rate| format!("rate = \"{rate:.0}bit/s\"\n")).unwrap_or_default();
    let tap = wiring::vif(1);
    // Made beforehand, it outlasts the daemon, and so does its place in the bridge.
    wiring::ip(dom0, &format!("tuntap add {tap} mode tap vnet_hdr"))?;
    let mut text = format!("[[link]]\nname = \"lan\"\n{rate}xen = true\nuplink = {{ tap = \"{tap}\" }}\n");
    for (number, guest) in (1..).zip(&topology.guests) {
        if let Some(rate) = guest.min_rate {
            let node = Node::Guest(number);
            text += &format!("[[vif]]\nname = \"{node}\"\nxen = \"{node}/0\"\nmin_rate = \"{rate:.0}bit/s\"\n");
        }
    }
    dom0.run(Command::Write { path: POLICY.into(), text })?;
    run(dom0)
}

/// Turns early ack on for a guest's card, once Fairlane has found it.
pub(super) fn accelerate(dom0: &Agent, guest: &str) -> Result<(), Error> {
    let card = format!("{guest}/0");
    // JSON has a word to wait for.
    dom0.await_output(&["fairlane", "ctl", "--json", "set", &card, "early_ack=true"], "null").map(drop)
}

/// What the host is to do to give guests' cards weights while Fairlane runs, as a toolstack would. Guests are made in order, so
/// that their domains have their numbers.
pub(crate) fn set_weights(weights: impl Iterator<Item = (usize, u32)>) -> Command {
    let key = |guest| format!("/local/domain/0/backend/vif/{guest}/0/weight");
    let pairs = weights.flat_map(|(guest, weight)| [key(guest), weight.to_string()]);
    Command::Run { argv: ["xenstore-write".to_owned()].into_iter().chain(pairs).collect() }
}

/// Starts the daemon with the policy that is there, and waits until it serves.
pub fn run(dom0: &Agent) -> Result<Job, Error> {
    let argv = ["fairlane", "up", POLICY].map(str::to_owned).to_vec();
    let daemon = dom0.start_job(Command::Run { argv })?;
    dom0.await_output(&["fairlane", "ctl", "show"], "lan")?;
    Ok(daemon)
}
