mod live;
mod properties;
mod read;
mod reference;
mod units;
mod wrong;

use super::{Account, Card, Change, Policy, Rx, Tenant, Uplink};
use fairlane_core::ack::Mode;
use fairlane_core::receive::Receive;
use fairlane_core::sched::Share;

/// The commented example for administrators.
const EXAMPLE: &str = include_str!("../../../../examples/policy.toml");

fn parse(text: &str) -> Policy {
    Policy::parse("p", text).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"))
}

/// The problems of a text, as `Policy::parse` reports them.
fn problems(text: &str) -> Vec<String> {
    Policy::parse("p", text).map_or_else(|found| found.iter().map(ToString::to_string).collect(), |_| Vec::new())
}

/// A policy after an engine applied the changes.
fn executed(old: &Policy, changes: Vec<Change>) -> Policy {
    let mut policy = with_rx_weights(old.clone());
    for change in changes {
        match change {
            Change::RemoveVif { vif } => policy.vifs.retain(|other| other.name != vif),
            Change::Rate { link, rate } => link_mut(&mut policy, &link).rate = rate,
            Change::Scheduler { link, scheduler } => link_mut(&mut policy, &link).scheduler = scheduler,
            Change::IdleTimeout { link, idle_timeout } => link_mut(&mut policy, &link).idle_timeout = idle_timeout,
            Change::Isolate { link, isolate } => link_mut(&mut policy, &link).isolate = isolate,
            Change::Share { vif, share, receive } => {
                let Receive { share: Share { weight, min_rate, max_rate, burst }, queue, timeout } = receive;
                let vif = vif_mut(&mut policy, &vif);
                vif.share = share;
                vif.rx = Rx { weight: Some(weight), min_rate, max_rate, burst, queue, timeout };
            }
            Change::RxPool { link, bytes } => link_mut(&mut policy, &link).rx_pool = bytes,
            Change::AntiSpoofing { vif, mac, addresses } => {
                let vif = vif_mut(&mut policy, &vif);
                (vif.mac, vif.addresses) = (mac, addresses);
            }
            Change::EarlyAck { vif, mode } => vif_mut(&mut policy, &vif).early_ack = mode,
            Change::AddVif(vif) => {
                let in_use = policy.vifs.iter().any(|other| other.name == vif.name || other.card == vif.card);
                assert!(!in_use, "{} is added before its name or card is free", vif.name);
                policy.vifs.push(vif);
            }
        }
    }
    policy
}

fn link_mut<'a>(policy: &'a mut Policy, name: &str) -> &'a mut super::Link {
    policy.links.iter_mut().find(|link| link.name == name).expect("no such link")
}

fn vif_mut<'a>(policy: &'a mut Policy, name: &str) -> &'a mut super::Vif {
    policy.vifs.iter_mut().find(|vif| vif.name == name).expect("no such vif")
}

/// The same policy with every `rx_weight` given: an engine is told weights, not where they are from.
fn with_rx_weights(mut policy: Policy) -> Policy {
    policy.vifs.iter_mut().for_each(|vif| vif.rx.weight = Some(vif.receive().share.weight));
    policy
}

/// The same policy with links and vifs sorted by name, and every `rx_weight` given.
fn ordered(policy: Policy) -> Policy {
    let mut policy = with_rx_weights(policy);
    policy.links.sort_by(|a, b| a.name.cmp(&b.name));
    policy.vifs.sort_by(|a, b| a.name.cmp(&b.name));
    policy
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
    let rate = |rate: Option<u64>| rate.map_or("none".to_owned(), format_rate);
    for link in &policy.links {
        writeln!(text, "[[link]]\nname = {:?}\nrate = {:?}", link.name, rate(link.rate)).unwrap();
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
            Uplink::Wire { to, delay, queue, backpressure } => {
                let (delay, queue) = (format_duration(*delay), format_size(*queue));
                writeln!(text, "[link.uplink]\nwire = {to:?}\ndelay = {delay:?}\nqueue = {queue:?}").unwrap();
                writeln!(text, "backpressure = {backpressure}").unwrap();
            }
        }
    }
    for Tenant { name, share, rx } in &policy.tenants {
        writeln!(text, "[[tenant]]\nname = {name:?}").unwrap();
        for (direction, share) in [("", share), ("rx_", rx)] {
            let min_rate = rate(Some(share.min_rate).filter(|rate| *rate > 0));
            writeln!(text, "{direction}weight = {}\n{direction}min_rate = {min_rate:?}", share.weight).unwrap();
            writeln!(text, "{direction}max_rate = {:?}", rate(share.max_rate)).unwrap();
            writeln!(text, "{direction}burst = {:?}", format_size(share.burst)).unwrap();
        }
    }
    for vif in &policy.vifs {
        let share = vif.share;
        writeln!(text, "[[vif]]\nname = {:?}\nlink = {:?}", vif.name, vif.link).unwrap();
        match &vif.card {
            Card::VhostUser { socket, connect, access } => {
                writeln!(text, "socket = {socket:?}\nconnect = {connect}").unwrap();
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
        writeln!(text, "queues = {}\nweight = {}", vif.queues, share.weight).unwrap();
        let min_rate = rate(Some(share.min_rate).filter(|rate| *rate > 0));
        writeln!(text, "min_rate = {min_rate:?}\nmax_rate = {:?}", rate(share.max_rate)).unwrap();
        writeln!(text, "burst = {:?}", format_size(share.burst)).unwrap();
        if let Some(weight) = vif.rx.weight {
            writeln!(text, "rx_weight = {weight}").unwrap();
        }
        let min_rate = rate(Some(vif.rx.min_rate).filter(|rate| *rate > 0));
        writeln!(text, "rx_min_rate = {min_rate:?}\nrx_max_rate = {:?}", rate(vif.rx.max_rate)).unwrap();
        let (burst, queue) = (format_size(vif.rx.burst), format_size(vif.rx.queue));
        writeln!(text, "rx_burst = {burst:?}\nrx_queue = {queue:?}").unwrap();
        writeln!(text, "rx_timeout = {:?}", format_duration(vif.rx.timeout)).unwrap();
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
