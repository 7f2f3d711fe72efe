//! Checks across a policy: names, cards, uplinks, guarantees.

use super::shares::Keys;
use super::units::format_rate;
use super::{Card, Direction, Link, Policy, SchedulerKind, Tenant, Uplink, Vif};
use crate::problem::unknown_name;
use fairlane_core::sched::Share;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A part of a policy, by its index.
pub(super) enum Part {
    File,
    Link(usize),
    Tenant(usize),
    Vif(usize),
}

/// A conflict between two parts of a policy.
pub(super) struct Conflict {
    /// The part to change.
    pub(super) part: Part,
    /// Its key, dotted if it is in a nested table.
    pub(super) key: &'static str,
    /// What is wrong, as a whole sentence.
    pub(super) message: String,
}

/// A key that belongs to other schedulers than the link's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} belongs to scheduler \"{}\", this link has \"{has}\"", .owners.join("\" or \""))]
pub struct OtherScheduler {
    /// The key.
    pub key: &'static str,
    /// The schedulers that the key belongs to.
    pub owners: &'static [&'static str],
    /// The scheduler of the link.
    pub has: &'static str,
}

/// Checks that a key of some schedulers is used with one of them.
pub(super) fn belongs_to(
    key: &'static str,
    owners: &'static [&'static str],
    kind: SchedulerKind,
) -> Result<(), OtherScheduler> {
    let has = kind.name();
    if owners.contains(&has) { Ok(()) } else { Err(OtherScheduler { key, owners, has }) }
}

/// All conflicts in a policy. Empty names and paths stand for missing ones and are skipped.
pub(super) fn conflicts(policy: &Policy) -> Vec<Conflict> {
    let mut found = Vec::new();
    if policy.links.is_empty() {
        let message = "no [[link]]: a policy needs at least one".to_owned();
        found.push(Conflict { part: Part::File, key: "link", message });
    }
    metrics(policy, &mut found);
    names(policy, &mut found);
    cards(policy, &mut found);
    pinned_macs(policy, &mut found);
    uplinks(policy, &mut found);
    tenants(policy, &mut found);
    rates(policy, &mut found);
    found
}

fn metrics(policy: &Policy, found: &mut Vec<Conflict>) {
    let message = match (policy.metrics, &policy.metrics_token) {
        (Some(address), None) if !address.ip().is_loopback() => format!(
            "metrics must be a loopback address, such as \"127.0.0.1:9477\", if there is no metrics_token, not \"{address}\""
        ),
        _ => return,
    };
    found.push(Conflict { part: Part::File, key: "metrics", message });
}

fn names(policy: &Policy, found: &mut Vec<Conflict>) {
    let mut links = HashSet::new();
    for (i, link) in policy.links.iter().enumerate() {
        if !links.insert(link.name.as_str()) && !link.name.is_empty() {
            let message = format!("name `{}` is taken by another link", link.name);
            found.push(Conflict { part: Part::Link(i), key: "name", message });
        }
    }
    let mut xen_links = policy.links.iter().enumerate().filter(|(_, link)| link.xen);
    if let Some((_, first)) = xen_links.next() {
        found.extend(xen_links.map(|(i, _)| {
            let message = format!("link `{}` already takes Xen's cards, and only one link can", first.name);
            Conflict { part: Part::Link(i), key: "xen", message }
        }));
    }
    let mut tenants = HashSet::new();
    for (i, tenant) in policy.tenants.iter().enumerate() {
        if !tenants.insert(tenant.name.as_str()) && !tenant.name.is_empty() {
            let message = format!("name `{}` is taken by another tenant", tenant.name);
            found.push(Conflict { part: Part::Tenant(i), key: "name", message });
        }
    }
    for (i, vif) in policy.vifs.iter().enumerate() {
        if let Some(name) = vif.tenant.as_deref().filter(|name| !tenants.contains("") && !tenants.contains(name)) {
            let message = unknown_name("tenant", name, policy.tenants.iter().map(|tenant| tenant.name.as_str()));
            found.push(Conflict { part: Part::Vif(i), key: "tenant", message });
        }
    }
    let mut vifs = HashSet::new();
    for (i, vif) in policy.vifs.iter().enumerate() {
        if tenants.contains(vif.name.as_str()) && !vif.name.is_empty() {
            let message = format!("name `{}` is taken by a tenant", vif.name);
            found.push(Conflict { part: Part::Vif(i), key: "name", message });
        }
        if !vifs.insert(vif.name.as_str()) && !vif.name.is_empty() {
            let message = format!("name `{}` is taken by another vif", vif.name);
            found.push(Conflict { part: Part::Vif(i), key: "name", message });
        }
        // If a link's name is missing, it may be the link that is meant.
        if !links.contains("") && !vif.link.is_empty() && !links.is_empty() && !links.contains(vif.link.as_str()) {
            let known = policy.links.iter().map(|link| link.name.as_str());
            let message = unknown_name("link", &vif.link, known);
            found.push(Conflict { part: Part::Vif(i), key: "link", message });
        }
    }
}

fn cards(policy: &Policy, found: &mut Vec<Conflict>) {
    let mut owners: HashMap<&Path, String> =
        HashMap::from([(policy.control.as_path(), "the control socket".to_owned())]);
    if let Some(observe) = &policy.observe
        && owners.insert(&observe.socket, "the read-only control socket".to_owned()).is_some()
    {
        let message = format!("socket {:?} is taken by the control socket", observe.socket);
        found.push(Conflict { part: Part::File, key: "observe.socket", message });
    }
    let mut cards = HashMap::new();
    for (i, vif) in policy.vifs.iter().enumerate() {
        match &vif.card {
            Card::VhostUser { socket, .. } if socket.as_os_str().is_empty() => {}
            Card::VhostUser { socket, .. } => match owners.get(socket.as_path()) {
                Some(owner) => {
                    let message = format!("socket {socket:?} is taken by {owner}");
                    found.push(Conflict { part: Part::Vif(i), key: "socket", message });
                }
                None => drop(owners.insert(socket, format!("vif `{}`", vif.name))),
            },
            Card::Xen { guest, device } => match cards.get(&(guest, device)) {
                Some(owner) => {
                    let message = format!("card {device} of guest `{guest}` is taken by vif `{owner}`");
                    found.push(Conflict { part: Part::Vif(i), key: "xen", message });
                }
                None => drop(cards.insert((guest, device), &vif.name)),
            },
        }
    }
}

fn pinned_macs(policy: &Policy, found: &mut Vec<Conflict>) {
    let mut owners = HashMap::new();
    for (i, vif) in policy.vifs.iter().enumerate() {
        let Some(mac) = vif.mac else { continue };
        if let Some(owner) = owners.get(&mac) {
            let message = format!("mac is already pinned to vif `{owner}`");
            found.push(Conflict { part: Part::Vif(i), key: "mac", message });
        } else {
            owners.insert(mac, &vif.name);
        }
    }
}

fn uplinks(policy: &Policy, found: &mut Vec<Conflict>) {
    let links: HashMap<&str, &Link> = policy.links.iter().map(|link| (link.name.as_str(), link)).collect();
    let mut interfaces = HashMap::new();
    let mut far_ends = HashMap::new();
    for (i, link) in policy.links.iter().enumerate() {
        let (key, message) = match &link.uplink {
            Uplink::None => continue,
            Uplink::Tap { name } => match interfaces.insert(name, &link.name) {
                None => continue,
                Some(owner) => ("uplink.tap", format!("tap `{name}` is taken by link `{owner}`")),
            },
            Uplink::Card { name } => match interfaces.insert(name, &link.name) {
                None => continue,
                Some(owner) => ("uplink.card", format!("card `{name}` is taken by link `{owner}`")),
            },
            Uplink::Xdp { name } => match interfaces.insert(name, &link.name) {
                None => continue,
                Some(owner) => ("uplink.xdp", format!("card `{name}` is taken by link `{owner}`")),
            },
            Uplink::Wire { to, .. } => {
                let message = match links.get(to.as_str()) {
                    _ if *to == link.name => {
                        format!("the wire of link `{to}` leads back to the same link, it must lead to another")
                    }
                    None if links.contains_key("") => continue,
                    None => unknown_name("link", to, policy.links.iter().map(|link| link.name.as_str())),
                    Some(far) if far.uplink != Uplink::None => {
                        format!("link `{to}` has an uplink of its own, the far end of a wire must have none")
                    }
                    Some(_) => match far_ends.insert(to, &link.name) {
                        None => continue,
                        Some(owner) => format!("link `{to}` is already the far end of the wire of link `{owner}`"),
                    },
                };
                ("uplink.wire", message)
            }
        };
        found.push(Conflict { part: Part::Link(i), key, message });
    }
}

/// Tenants need the scheduler that knows them, and guarantees that their vifs' fit into.
fn tenants(policy: &Policy, found: &mut Vec<Conflict>) {
    for (i, vif) in policy.vifs.iter().enumerate().filter(|(_, vif)| vif.tenant.is_some()) {
        if let Some(link) = policy.link(&vif.link)
            && let Err(other) = belongs_to("tenant", &["fair"], link.scheduler)
        {
            found.push(Conflict { part: Part::Vif(i), key: "tenant", message: other.to_string() });
        }
    }
    for (i, tenant) in policy.tenants.iter().enumerate() {
        for direction in Direction::ALL {
            tenant_guarantees(policy, i, tenant, direction, found);
        }
        for (link, min_rate) in &tenant.min_rate_on {
            let above = tenant.shares.tx.max_rate.filter(|max_rate| min_rate > max_rate);
            let message = if let Some(max_rate) = above {
                let (name, min_rate, max_rate) = (&tenant.name, format_rate(*min_rate), format_rate(max_rate));
                format!("min_rate_on.{link} {min_rate} of tenant `{name}` is above its max_rate {max_rate}")
            } else if policy.link(link).is_none() && policy.links.iter().all(|link| !link.name.is_empty()) {
                unknown_name("link", link, policy.links.iter().map(|link| link.name.as_str()))
            } else {
                continue;
            };
            found.push(Conflict { part: Part::Tenant(i), key: "min_rate_on", message });
        }
    }
}

/// A tenant's guarantee must fit into its highest rate, and its vifs' guarantees on each link into the tenant's.
fn tenant_guarantees(policy: &Policy, i: usize, tenant: &Tenant, direction: Direction, found: &mut Vec<Conflict>) {
    let Keys { min_rate: key, max_rate: limit, .. } = *direction.keys();
    let Share { min_rate, max_rate, .. } = *direction.of(&tenant.shares);
    let mut conflict = |message| found.push(Conflict { part: Part::Tenant(i), key, message });
    let name = &tenant.name;
    if let Some(max_rate) = max_rate.filter(|max_rate| min_rate > *max_rate) {
        let (shown, max_rate) = (format_rate(min_rate), format_rate(max_rate));
        conflict(format!("{key} {shown} of tenant `{name}` is above its {limit} {max_rate}"));
    }
    for link in &policy.links {
        let min_rate = direction.of(&tenant.on(&link.name)).min_rate;
        let is_here = |vif: &&Vif| vif.link == link.name && vif.tenant.as_ref() == Some(name);
        let guaranteed = policy.vifs.iter().filter(is_here).map(|vif| direction.of(&vif.shares).min_rate);
        let sum = guaranteed.fold(0u64, u64::saturating_add);
        if sum > min_rate {
            let has = if min_rate > 0 { format_rate(min_rate) } else { "none".to_owned() };
            let (sum, link) = (format_rate(sum), &link.name);
            conflict(format!(
                "the {key}s of tenant `{name}` on link `{link}` add up to {sum}, above the tenant's {key} ({has})"
            ));
        }
    }
}

/// All guarantees must be possible together: none above the vif's highest rate or the link's rate, no sum above the link's
/// rate in either direction, and a scheduler that supports them.
fn rates(policy: &Policy, found: &mut Vec<Conflict>) {
    for direction in Direction::ALL {
        guarantees(policy, direction, found);
    }
    for (i, vif) in policy.vifs.iter().enumerate().filter(|(_, vif)| vif.shares.tx.max_frames.is_some()) {
        let key = Direction::Tx.keys().max_frames;
        if let Some(link) = policy.link(&vif.link)
            && let Err(other) = belongs_to(key, &["fair", "wrr"], link.scheduler)
        {
            found.push(Conflict { part: Part::Vif(i), key, message: other.to_string() });
        }
    }
}

/// The rate that guarantees of a direction must fit into, and its key.
fn capacity(direction: Direction, link: &Link) -> (&'static str, Option<u64>) {
    match direction {
        Direction::Rx if link.rx_rate.is_some() => ("rx_rate", link.rx_rate),
        Direction::Tx | Direction::Rx => ("rate", link.rate),
    }
}

fn guarantees(policy: &Policy, direction: Direction, found: &mut Vec<Conflict>) {
    let Keys { min_rate: key, max_rate: limit, .. } = *direction.keys();
    let links: HashMap<&str, &Link> = policy.links.iter().map(|link| (link.name.as_str(), link)).collect();
    // Links of which a single guarantee was reported already.
    let mut reported = HashSet::new();
    for (i, vif) in policy.vifs.iter().enumerate() {
        let Share { min_rate, max_rate, .. } = *direction.of(&vif.shares);
        if min_rate == 0 {
            continue;
        }
        let shown = format_rate(min_rate);
        let mut conflict = |message| found.push(Conflict { part: Part::Vif(i), key, message });
        if let Some(max_rate) = max_rate.filter(|max_rate| min_rate > *max_rate) {
            conflict(format!("{key} {shown} of vif `{}` is above its {limit} {}", vif.name, format_rate(max_rate)));
        }
        let Some(link) = links.get(vif.link.as_str()).filter(|link| !link.name.is_empty()) else { continue };
        // What guests receive is always scheduled by `fair`.
        if let (Direction::Tx, Err(other)) = (direction, belongs_to(key, &["fair"], link.scheduler)) {
            conflict(other.to_string());
        }
        let (of_link, rate) = capacity(direction, link);
        let over = rate.filter(|rate| min_rate > *rate);
        if let Some(rate) = over {
            let (name, rate) = (&link.name, format_rate(rate));
            conflict(format!("{key} {shown} of vif `{}` is above the {of_link} {rate} of link `{name}`", vif.name));
        }
        if over.is_some() {
            reported.insert(vif.link.as_str());
        }
    }
    let named = policy.links.iter().enumerate().filter(|(_, link)| !link.name.is_empty());
    for (i, link) in named.filter(|(_, link)| !reported.contains(link.name.as_str())) {
        let (sum, (of_link, rate)) = (policy.guaranteed(link, direction), capacity(direction, link));
        if let Some(rate) = rate.filter(|rate| sum > *rate) {
            let (sum, rate, name) = (format_rate(sum), format_rate(rate), &link.name);
            let message = format!("the {key}s on link `{name}` add up to {sum}, above its {of_link} {rate}");
            found.push(Conflict { part: Part::Link(i), key: of_link, message });
        }
    }
}
