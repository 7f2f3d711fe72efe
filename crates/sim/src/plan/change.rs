//! A table of a change: what a vif, tenant or link gets while the traffic runs, as `fairlane ctl set` would give it.

use super::Place;
use super::file::ChangeKeys;
use crate::scenario::{Change, Host};
use fairlane_core::time::Nanos;
use fairlane_policy::problem::{Problems, unknown_name};
use fairlane_policy::{Policy, Setting};
use std::collections::BTreeSet;
use toml::Value;

/// Reads all changes, in the order of their times. `places` are the guests', each with its host.
pub(super) fn read(
    all: &[ChangeKeys],
    hosts: &[Host],
    places: &[(usize, Place)],
    end: Nanos,
    problems: &mut Problems,
) -> Vec<Change> {
    if all.is_empty() {
        return Vec::new();
    }
    let mut all: Vec<&ChangeKeys> = all.iter().collect();
    all.sort_by_key(|keys| keys.at.get_ref().0);
    // As the policies are by then.
    let mut policies: Vec<Policy> = hosts.iter().map(|host| host.policy.clone()).collect();
    let mut changes = Vec::new();
    for keys in all {
        let at = keys.at.get_ref().0;
        if at >= end {
            problems.add(keys.at.span(), "a change must be before the end");
        }
        let targets = targets(keys.of.get_ref(), hosts, places);
        if targets.is_empty() {
            let known: BTreeSet<&str> = hosts.iter().flat_map(names).collect();
            let unknown = unknown_name("vif, tenant or link", keys.of.get_ref(), known.iter().copied());
            problems.add(keys.of.span(), unknown);
        }
        let mut settings: Vec<(&String, &Value)> = keys.set.get_ref().iter().collect();
        // Before the keys that only it has.
        settings.sort_by_key(|(key, _)| *key != "scheduler");
        for (key, value) in settings {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let setting = match Setting::parse(key, &text) {
                Ok(setting) => setting,
                Err(wrong) => {
                    problems.add(keys.set.span(), wrong.to_string());
                    continue;
                }
            };
            for (host, target) in &targets {
                if let Err(wrong) = policies[*host].apply(target, setting.clone()) {
                    problems.add(keys.set.span(), wrong.to_string());
                    break;
                }
                changes.push(Change { at, host: *host, target: target.clone(), setting: setting.clone() });
            }
        }
    }
    changes
}

/// The vifs that words mean, each with its host; or else the tenants, or the links, of that name.
fn targets(words: &str, hosts: &[Host], places: &[(usize, Place)]) -> Vec<(usize, String)> {
    let meant = places.iter().filter(|(_, place)| place.is_meant(words));
    let vifs: Vec<(usize, String)> = meant.map(|(host, place)| (*host, place.vif.clone())).collect();
    if !vifs.is_empty() {
        return vifs;
    }
    let has = |host: &Host| host.link.name == words || host.policy.tenants.iter().any(|tenant| tenant.name == words);
    hosts.iter().enumerate().filter(|(_, host)| has(host)).map(|(host, _)| (host, words.to_owned())).collect()
}

/// The names of a host's link, tenants and vifs.
fn names(host: &Host) -> impl Iterator<Item = &str> {
    let tenants = host.policy.tenants.iter().map(|tenant| tenant.name.as_str());
    let vifs = host.policy.vifs.iter().map(|vif| vif.name.as_str());
    tenants.chain(vifs).chain([host.link.name.as_str()])
}
