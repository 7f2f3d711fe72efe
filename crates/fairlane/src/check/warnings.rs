//! What of a policy will not work on this host, as far as can be seen without running it.

use crate::host::{Host, Interface, Kind};
use caps::{CapSet, Capability, has_cap};
use fairlane_policy::{CONTROL, Card, Link, Policy, Uplink};
use std::collections::BTreeMap;
use std::path::Path;

/// The warnings, each a sentence.
pub(super) fn warnings(policy: &Policy, host: &Host) -> Vec<String> {
    let mut found = Vec::new();
    for link in &policy.links {
        uplink(link, host, &mut found);
    }
    directories(policy, &mut found);
    found
}

fn uplink(link: &Link, host: &Host, found: &mut Vec<String>) {
    let mut warn = |text: String| found.push(format!("link {}: {text}", link.name));
    match &link.uplink {
        Uplink::None | Uplink::Wire { .. } => {}
        Uplink::Tap { name } => match host.interface(name) {
            Some(Interface { kind: Kind::Tap { has_queues }, is_up, .. }) => {
                if !is_up {
                    warn(format!("the tap {name} is down: `ip link set {name} up`"));
                }
                if !has_queues {
                    warn(format!(
                        "the tap {name} has one queue, in which a flood for one guest delays what is for others: create it \
                         with `multi_queue`"
                    ));
                }
            }
            Some(_) => warn(format!("{name} is not a tap: name another interface, or use {{ card = \"{name}\" }}")),
            None => {
                warn(format!(
                    "there is no tap {name} yet: it is made at the start, belongs to no bridge, and is gone at the end; \
                     `ip tuntap add dev {name} mode tap multi_queue user fairlane` makes one that stays"
                ));
                capability(Capability::CAP_NET_ADMIN, "making it", &mut warn);
            }
        },
        Uplink::Card { name } => card(name, host, &[Capability::CAP_NET_RAW], &mut warn),
        Uplink::Xdp { name } => {
            card(name, host, &[Capability::CAP_BPF, Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW], &mut warn)
        }
    }
}

fn card(name: &str, host: &Host, capabilities: &[Capability], warn: &mut impl FnMut(String)) {
    match host.interface(name) {
        None => warn(format!("there is no interface {name}: the backend does not start without it")),
        Some(Interface { master: Some(master), .. }) => warn(format!(
            "{name} is a port of {master}, so host and guests would both receive its frames: use a tap in {master}, or \
             `ip link set {name} nomaster`"
        )),
        Some(card) => {
            if !card.is_up {
                warn(format!("{name} is down: `ip link set {name} up`"));
            }
            if card.has_address {
                warn(format!(
                    "{name} has an address of this host, which guests cannot reach through it: use a tap for that"
                ));
            }
        }
    }
    for capability in capabilities {
        self::capability(*capability, "opening it", warn);
    }
}

fn capability(capability: Capability, purpose: &str, warn: &mut impl FnMut(String)) {
    // If it cannot be read, there is nothing to warn of.
    if has_cap(None, CapSet::Effective, capability).is_ok_and(|has| !has) {
        warn(format!("{purpose} takes {capability}, which this user does not have; fairlane.service has it"));
    }
}

/// Directories of sockets that are not there, with the first vif that needs each.
fn directories(policy: &Policy, found: &mut Vec<String>) {
    let sockets = policy.vifs.iter().filter_map(|vif| match &vif.card {
        Card::VhostUser { socket, .. } => Some((format!("vif {}", vif.name), socket.as_path())),
        Card::Xen { .. } => None,
    });
    let mut missing = BTreeMap::new();
    for (owner, socket) in std::iter::once(("control".to_owned(), policy.control.as_path())).chain(sockets) {
        let directory = socket.parent().filter(|directory| !directory.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            missing.entry(directory).or_insert(owner);
        }
    }
    let of_service = Path::new(CONTROL).parent();
    found.extend(missing.into_iter().map(|(directory, owner)| {
        let advice =
            if Some(directory) == of_service { "fairlane.service makes it, `fairlane up` does not" } else { "make it" };
        format!("{owner}: there is no directory {}: {advice}", directory.display())
    }));
}
