mod edit;
mod files;
mod live;
mod properties;
mod read;
mod reference;
mod schema;
mod units;
mod wrong;

use super::{Account, Card, Change, Direction, Policy, Shares, Tenant, Uplink};
use fairlane_core::ack::Mode;
use fairlane_core::receive::Receive;

/// The commented example for administrators.
const EXAMPLE: &str = include_str!("../../../../examples/policy.toml");

fn parse(text: &str) -> Policy {
    Policy::parse("p", text).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"))
}

/// The problems of a text, as `Policy::parse` reports them.
fn problems(text: &str) -> Vec<String> {
    Policy::parse("p", text).map_or_else(|found| found.iter().map(ToString::to_string).collect(), |_| Vec::new())
}

/// A policy after an engine applied the changes to a newer one.
fn executed(old: &Policy, newer: &Policy, changes: Vec<Change>) -> Policy {
    let mut policy = with_rx_weights(old.clone());
    for change in changes {
        match change {
            Change::RemoveVif { vif } => policy.vifs.retain(|other| other.name != vif),
            Change::Rate { link, rate } => link_mut(&mut policy, &link).rate = rate,
            Change::Scheduler { link, scheduler } => link_mut(&mut policy, &link).scheduler = scheduler,
            Change::IdleTimeout { link, idle_timeout } => link_mut(&mut policy, &link).idle_timeout = idle_timeout,
            Change::Isolate { link, isolate } => link_mut(&mut policy, &link).isolate = isolate,
            Change::Share { vif, share, receive } => {
                let Receive { share: rx, queue, timeout } = receive;
                let vif = vif_mut(&mut policy, &vif);
                vif.shares = Shares { tx: share, rx, same_weight: false };
                (vif.rx_queue, vif.rx_timeout) = (queue, timeout);
            }
            Change::Tenant { tenant, .. } => tenant_mut(&mut policy, &tenant).clone_from(&tenant),
            Change::Member { vif, tenant } => {
                vif_mut(&mut policy, &vif).tenant = tenant.as_ref().map(|tenant| tenant.name.clone());
                if let Some(tenant) = tenant {
                    tenant_mut(&mut policy, &tenant);
                }
            }
            Change::RxRate { link, rate } => link_mut(&mut policy, &link).rx_rate = rate,
            Change::RxPool { link, bytes } => link_mut(&mut policy, &link).rx_pool = bytes,
            Change::AntiSpoofing { vif, mac, addresses } => {
                let vif = vif_mut(&mut policy, &vif);
                (vif.mac, vif.addresses) = (mac, addresses);
            }
            Change::EarlyAck { vif, mode } => vif_mut(&mut policy, &vif).early_ack = mode,
            Change::AddLink(link) => policy.links.push(link),
            Change::RemoveLink { link } => {
                assert!(policy.vifs.iter().all(|vif| vif.link != link), "{link} is removed before its vifs");
                policy.links.retain(|other| other.name != link);
            }
            Change::AddVif(vif) => {
                let in_use = policy.vifs.iter().any(|other| other.name == vif.name || other.card == vif.card);
                assert!(!in_use, "{} is added before its name or card is free", vif.name);
                if let Some(tenant) = newer.tenant_of(&vif) {
                    tenant_mut(&mut policy, tenant);
                }
                policy.vifs.push(vif);
            }
        }
    }
    policy
}

fn link_mut<'a>(policy: &'a mut Policy, name: &str) -> &'a mut super::Link {
    policy.links.iter_mut().find(|link| link.name == name).expect("no such link")
}

/// An engine learns of a tenant when it gets its first vif.
fn tenant_mut<'a>(policy: &'a mut Policy, tenant: &Tenant) -> &'a mut Tenant {
    let known = policy.tenants.iter().position(|known| known.name == tenant.name);
    let index = known.unwrap_or_else(|| {
        policy.tenants.push(tenant.clone());
        policy.tenants.len() - 1
    });
    &mut policy.tenants[index]
}

fn vif_mut<'a>(policy: &'a mut Policy, name: &str) -> &'a mut super::Vif {
    policy.vifs.iter_mut().find(|vif| vif.name == name).expect("no such vif")
}

/// The same policy with every `rx_weight` given: an engine is told weights, not where they are from.
fn with_rx_weights(mut policy: Policy) -> Policy {
    policy.vifs.iter_mut().for_each(|vif| vif.shares.same_weight = false);
    policy.tenants.iter_mut().for_each(|tenant| tenant.shares.same_weight = false);
    policy
}

/// The same policy with everything sorted by name, every `rx_weight` given, and only tenants that have vifs.
fn ordered(policy: Policy) -> Policy {
    let mut policy = with_rx_weights(policy);
    let vifs = &policy.vifs;
    policy.tenants.retain(|tenant| vifs.iter().any(|vif| vif.tenant.as_ref() == Some(&tenant.name)));
    // No engine knows what is guaranteed where a tenant has no vifs.
    let is_on = |name: &str, link: &str| vifs.iter().any(|vif| vif.link == link && vif.tenant.as_deref() == Some(name));
    for Tenant { name, min_rate_on, .. } in &mut policy.tenants {
        min_rate_on.retain(|link, _| is_on(name, link));
    }
    policy.tenants.sort_by(|a, b| a.name.cmp(&b.name));
    policy.links.sort_by(|a, b| a.name.cmp(&b.name));
    policy.vifs.sort_by(|a, b| a.name.cmp(&b.name));
    policy
}

/// A rate as text.
fn rate(rate: Option<u64>) -> String {
    rate.map_or("none".to_owned(), super::units::format_rate)
}

/// A guaranteed rate as text.
fn min_rate(min_rate: u64) -> String {
    rate(Some(min_rate).filter(|min_rate| *min_rate > 0))
}

/// The keys of shares as text.
fn written_shares(shares: &Shares) -> String {
    use super::units::format_size;
    use std::fmt::Write;

    let mut text = String::new();
    for direction in Direction::ALL {
        let (keys, share) = (direction.keys(), direction.of(shares));
        if direction == Direction::Tx || !shares.same_weight {
            writeln!(text, "{} = {}", keys.weight, share.weight).unwrap();
        }
        writeln!(text, "{} = {:?}", keys.min_rate, min_rate(share.min_rate)).unwrap();
        writeln!(text, "{} = {:?}", keys.max_rate, rate(share.max_rate)).unwrap();
        writeln!(text, "{} = {:?}", keys.burst, format_size(share.burst)).unwrap();
        let frames = share.max_frames.map_or("\"none\"".to_owned(), |frames| frames.to_string());
        writeln!(text, "{} = {frames}\n{} = {}", keys.max_frames, keys.frame_burst, share.frame_burst).unwrap();
    }
    text
}

/// A policy as the text of a file with every key.
fn written(policy: &Policy) -> String {
    use super::SchedulerKind;
    use super::units::{format_duration, format_rate, format_size};
    use std::fmt::Write;

    let mut text = format!("control = {:?}\n", policy.control);
    if let Some(metrics) = policy.metrics {
        writeln!(text, "metrics = \"{metrics}\"").unwrap();
    }
    if let Some(token) = &policy.metrics_token {
        writeln!(text, "metrics_token = {token:?}").unwrap();
    }
    let rate = |rate: Option<u64>| rate.map_or("none".to_owned(), format_rate);
    for link in &policy.links {
        writeln!(text, "[[link]]\nname = {:?}\nrate = {:?}", link.name, rate(link.rate)).unwrap();
        writeln!(text, "rx_rate = {:?}", rate(link.rx_rate)).unwrap();
        writeln!(text, "idle_timeout = {:?}\nisolate = {}", format_duration(link.idle_timeout), link.isolate).unwrap();
        writeln!(text, "xen = {}\nrx_pool = {:?}", link.xen, format_size(link.rx_pool)).unwrap();
        writeln!(text, "scheduler = {:?}", link.scheduler.name()).unwrap();
        match link.scheduler {
            SchedulerKind::Fair => {}
            SchedulerKind::Wrr { prioritize } => writeln!(text, "prioritize = {prioritize}").unwrap(),
            SchedulerKind::Netback { refill } => writeln!(text, "refill = {:?}", format_duration(refill)).unwrap(),
        }
        if let Some(cpu) = link.cpu {
            writeln!(text, "cpu = {cpu}").unwrap();
        }
        match &link.uplink {
            Uplink::None => {}
            Uplink::Tap { name } => writeln!(text, "uplink = {{ tap = {name:?} }}").unwrap(),
            Uplink::Card { name } => writeln!(text, "uplink = {{ card = {name:?} }}").unwrap(),
            Uplink::Xdp { name } => writeln!(text, "uplink = {{ xdp = {name:?} }}").unwrap(),
            Uplink::Wire { to, delay, queue, backpressure } => {
                let (delay, queue) = (format_duration(*delay), format_size(*queue));
                writeln!(text, "[link.uplink]\nwire = {to:?}\ndelay = {delay:?}\nqueue = {queue:?}").unwrap();
                writeln!(text, "backpressure = {backpressure}").unwrap();
            }
        }
    }
    for Tenant { name, shares, min_rate_on } in &policy.tenants {
        writeln!(text, "[[tenant]]\nname = {name:?}\n{}", written_shares(shares)).unwrap();
        for (link, on) in min_rate_on {
            writeln!(text, "min_rate_on.{link} = {:?}", min_rate(*on)).unwrap();
        }
    }
    for vif in &policy.vifs {
        writeln!(text, "[[vif]]\nname = {:?}\nlink = {:?}", vif.name, vif.link).unwrap();
        match &vif.card {
            Card::VhostUser { socket, connect, access, packed } => {
                writeln!(text, "socket = {socket:?}\nconnect = {connect}\npacked = {packed}").unwrap();
                for (key, account) in [("owner", &access.owner), ("group", &access.group)] {
                    match account {
                        Some(Account::Name(name)) => writeln!(text, "{key} = {name:?}").unwrap(),
                        Some(Account::Number(number)) => writeln!(text, "{key} = {number}").unwrap(),
                        None => {}
                    }
                }
                if let Some(mode) = access.mode {
                    writeln!(text, "mode = \"{mode:04o}\"").unwrap();
                }
            }
            Card::Xen { guest, device } => writeln!(text, "xen = \"{guest}/{device}\"").unwrap(),
        }
        if let Some(tenant) = &vif.tenant {
            writeln!(text, "tenant = {tenant:?}").unwrap();
        }
        writeln!(text, "queues = {}\n{}", vif.queues, written_shares(&vif.shares)).unwrap();
        writeln!(text, "rx_queue = {:?}", format_size(vif.rx_queue)).unwrap();
        writeln!(text, "rx_timeout = {:?}", format_duration(vif.rx_timeout)).unwrap();
        if let Some(fairlane_core::packet::Mac([a, b, c, d, e, f])) = vif.mac {
            writeln!(text, "mac = \"{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\"").unwrap();
        }
        let addresses: Vec<_> = vif.addresses.iter().map(ToString::to_string).collect();
        writeln!(text, "addresses = {addresses:?}").unwrap();
        let early_ack = match vif.early_ack {
            Mode::Off => "false",
            Mode::Auto => "true",
            Mode::Always => "\"always\"",
        };
        writeln!(text, "early_ack = {early_ack}").unwrap();
    }
    text
}
