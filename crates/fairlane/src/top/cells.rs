//! The cells of the tables: the same on a screen and in plain text.

use crate::figures;
use fairlane_engine::reading::{LinkReading, Reading, TenantReading, VifReading};
use fairlane_policy::units::format_rate;
use fairlane_report::text::table;

/// Names of the links' columns.
pub(super) const LINK_HEAD: [&str; 7] = ["link", "scheduler", "rate", "out", "used", "in", "uplink"];
/// Which of them align to the right.
pub(super) const LINK_RIGHT: [bool; 7] = [false, false, true, true, true, true, false];
/// Names of the tenants' columns; `due` is the share of the link that the tenant's weight gives it.
pub(super) const TENANT_HEAD: [&str; 7] = ["tenant", "weight", "sent", "received", "link", "share", "due"];
/// Which of them align to the right.
pub(super) const TENANT_RIGHT: [bool; 7] = [false, true, true, true, false, true, true];
/// Names of the vifs' columns; `due` is the share that the weight gives.
pub(super) const VIF_HEAD: [&str; 10] =
    ["vif", "link", "state", "sent", "received", "share", "due", "drops/s", "p50 <", "p99 <"];
/// Which of them align to the right.
pub(super) const VIF_RIGHT: [bool; 10] = [false, false, false, true, true, true, true, true, true, true];

/// A row of the links' table.
pub(super) fn link(link: &LinkReading) -> [String; 7] {
    [
        link.seen.name.clone(),
        link.seen.scheduler.clone(),
        link.seen.rate.map_or("none".to_owned(), format_rate),
        figures::rate(link.out_rate),
        link.seen.rate.map_or("-".to_owned(), |rate| format!("{:.1}%", link.out_rate / rate as f64 * 100.0)),
        figures::rate(link.in_rate),
        link.seen.uplink.as_ref().map_or("none", |uplink| uplink.state.name()).to_owned(),
    ]
}

/// The rows of a tenant: one for each link that it has vifs on. What it sends and receives is of all of them together.
pub(super) fn tenant(tenant: &TenantReading) -> Vec<[String; 7]> {
    let about = [
        tenant.seen.name.clone(),
        tenant.seen.weight.to_string(),
        figures::rate(tenant.sent_rate),
        figures::rate(tenant.received_rate),
    ];
    let parts =
        tenant.links.iter().map(|part| [part.link.clone(), figures::share(part.share), figures::share(part.due)]);
    let mut parts: Vec<[String; 3]> = parts.collect();
    if parts.is_empty() {
        parts.push(["-"; 3].map(str::to_owned));
    }
    let row = |(number, [link, share, due]): (usize, [String; 3])| {
        let [name, weight, sent, received] = if number == 0 { about.clone() } else { Default::default() };
        [name, weight, sent, received, link, share, due]
    };
    parts.into_iter().enumerate().map(row).collect()
}

/// A row of the vifs' table.
pub(super) fn vif(vif: &VifReading) -> [String; 10] {
    let time = |nanos: Option<u64>| nanos.map_or("-".to_owned(), figures::time);
    [
        vif.seen.name.clone(),
        vif.seen.link.clone(),
        figures::state(&vif.seen),
        figures::rate(vif.sent_rate),
        figures::rate(vif.received_rate),
        figures::share(vif.seen.share),
        vif.due.map_or("-".to_owned(), figures::share),
        format!("{:.0}", vif.drop_rate),
        time(vif.wait_p50),
        time(vif.wait_p99),
    ]
}

/// All tables as plain text.
pub(super) fn plain(reading: &Reading) -> String {
    let links = table(LINK_HEAD, LINK_RIGHT, reading.links.iter().map(link).collect());
    let tenants = table(TENANT_HEAD, TENANT_RIGHT, reading.tenants.iter().flat_map(tenant).collect());
    let vifs = table(VIF_HEAD, VIF_RIGHT, reading.vifs.iter().map(vif).collect());
    [links, tenants, vifs].into_iter().filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n")
}
