//! Parses the text of a policy file into a [`Policy`], or into the list of all its problems.

use super::check::{Part, belongs_to, conflicts};
use super::section::{Section, present_name};
use super::{
    Access, Card, File, Link, Observe, Policy, SchedulerKind, Shares, Tenant, Uplink, Vif, rules, uplink_queue,
};
use crate::problem::{Problem, Problems, document};
use fairlane_core::receive;
use fairlane_core::time::Nanos;
use std::collections::HashSet;
use std::path::PathBuf;
use toml::de::DeTable;

pub(super) const FILE_KEYS: &[&str] =
    &["control", "metrics", "metrics_token", "observe", "sockets", "link", "tenant", "vif"];
pub(super) const OBSERVE_KEYS: &[&str] = &["socket", "group", "mode"];
pub(super) const SOCKETS_KEYS: &[&str] = &["owner", "group", "mode"];
/// The keys of a drop-in file.
pub(super) const DROP_IN_KEYS: &[&str] = &["link", "tenant", "vif", "remove"];
/// Lists of names.
pub(super) const REMOVE_KEYS: &[&str] = &["link", "tenant", "vif"];
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
    "min_rate_on",
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
        merge(&[&File::new(file_name, text)]).map(|(policy, _)| policy)
    }
}

/// A part of a policy, and its table in one of the files.
struct Placed<'a, T> {
    part: T,
    file: usize,
    section: Section<'a>,
}

/// Parses a policy file and its drop-ins, in this order. A drop-in adds its tables after its `[remove]` took some of the earlier ones
/// away. Returns the names of the drop-ins' vifs as well.
///
/// # Errors
/// All problems of all files, by file and line. If a file is not TOML, only syntax errors.
pub(super) fn merge(files: &[&File]) -> Result<(Policy, HashSet<String>), Vec<Problem>> {
    let (documents, broken): (Vec<_>, Vec<_>) = files.iter().map(|file| file.document()).partition(Result::is_ok);
    if !broken.is_empty() {
        return Err(broken.into_iter().filter_map(Result::err).flatten().collect());
    }
    let documents: Vec<DeTable<'_>> = documents.into_iter().flatten().collect();
    let mut problems: Vec<Problems> = files.iter().map(|file| Problems::new(&file.name, &file.text)).collect();
    let mut links: Vec<Placed<Link>> = Vec::new();
    let mut tenants: Vec<Placed<Tenant>> = Vec::new();
    let mut vifs: Vec<Placed<Vif>> = Vec::new();
    // Links of the policy file itself, or of the first file that has any: another drop-in's link does not change what vifs mean.
    let mut own_links = Vec::new();
    let mut head = None;
    let mut sockets = Access::default();
    for (file, (document, problems)) in documents.iter().zip(&mut problems).enumerate() {
        let (title, keys) = if file == 0 { ("the file", FILE_KEYS) } else { ("a drop-in file", DROP_IN_KEYS) };
        let section = Section::new(title, keys, document, 0..0, problems);
        if let Some(removed) = section.get("remove").filter(|_| file > 0)
            && let Some(removed) = Section::open("remove", REMOVE_KEYS, removed, problems)
        {
            let mut named = |key| -> HashSet<String> { removed.each(key, rules::name, problems).into_iter().collect() };
            let (gone_links, gone_tenants, gone_vifs) = (named("link"), named("tenant"), named("vif"));
            links.retain(|link| !gone_links.contains(&link.part.name));
            tenants.retain(|tenant| !gone_tenants.contains(&tenant.part.name));
            vifs.retain(|vif| !gone_vifs.contains(&vif.part.name));
        }
        if let Some(table) = section.get("sockets").filter(|_| file == 0)
            && let Some(table) = Section::open("sockets", SOCKETS_KEYS, table, problems)
        {
            sockets = access(&table, problems);
        }
        for section in section.tables("link", LINK_KEYS, problems) {
            links.push(Placed { part: link(&section, problems), file, section });
        }
        for section in section.tables("tenant", TENANT_KEYS, problems) {
            tenants.push(Placed { part: tenant(&section, problems), file, section });
        }
        if own_links.is_empty() {
            own_links = links.iter().map(|link| link.part.clone()).collect();
        }
        for section in section.tables("vif", VIF_KEYS, problems) {
            vifs.push(Placed { part: vif(&section, &sockets, problems), file, section });
        }
        head.get_or_insert(section);
    }
    for Placed { part, file, section } in &mut vifs {
        take_only_link(part, section, &own_links, &mut problems[*file]);
    }
    // A wrong value was reported and replaced by its default, so that the rest can still be checked.
    let (links, link_places) = parts(links);
    let (tenants, tenant_places) = parts(tenants);
    let (vifs, vif_places) = parts(vifs);
    let Some((file, of_file)) = head.zip(problems.first_mut()) else { return Err(Vec::new()) };
    let policy = Policy {
        control: file.read("control", rules::socket, of_file).unwrap_or_else(|| PathBuf::from(CONTROL)),
        metrics: file.read("metrics", rules::metrics, of_file),
        metrics_token: file.read("metrics_token", rules::path, of_file),
        observe: observe(&file, of_file),
        sockets,
        links,
        tenants,
        vifs,
    };
    let has_links = file.has("link");
    let own = (0, file);
    for conflict in conflicts(&policy) {
        // Links that could not be read were reported already.
        if matches!(conflict.part, Part::File) && has_links && problems.iter().any(|problems| !problems.is_empty()) {
            continue;
        }
        let (file, section) = match conflict.part {
            Part::File => &own,
            Part::Link(i) => &link_places[i],
            Part::Tenant(i) => &tenant_places[i],
            Part::Vif(i) => &vif_places[i],
        };
        problems[*file].add(section.span(conflict.key), conflict.message);
    }
    let problems: Vec<Problem> = problems.into_iter().flat_map(Problems::sorted).collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    let of_drop_ins = policy.vifs.iter().zip(&vif_places).filter(|(_, (file, _))| *file > 0);
    let of_drop_ins = of_drop_ins.map(|(vif, _)| vif.name.clone()).collect();
    Ok((policy, of_drop_ins))
}

/// Separates parts from their places.
fn parts<T>(placed: Vec<Placed<'_, T>>) -> (Vec<T>, Vec<(usize, Section<'_>)>) {
    placed.into_iter().map(|placed| (placed.part, (placed.file, placed.section))).unzip()
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

pub(super) fn link(section: &Section, problems: &mut Problems) -> Link {
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

/// The table `observe`.
fn observe(file: &Section, problems: &mut Problems) -> Option<Observe> {
    let section = Section::open("observe", OBSERVE_KEYS, file.get("observe")?, problems)?;
    let socket = section.require("socket", rules::socket, problems)?;
    let group = section.read("group", rules::account, problems);
    Some(Observe { socket, group, mode: section.read("mode", rules::mode, problems).unwrap_or(0o660) })
}

/// Who may connect to a socket.
fn access(section: &Section, problems: &mut Problems) -> Access {
    Access {
        owner: section.read("owner", rules::account, problems),
        group: section.read("group", rules::account, problems),
        mode: section.read("mode", rules::mode, problems),
    }
}

/// Puts a vif that names no link on the only one.
pub(super) fn take_only_link(vif: &mut Vif, section: &Section, links: &[Link], problems: &mut Problems) {
    match links {
        _ if section.has("link") => {}
        [only] => vif.link.clone_from(&only.name),
        // That there is none is reported once.
        [] => {}
        several => {
            let names = several.iter().map(|link| link.name.as_str()).filter(|name| !name.is_empty());
            let names: Vec<_> = names.take(8).collect();
            problems.add(section.header.clone(), format!("link is missing, the links are {}", names.join(", ")));
        }
    }
}

/// Reads a vif. `sockets` has what its socket's access does not say.
pub(super) fn vif(section: &Section, sockets: &Access, problems: &mut Problems) -> Vif {
    Vif {
        name: section.require("name", rules::name, problems).unwrap_or_default(),
        link: section.read("link", rules::name, problems).unwrap_or_default(),
        card: card(section, sockets, problems),
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

pub(super) fn tenant(section: &Section, problems: &mut Problems) -> Tenant {
    let name = section.require("name", rules::name, problems).unwrap_or_default();
    let min_rate_on = section.map("min_rate_on", rules::min_rate, problems);
    Tenant { name, shares: Shares::read(section, problems), min_rate_on }
}

fn card(section: &Section, sockets: &Access, problems: &mut Problems) -> Card {
    const SOCKET_KEYS: [&str; 6] = ["socket", "connect", "owner", "group", "mode", "packed"];
    let connect = section.read("connect", rules::flag, problems);
    let own = access(section, problems);
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
    let access = Access {
        owner: own.owner.or_else(|| sockets.owner.clone()),
        group: own.group.or_else(|| sockets.group.clone()),
        mode: own.mode.or(sockets.mode).filter(|_| connect != Some(true)),
    };
    Card::VhostUser { socket: socket.unwrap_or_default(), connect: connect.unwrap_or(false), access, packed }
}
