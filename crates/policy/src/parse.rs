//! Parses the text of a policy file into a [`Policy`], or into the list of all its problems.

use super::check::{Part, belongs_to, conflicts};
use super::section::{Section, present_name};
use super::{Access, Card, Link, Policy, SchedulerKind, Shares, Tenant, Uplink, Vif, rules, uplink_queue};
use crate::problem::{Problem, Problems, document};
use fairlane_core::receive;
use fairlane_core::time::Nanos;
use std::path::PathBuf;

pub(super) const FILE_KEYS: &[&str] = &["control", "metrics", "metrics_token", "link", "tenant", "vif"];
pub(super) const LINK_KEYS: &[&str] = &[
    "name",
    "rate",
    "rx_rate",
    "scheduler",
    "prioritize",
    "refill",
    "idle_timeout",
    "isolate",
    "cpu",
    "uplink",
    "xen",
    "rx_pool",
];
pub(super) const UPLINK_KEYS: &[&str] = &["tap", "card", "xdp", "wire", "delay", "queue", "backpressure"];
pub(super) const TENANT_KEYS: &[&str] = &[
    "name",
    "weight",
    "min_rate",
    "max_rate",
    "burst",
    "max_frames",
    "frame_burst",
    "rx_weight",
    "rx_min_rate",
    "rx_max_rate",
    "rx_burst",
    "rx_max_frames",
    "rx_frame_burst",
];
pub(super) const VIF_KEYS: &[&str] = &[
    "name",
    "link",
    "tenant",
    "socket",
    "connect",
    "owner",
    "group",
    "mode",
    "packed",
    "xen",
    "queues",
    "weight",
    "min_rate",
    "max_rate",
    "burst",
    "max_frames",
    "frame_burst",
    "rx_weight",
    "rx_min_rate",
    "rx_max_rate",
    "rx_burst",
    "rx_max_frames",
    "rx_frame_burst",
    "rx_queue",
    "rx_timeout",
    "mac",
    "addresses",
    "early_ack",
];
/// The default control socket.
pub const CONTROL: &str = "/run/fairlane/control.sock";

impl Policy {
    /// Parses the text of a policy file. Problems are reported with `file_name`.
    ///
    /// # Errors
    /// All problems, by line. If the file is not TOML, only its syntax errors.
    pub fn parse(file_name: &str, text: &str) -> Result<Policy, Vec<Problem>> {
        let document = document(file_name, text)?;
        let mut problems = Problems::new(file_name, text);
        let file = Section::new("the file", FILE_KEYS, &document, 0..0, &mut problems);
        let link_tables = file.tables("link", LINK_KEYS, &mut problems);
        let tenant_tables = file.tables("tenant", TENANT_KEYS, &mut problems);
        let vif_tables = file.tables("vif", VIF_KEYS, &mut problems);
        // A wrong value is reported and replaced by its default, so that the rest can still be checked.
        let links: Vec<Link> = link_tables.iter().map(|table| link(table, &mut problems)).collect();
        let policy = Policy {
            control: file.read("control", rules::socket, &mut problems).unwrap_or_else(|| PathBuf::from(CONTROL)),
            metrics: file.read("metrics", rules::metrics, &mut problems),
            metrics_token: file.read("metrics_token", rules::path, &mut problems),
            tenants: tenant_tables.iter().map(|table| tenant(table, &mut problems)).collect(),
            vifs: vif_tables.iter().map(|table| vif(table, &links, &mut problems)).collect(),
            links,
        };
        for conflict in conflicts(&policy) {
            // Links that could not be read were reported already.
            if matches!(conflict.part, Part::File) && file.has("link") && !problems.is_empty() {
                continue;
            }
            let section = match conflict.part {
                Part::File => &file,
                Part::Link(i) => &link_tables[i],
                Part::Tenant(i) => &tenant_tables[i],
                Part::Vif(i) => &vif_tables[i],
            };
            problems.add(section.span(conflict.key), conflict.message);
        }
        if problems.is_empty() { Ok(policy) } else { Err(problems.sorted()) }
    }
}

/// Warnings about keys with an old name: `policy.toml:4: delay is called idle_timeout now`.
///
/// [`Policy::parse`] still reads such keys. There are no warnings for a file that is not TOML.
pub fn renamed_keys(file_name: &str, text: &str) -> Vec<Problem> {
    let Ok(document) = document(file_name, text) else { return Vec::new() };
    let mut warnings = Problems::new(file_name, text);
    for (kind, keys) in [("link", LINK_KEYS), ("tenant", TENANT_KEYS), ("vif", VIF_KEYS)] {
        let tables = document.get(kind).and_then(|value| value.get_ref().as_array());
        for key in
            tables.into_iter().flatten().filter_map(|value| value.get_ref().as_table()).flat_map(|table| table.keys())
        {
            if let Some(new) = present_name(key.get_ref(), keys) {
                warnings.add(key.span(), format!("{} is called {new} now", key.get_ref()));
            }
        }
    }
    warnings.sorted()
}

fn link(section: &Section, problems: &mut Problems) -> Link {
    let name = section.require("name", rules::name, problems).unwrap_or_default();
    let rate = section.read("rate", rules::rate, problems).flatten();
    Link {
        name,
        rate,
        rx_rate: section.read("rx_rate", rules::rate, problems).flatten(),
        scheduler: scheduler(section, problems),
        idle_timeout: section.read("idle_timeout", rules::idle_timeout, problems).unwrap_or(rules::IDLE_TIMEOUT),
        isolate: section.read("isolate", rules::flag, problems).unwrap_or(false),
        cpu: section.read("cpu", rules::cpu, problems),
        uplink: uplink(section, rate, problems),
        xen: section.read("xen", rules::flag, problems).unwrap_or(false),
        rx_pool: section.read("rx_pool", rules::pool, problems).unwrap_or(receive::POOL),
    }
}

fn scheduler(section: &Section, problems: &mut Problems) -> SchedulerKind {
    let named = section.read("scheduler", rules::scheduler, problems);
    let kind = named.unwrap_or(SchedulerKind::Fair);
    let prioritize = section.read("prioritize", rules::flag, problems);
    let refill = section.read("refill", rules::refill, problems);
    if named.is_some() || !section.has("scheduler") {
        for (key, owner) in [("prioritize", &["wrr"]), ("refill", &["netback"])] {
            if let (true, Err(other)) = (section.has(key), belongs_to(key, owner, kind)) {
                problems.add(section.span(key), other.to_string());
            }
        }
    }
    match kind {
        SchedulerKind::Fair => SchedulerKind::Fair,
        SchedulerKind::Wrr { prioritize: default } => SchedulerKind::Wrr { prioritize: prioritize.unwrap_or(default) },
        SchedulerKind::Netback { refill: default } => SchedulerKind::Netback { refill: refill.unwrap_or(default) },
    }
}

fn uplink(link: &Section, rate: Option<u64>, problems: &mut Problems) -> Uplink {
    let Some(value) = link.get("uplink") else { return Uplink::None };
    let Some(section) = Section::open("uplink", UPLINK_KEYS, value, problems) else { return Uplink::None };
    let tap = section.read("tap", rules::interface, problems);
    let card = section.read("card", rules::interface, problems);
    let xdp = section.read("xdp", rules::interface, problems);
    let to = section.read("wire", rules::name, problems);
    let delay = section.read("delay", rules::wire_delay, problems).unwrap_or(Nanos(0));
    let queue = section.read("queue", rules::queue, problems).unwrap_or_else(|| uplink_queue(rate));
    let backpressure = section.read("backpressure", rules::flag, problems).unwrap_or(true);
    let kinds: Vec<_> = ["tap", "card", "xdp", "wire"].into_iter().filter(|kind| section.has(kind)).collect();
    match kinds[..] {
        [] => problems
            .add(value.span(), "uplink must name a tap, a card (card or xdp) or a wire, such as { tap = \"fl0\" }"),
        ["wire"] => {}
        [kind] => {
            let kind = if kind == "xdp" { "card" } else { kind };
            for key in ["delay", "queue", "backpressure"].into_iter().filter(|key| section.has(key)) {
                problems.add(section.span(key), format!("{key} belongs to a wire, this uplink is a {kind}"));
            }
        }
        [first, ..] => {
            problems.add(section.span(first), "uplink must be a tap, a card (card or xdp) or a wire, only one of them")
        }
    }
    match (tap, card, xdp, to) {
        (Some(name), ..) => Uplink::Tap { name },
        (_, Some(name), ..) => Uplink::Card { name },
        (_, _, Some(name), _) => Uplink::Xdp { name },
        (.., Some(to)) => Uplink::Wire { to, delay, queue, backpressure },
        _ => Uplink::None,
    }
}

fn vif(section: &Section, links: &[Link], problems: &mut Problems) -> Vif {
    let link = match links {
        [only] if !section.has("link") => only.name.clone(),
        [_, _, ..] if !section.has("link") => {
            let names = links.iter().map(|link| link.name.as_str()).filter(|name| !name.is_empty());
            let names: Vec<_> = names.take(8).collect();
            problems.add(section.header.clone(), format!("link is missing, the links are {}", names.join(", ")));
            String::new()
        }
        _ => section.read("link", rules::name, problems).unwrap_or_default(),
    };
    Vif {
        name: section.require("name", rules::name, problems).unwrap_or_default(),
        link,
        card: card(section, problems),
        queues: section.read("queues", rules::queues, problems).unwrap_or(1),
        tenant: section.read("tenant", rules::tenant, problems).flatten(),
        shares: Shares::read(section, problems),
        rx_queue: section.read("rx_queue", rules::queue, problems).unwrap_or(receive::QUEUE),
        rx_timeout: section.read("rx_timeout", rules::rx_timeout, problems).unwrap_or(receive::TIMEOUT),
        mac: section.read("mac", rules::mac, problems),
        addresses: section.each("addresses", rules::address, problems),
        early_ack: section.read("early_ack", rules::early_ack, problems).unwrap_or_default(),
    }
}

fn tenant(section: &Section, problems: &mut Problems) -> Tenant {
    let name = section.require("name", rules::name, problems).unwrap_or_default();
    Tenant { name, shares: Shares::read(section, problems) }
}

fn card(section: &Section, problems: &mut Problems) -> Card {
    const SOCKET_KEYS: [&str; 6] = ["socket", "connect", "owner", "group", "mode", "packed"];
    let connect = section.read("connect", rules::flag, problems);
    let owner = section.read("owner", rules::account, problems);
    let group = section.read("group", rules::account, problems);
    let mode = section.read("mode", rules::mode, problems);
    let packed = section.read("packed", rules::flag, problems).unwrap_or(false);
    if let Some((guest, device)) = section.read("xen", rules::xen, problems) {
        for key in SOCKET_KEYS.into_iter().filter(|key| section.has(key)) {
            problems.add(section.span(key), format!("{key} belongs to a vhost-user card, this vif is a Xen card"));
        }
        return Card::Xen { guest, device };
    }
    if connect == Some(true) && section.has("mode") {
        let message = "mode is for a socket that the backend creates, with connect = true the frontend creates it";
        problems.add(section.span("mode"), message);
    }
    let wrong = section.has("xen");
    let socket = if wrong { None } else { section.require("socket", rules::socket, problems) };
    let access = Access { owner, group, mode };
    Card::VhostUser { socket: socket.unwrap_or_default(), connect: connect.unwrap_or(false), access, packed }
}
