//! What hosts report, for people and programs.

use crate::figures;
use crate::out::{print, print_json};
use fairlane_fleet::{Fleet, Guarantee, Hosts, Report, State};
use fairlane_policy::units::format_rate;
use fairlane_report::text::table;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A host of the fleet.
#[derive(Serialize)]
struct Shown<'a> {
    host: &'a str,
    /// Its newest revision in the store.
    wanted: u64,
    /// Whether it has not been heard of for a while, or never.
    away: bool,
    /// What it reported last, and how many seconds ago.
    state: Option<&'a State>,
    age: Option<f64>,
}

/// Prints all hosts, and for people the guarantees of tenants.
pub(super) async fn hosts(fleet: &Fleet, json: bool) -> anyhow::Result<()> {
    let hosts = Hosts::open(fleet).await?;
    let names = fleet.hosts().await?;
    let mut shown = Vec::new();
    for host in &names {
        let Some(policy) = fleet.policy(host).await? else { continue };
        let report = hosts.reports().get(host);
        let age = |report: &Report| SystemTime::now().duration_since(report.at).unwrap_or_default().as_secs_f64();
        let state = report.map(|report| &report.state);
        shown.push(Shown { host, wanted: policy.number, away: hosts.is_away(host), state, age: report.map(age) });
    }
    if json {
        return print_json(&shown);
    }
    let mut text = table(
        ["host", "wanted", "in force", "state", "seen"],
        [false, true, true, false, true],
        shown.iter().map(row).collect(),
    );
    for host in &shown {
        for line in host.state.iter().flat_map(|state| lines(state)) {
            text += &format!("\n{}: {line}\n", host.host);
        }
    }
    let tenants = tenants(fleet, &shown).await?;
    if !tenants.is_empty() {
        text.push('\n');
    }
    text += &table(["tenant", "guaranteed", "in force", "hosts"], [false, true, true, true], tenants);
    print(&text)
}

/// What the fleet guarantees to tenants, and what hosts that are not away have divided of it among them.
async fn tenants(fleet: &Fleet, hosts: &[Shown<'_>]) -> anyhow::Result<Vec<[String; 4]>> {
    let states = || hosts.iter().filter(|host| !host.away).filter_map(|host| host.state);
    let row = |(tenant, guarantee): (String, Guarantee)| {
        let parts: Vec<u64> = states().filter_map(|state| state.parts.get(&tenant)).copied().collect();
        let sum = parts.iter().sum::<u64>() as f64;
        [tenant, format_rate(guarantee.min_rate), figures::rate(sum), parts.len().to_string()]
    };
    Ok(fleet.guarantees().await?.into_iter().map(row).collect())
}

fn row(shown: &Shown) -> [String; 5] {
    let revision = shown.state.and_then(|state| state.revision);
    let state = match shown.state {
        _ if shown.away => "away",
        Some(state) if state.refused.as_ref().is_some_and(|refused| refused.revision == shown.wanted) => "refuses it",
        _ if revision != Some(shown.wanted) => "behind",
        Some(state) if !state.broken.is_empty() => "guarantee not met",
        Some(state) if !state.below_due.is_empty() => "below due",
        _ => "good",
    };
    [
        shown.host.to_owned(),
        shown.wanted.to_string(),
        revision.map_or("-".to_owned(), |revision| revision.to_string()),
        state.to_owned(),
        shown.age.map_or("never".to_owned(), |age| format!("{age:.0} s ago")),
    ]
}

/// What is wrong on a host, in sentences.
fn lines(state: &State) -> Vec<String> {
    let refused =
        state.refused.iter().map(|refused| format!("refuses revision {}: {}", refused.revision, refused.reason));
    let unmet = state.broken.iter().chain(&state.below_due).map(|promise| format!("{} {}", promise.to, promise.is));
    refused.chain(unmet).collect()
}

/// Prints what hosts report, as it changes, for ever.
pub(super) async fn watch(fleet: &Fleet) -> anyhow::Result<()> {
    let mut hosts = Hosts::open(fleet).await?;
    let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        for (host, report) in hosts.reports() {
            let in_force = report.state.revision.map(|revision| format!("revision {revision} is in force"));
            let now: Vec<String> = match hosts.is_away(host) {
                true => vec!["is away".to_owned()],
                false => in_force.into_iter().chain(lines(&report.state)).collect(),
            };
            let before = known.entry(host.clone()).or_default();
            for line in now.iter().filter(|line| !before.contains(line)) {
                print(&format!("{host}: {line}\n"))?;
            }
            *before = now;
        }
        hosts.next().await?;
    }
}
