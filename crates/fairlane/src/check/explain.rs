//! What a policy does, in plain words: a line per link, and per vif.

use fairlane_core::sched::Share;
use fairlane_policy::units::format_rate;
use fairlane_policy::{Card, Link, Policy, Uplink, Vif};

/// The lines.
pub(super) fn lines(policy: &Policy) -> Vec<String> {
    let links = policy.links.iter().map(|link| self::link(policy, link));
    links.chain(policy.vifs.iter().map(|vif| self::vif(policy, vif))).collect()
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

fn vif(policy: &Policy, vif: &Vif) -> String {
    let place = match &vif.card {
        Card::VhostUser { socket, connect: false, .. } => format!("a frontend connects at {}", socket.display()),
        Card::VhostUser { socket, connect: true, .. } => format!("it connects to the frontend at {}", socket.display()),
        Card::Xen { guest, device } => format!("it is card {device} of the Xen guest {guest}"),
    };
    let is_equal = policy.link(&vif.link).is_some_and(|link| !link.scheduler.by_weight());
    let weight = |vif: &Vif| if is_equal { 1 } else { u64::from(vif.shares.tx.weight) };
    let (of, beside): (&str, Vec<&Vif>) = match &vif.tenant {
        Some(tenant) => (tenant, policy.vifs.iter().filter(|other| other.tenant.as_ref() == Some(tenant)).collect()),
        None => (&vif.link, policy.vifs.iter().filter(|other| other.tenant.is_none()).collect()),
    };
    let mut all: u64 = beside.into_iter().filter(|other| other.link == vif.link).map(weight).sum();
    if vif.tenant.is_none() {
        let is_here = |tenant: &&fairlane_policy::Tenant| {
            policy.vifs.iter().any(|vif| vif.link == *of && vif.tenant.as_ref() == Some(&tenant.name))
        };
        all += policy.tenants.iter().filter(is_here).map(|tenant| u64::from(tenant.shares.tx.weight)).sum::<u64>();
    }
    let weight = weight(vif);
    let part = weight as f64 * 100.0 / all as f64;
    let by = if is_equal { "in turns".to_owned() } else { format!("weight {weight} of {all}") };
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
