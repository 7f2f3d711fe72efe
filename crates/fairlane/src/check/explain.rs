//! What a policy does, in plain words: a line per link, and per vif.

use fairlane_core::sched::Share;
use fairlane_policy::units::format_rate;
use fairlane_policy::{Card, Link, Policy, Uplink, Vif};
use std::collections::{HashMap, HashSet};

/// The lines.
pub(super) fn lines(policy: &Policy) -> Vec<String> {
    let links = policy.links.iter().map(|link| self::link(policy, link));
    let weights = Weights::of(policy);
    links.chain(policy.vifs.iter().map(|vif| self::vif(&weights, vif))).collect()
}

/// The weights of those that share a link, or a tenant's part of one.
struct Weights<'a> {
    /// Links whose scheduler ignores weights.
    in_turns: HashSet<&'a str>,
    /// The sum for each link, and for each tenant with vifs on it.
    sums: HashMap<(&'a str, Option<&'a str>), u64>,
}

impl<'a> Weights<'a> {
    fn of(policy: &'a Policy) -> Weights<'a> {
        let in_turns = policy.links.iter().filter(|link| !link.scheduler.by_weight()).map(|link| link.name.as_str());
        let mut weights = Weights { in_turns: in_turns.collect(), sums: HashMap::new() };
        let tenants: HashMap<&str, u32> =
            policy.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.shares.tx.weight)).collect();
        for vif in &policy.vifs {
            let (link, tenant) = (vif.link.as_str(), vif.tenant.as_deref());
            // A tenant has its weight on a link from its first vif on.
            if let Some(name) = tenant.filter(|_| !weights.sums.contains_key(&(link, tenant))) {
                *weights.sums.entry((link, None)).or_default() += u64::from(tenants.get(name).copied().unwrap_or(0));
            }
            *weights.sums.entry((link, tenant)).or_default() += weights.of_vif(vif);
        }
        weights
    }

    /// A vif's own weight.
    fn of_vif(&self, vif: &Vif) -> u64 {
        if self.in_turns.contains(vif.link.as_str()) { 1 } else { u64::from(vif.shares.tx.weight) }
    }
}

fn link(policy: &Policy, link: &Link) -> String {
    let name = &link.name;
    let (way, leads) = match &link.uplink {
        Uplink::None => (String::new(), false),
        Uplink::Tap { name } => (format!("this host by the tap {name}"), true),
        Uplink::Card { name } => (format!("the network by the card {name}"), true),
        Uplink::Xdp { name } => (format!("the network by the card {name} (AF_XDP)"), true),
        Uplink::Wire { to, .. } => (format!("link {to} by a wire"), true),
    };
    let far = policy.links.iter().find(|other| matches!(&other.uplink, Uplink::Wire { to, .. } if to == name));
    let (way, leads) = match far {
        Some(other) => (format!("link {} by its wire", other.name), true),
        None => (way, leads),
    };
    let reach = match (link.isolate, leads) {
        (false, false) => "guests reach each other only".to_owned(),
        (false, true) => format!("guests reach each other, and {way}"),
        (true, false) => "guests reach nothing: they are isolated, and there is no uplink".to_owned(),
        (true, true) => format!("guests reach {way}, and not each other"),
    };
    let shared = if link.scheduler.by_weight() { "shared by weight" } else { "shared in turns" };
    let sent = match link.rate {
        Some(rate) if leads => format!("; together they send {} at most, {shared}", format_rate(rate)),
        _ => format!("; what they send is {shared}, without a limit of the link"),
    };
    let received = match link.rx_rate {
        Some(rate) if leads => format!("; together they receive {} at most", format_rate(rate)),
        _ => String::new(),
    };
    let xen = if link.xen { "; every card of a Xen guest that no vif names is served, too" } else { "" };
    format!("link {name}: {reach}{sent}{received}{xen}")
}

fn vif(weights: &Weights<'_>, vif: &Vif) -> String {
    let place = match &vif.card {
        Card::VhostUser { socket, connect: false, .. } => format!("a frontend connects at {}", socket.display()),
        Card::VhostUser { socket, connect: true, .. } => format!("it connects to the frontend at {}", socket.display()),
        Card::Xen { guest, device } => format!("it is card {device} of the Xen guest {guest}"),
    };
    let (link, tenant) = (vif.link.as_str(), vif.tenant.as_deref());
    let (of, weight) = (tenant.unwrap_or(link), weights.of_vif(vif));
    let all = weights.sums.get(&(link, tenant)).copied().unwrap_or(weight);
    let part = weight as f64 * 100.0 / all as f64;
    let by = if weights.in_turns.contains(link) { "in turns".to_owned() } else { format!("weight {weight} of {all}") };
    let sends = limits(&vif.shares.tx);
    let receives = limits(&vif.shares.rx);
    let receives = if receives.is_empty() { receives } else { format!("; of what it receives{receives}") };
    format!("vif {}: {part:.0}% of {of} when all send ({by}){sends}{receives}; {place}", vif.name)
}

/// A share's guarantee and limits, each after a comma.
fn limits(share: &Share) -> String {
    let rate = |words: &str, rate: u64| format!(", {words} {}", format_rate(rate));
    let first = if share.min_rate > 0 { rate("first", share.min_rate) } else { String::new() };
    let most = share.max_rate.map_or(String::new(), |most| rate("at most", most));
    let frames = share.max_frames.map_or(String::new(), |frames| format!(", at most {frames} frames a second"));
    first + &most + &frames
}
