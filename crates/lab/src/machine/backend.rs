//! Fairlane as the guests' backend: its policy, its daemon, what it tells.

use std::collections::BTreeMap;

use fairlane_agent::Command;
use fairlane_policy::CONTROL;
use serde_json::Value;

use super::wiring::{self, UPLINK};
use crate::images::{NICE, PYTHON};
use crate::topology::{Node, Topology};
use crate::{Agent, Error, Job};

/// Fairlane's policy in dom0.
const POLICY: &str = "/etc/fairlane.toml";
/// Fairlane in dom0, and its nice value: that of `deploy/xen/fairlane.service.conf`, which says why.
const PROGRAM: &str = "/bin/fairlane";
const PRIORITY: &str = "-10";
/// The name of its link.
const LINK: &str = "lan";

/// The link's section of a policy.
fn link(topology: &Topology, uplink: &str) -> String {
    let rate = topology.link.map(|rate| format!("rate = \"{rate:.0}bit/s\"\n")).unwrap_or_default();
    format!("[[link]]\nname = \"{LINK}\"\n{rate}uplink = {{ {uplink} }}\n")
}

/// Makes the tap that is Fairlane's uplink, and stands for the only card the host is to join to its link: what guests send each
/// other does not come by there. Answers the link's section of a policy.
pub(super) fn link_by_tap(host: &Agent, topology: &Topology) -> Result<String, Error> {
    let tap = wiring::vif(1);
    // Made beforehand, it outlasts the daemon, and so does its place in the bridge.
    wiring::ip(host, &format!("tuntap add {tap} mode tap vnet_hdr"))?;
    Ok(link(topology, &format!("tap = \"{tap}\"")))
}

/// Starts Fairlane in dom0, where it takes every guest's card. Its uplink is the host's own card, which is up, and which the
/// host and guests share: they do not hear each other there. The job is the daemon.
pub(super) fn start(dom0: &Agent, topology: &Topology) -> Result<Job, Error> {
    let mut text = format!("{}xen = true\n", link(topology, &format!("card = \"{UPLINK}\"")));
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
    dom0.await_output(&[PROGRAM, "ctl", "--json", "set", &card, "early_ack=true"], "null").map(drop)
}

/// What Fairlane in dom0 says of each guest's card: its counters, how long frames waited, what early ack did.
pub(super) fn vifs(dom0: &Agent) -> Result<BTreeMap<String, Value>, Error> {
    let told = dom0.output(&[PROGRAM, "ctl", "--json", "show"])?;
    let snapshot: Value = serde_json::from_str(&told).map_err(|error| Error::Failed {
        guest: dom0.name().to_owned(),
        reason: format!("`fairlane ctl --json show` answered {told:?}: {error}"),
    })?;
    let vifs = snapshot["vifs"].as_array().into_iter().flatten();
    Ok(vifs.map(|vif| (vif["name"].as_str().unwrap_or_default().to_owned(), vif.clone())).collect())
}

/// What the host is to do to give guests' cards weights while Fairlane runs, as a toolstack would. Guests are made in order, so
/// that their domains have their numbers.
pub(crate) fn set_weights(weights: impl Iterator<Item = (usize, u32)>) -> Command {
    let key = |guest| format!("/local/domain/0/backend/vif/{guest}/0/weight");
    let pairs = weights.flat_map(|(guest, weight)| [key(guest), weight.to_string()]);
    Command::Run { argv: ["xenstore-write".to_owned()].into_iter().chain(pairs).collect() }
}

/// Starts the daemon in dom0 with the policy that is there and the priority of `deploy/xen/fairlane.service.conf`, and waits until
/// it serves.
pub fn run(dom0: &Agent) -> Result<Job, Error> {
    serve(dom0, &[&PYTHON[..], &[NICE, PRIORITY]].concat(), PROGRAM, POLICY, CONTROL)
}

/// Starts the daemon with a policy and its control socket, and waits until it serves. Its command begins with the words of
/// `by`, if there are any.
pub(super) fn serve(host: &Agent, by: &[&str], program: &str, policy: &str, control: &str) -> Result<Job, Error> {
    let argv = by.iter().copied().chain([program, "up", policy]).map(str::to_owned).collect();
    let daemon = host.start_job(Command::Run { argv })?;
    host.await_output(&[program, "ctl", "--control", control, "show"], LINK)?;
    Ok(daemon)
}
