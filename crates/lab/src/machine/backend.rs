//! Fairlane as the guests' backend: its policy, its daemon and its counters.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fairlane_agent::Command;
use fairlane_policy::CONTROL;
use serde::Deserialize;
use serde_json::Value;

use super::wiring::{self, UPLINK};
use crate::images::{NICE, PYTHON, REPLACE};
use crate::topology::{GuestPlan, Node, TenantPlan, Topology};
use crate::{Agent, Error, Job};

/// Fairlane's policy in dom0.
const POLICY: &str = "/etc/fairlane.toml";
/// Fairlane in dom0, and its nice value: that of `deploy/xen/fairlane.service.conf`, where the reason is given.
const PROGRAM: &str = "/bin/fairlane";
pub(super) const PRIORITY: &str = "-10";
/// The name of its link.
const LINK: &str = "lan";

/// The link's section of a policy.
fn link(topology: &Topology, uplink: &str) -> String {
    let mut text = format!("[[link]]\nname = \"{LINK}\"\nuplink = {{ {uplink} }}\n");
    for (key, rate) in [("rate", topology.link), ("rx_rate", topology.rx_link)] {
        text += &rate.map(|rate| format!("{key} = \"{rate:.0}bit/s\"\n")).unwrap_or_default();
    }
    text
}

/// The tenants' sections of a policy.
pub(super) fn tenants(topology: &Topology) -> String {
    let section = |tenant: &TenantPlan| format!("[[tenant]]\nname = \"{}\"\nweight = {}\n", tenant.name, tenant.share);
    topology.tenants.iter().map(section).collect()
}

/// The vifs' sections of a policy, for guests over vhost-user with these sockets.
pub(super) fn vifs(topology: &Topology, socket: impl Fn(usize) -> PathBuf) -> String {
    let mut text = String::new();
    for (number, guest) in (1..=topology.joined()).zip(&topology.guests) {
        let node = Node::Guest(number);
        let (mac, socket) = (node.mac(), socket(number));
        text += &format!("[[vif]]\nname = \"{node}\"\nsocket = \"{}\"\nmac = \"{mac}\"\n", socket.display());
        text += &guest.rate.map(|rate| format!("max_rate = \"{rate:.0}bit/s\"\n")).unwrap_or_default();
        text += &format!("early_ack = {}\n{}", topology.early_ack, shares(guest));
    }
    text
}

/// The policy for a topology, with an uplink and sockets that need not exist.
pub fn policy(topology: &Topology) -> String {
    let link = link(topology, "tap = \"sim\"");
    let vifs = vifs(topology, |guest| format!("/sim/{guest}").into());
    format!("{link}{}{vifs}", tenants(topology))
}

/// The keys of a guest's vif in a policy that say what it may send and receive, except `max_rate`.
fn shares(guest: &GuestPlan) -> String {
    let mut text = guest.share.map(|share| format!("weight = {share}\n")).unwrap_or_default();
    text += &guest.tenant.as_ref().map(|tenant| format!("tenant = \"{tenant}\"\n")).unwrap_or_default();
    let rates = [("min_rate", guest.min_rate), ("rx_max_rate", guest.rx_rate), ("rx_min_rate", guest.rx_min_rate)];
    for (key, rate) in rates {
        text += &rate.map(|rate| format!("{key} = \"{rate:.0}bit/s\"\n")).unwrap_or_default();
    }
    text
}

/// Creates the tap that is Fairlane's uplink and the only card to connect to the host's link; frames between guests do not
/// pass it. Returns the link's section of a policy.
pub(super) fn link_by_tap(host: &Agent, topology: &Topology) -> Result<String, Error> {
    let tap = wiring::vif(1);
    // Created here and not by the daemon, it stays in the bridge if the daemon restarts.
    wiring::ip(host, &format!("tuntap add {tap} mode tap vnet_hdr multi_queue"))?;
    Ok(link(topology, &format!("tap = \"{tap}\"")))
}

/// Starts Fairlane in dom0, where it serves every guest's card. Its uplink is the host's own card, which must be up. The host and
/// the guests share that card and cannot reach each other over it. The job is the daemon.
pub(super) fn start(dom0: &Agent, topology: &Topology) -> Result<Job, Error> {
    let mut text = format!("{}xen = true\n{}", link(topology, &format!("card = \"{UPLINK}\"")), tenants(topology));
    for (number, guest) in (1..).zip(&topology.guests) {
        let (node, shares) = (Node::Guest(number), shares(guest));
        if !shares.is_empty() {
            text += &format!("[[vif]]\nname = \"{node}\"\nxen = \"{node}/0\"\n{shares}");
        }
    }
    dom0.run(Command::Write { path: POLICY.into(), text })?;
    run(dom0)
}

/// Enables early ack for a guest's card, once Fairlane has found the card.
pub(super) fn enable_early_ack(dom0: &Agent, guest: &str) -> Result<(), Error> {
    let card = format!("{guest}/0");
    // The JSON answer has a word to wait for.
    dom0.await_output(&[PROGRAM, "ctl", "--json", "set", &card, "early_ack=true"], "null").map(drop)
}

/// The counters in Fairlane's snapshot: those of each guest's card, with waiting times and early ack's counters, and those of the
/// link's uplink, with the frames that were lost before Fairlane saw them.
pub(super) fn counters(dom0: &Agent) -> Result<BTreeMap<String, Value>, Error> {
    let text = dom0.output(&[PROGRAM, "ctl", "--json", "show"])?;
    let snapshot: Value = serde_json::from_str(&text).map_err(|error| Error::Failed {
        guest: dom0.name().to_owned(),
        reason: format!("`fairlane ctl --json show` answered {text:?}: {error}"),
    })?;
    let all = |key: &str| snapshot[key].as_array().into_iter().flatten();
    let name = |what: &Value| what["name"].as_str().unwrap_or_default().to_owned();
    let vifs = all("vifs").map(|vif| (format!("vif {}", name(vif)), vif.clone()));
    let uplinks = all("links").map(|link| (format!("uplink of {}", name(link)), link["uplink"].clone()));
    Ok(vifs.chain(uplinks).collect())
}

/// The program that writes to xenstore, and the key of a card's weight there, around its guest's number.
const WRITE: &str = "xenstore-write";
const VIFS: &str = "/local/domain/0/backend/vif/";
const WEIGHT: &str = "/0/weight";

/// The host's command that sets the weights of guests' cards while Fairlane runs, as a toolstack would. Guests are created in order,
/// so each guest's domain id equals its number.
pub(crate) fn set_weights(weights: impl Iterator<Item = (usize, u32)>) -> Command {
    let key = |guest| format!("{VIFS}{guest}{WEIGHT}");
    let pairs = weights.flat_map(|(guest, weight)| [key(guest), weight.to_string()]);
    Command::Run { argv: [WRITE.to_owned()].into_iter().chain(pairs).collect() }
}

/// The weights that a command sets by [`set_weights`], each with its guest; none if it is another command.
pub fn weights_set(command: &Command) -> Option<Vec<(usize, u32)>> {
    let Command::Run { argv } = command else { return None };
    let (program, pairs) = argv.split_first()?;
    let weight = |pair: &[String]| {
        let guest = pair[0].strip_prefix(VIFS)?.strip_suffix(WEIGHT)?;
        Some((guest.parse().ok()?, pair.get(1)?.parse().ok()?))
    };
    (program == WRITE).then(|| pairs.chunks(2).map(weight).collect()).flatten()
}

/// The command that starts the daemon in dom0 with the priority of `deploy/xen/fairlane.service.conf`, up to the program's name.
fn prefix() -> Vec<&'static str> {
    [&PYTHON[..], &[NICE, PRIORITY]].concat()
}

/// Starts the daemon in dom0 with the existing policy, and waits until it answers.
pub fn run(dom0: &Agent) -> Result<Job, Error> {
    serve(dom0, &prefix(), PROGRAM, POLICY, CONTROL)
}

/// How the daemon in dom0 is replaced while guests use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// A successor takes over, and then it ends.
    HandOver,
    /// It ends as a service manager ends it, and is started again.
    Restart,
    /// It is killed, and started again.
    Kill,
}

/// The host's command that replaces the daemon. It exits when the next one serves, or was started.
pub fn replace(how: Replacement) -> Command {
    let how = match how {
        Replacement::HandOver => "hand-over",
        Replacement::Restart => "restart",
        Replacement::Kill => "kill",
    };
    let argv = [&PYTHON[..], &[REPLACE, how], &prefix(), &[PROGRAM, "up", POLICY]].concat();
    Command::Run { argv: argv.into_iter().map(str::to_owned).collect() }
}

/// Starts the daemon with a policy and a control socket, and waits until it answers. `prefix` is a command that runs it, if any.
pub(super) fn serve(host: &Agent, prefix: &[&str], program: &str, policy: &str, control: &str) -> Result<Job, Error> {
    let argv = prefix.iter().copied().chain([program, "up", policy]).map(str::to_owned).collect();
    let daemon = host.start_job(Command::Run { argv })?;
    host.await_output(&[program, "ctl", "--control", control, "show"], LINK)?;
    Ok(daemon)
}
