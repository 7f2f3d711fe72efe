//! The policy of a plan's hosts: a file, or parts in the plan with the policy's own keys. The parts are written as a policy, a key a
//! line, and read by its parser; so they mean the same, and a mistake is reported at the key in the plan.

use super::file::HostKeys;
use super::is_simulated;
use fairlane_policy::Policy;
use fairlane_policy::problem::{Problem, Problems};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use toml::{Spanned, Table, Value};

/// A policy, and the names of vifs' tables where these are others than the vifs' own.
type Read = (Policy, HashMap<String, String>);

/// Reads the policy of a table of hosts.
pub(super) fn read(
    span: Range<usize>,
    keys: &HostKeys,
    path: &Path,
    problems: &mut Problems,
    of_others: &mut Vec<Problem>,
) -> Option<Read> {
    let has_parts = keys.link.is_some() || !keys.tenant.is_empty() || !keys.vif.is_empty();
    match &keys.policy {
        Some(policy) if has_parts => {
            problems.add(policy.span(), "a host has a policy file, or link, tenant and vif of its own, not both");
            None
        }
        Some(policy) => read_file(policy, path, problems, of_others),
        None if keys.vif.is_empty() => {
            problems.add(span, "a host needs a policy file, or a link and one or more [[host.vif]]");
            None
        }
        None => read_parts(keys, problems),
    }
}

fn read_file(
    policy: &Spanned<String>,
    path: &Path,
    problems: &mut Problems,
    of_others: &mut Vec<Problem>,
) -> Option<Read> {
    let file = path.with_file_name(policy.get_ref());
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(why) => {
            problems.add(policy.span(), format!("cannot read {}: {why}", file.display()));
            return None;
        }
    };
    match Policy::parse(&file.display().to_string(), &text) {
        Ok(parsed) => {
            if parsed.links.iter().any(|link| !is_simulated(&link.uplink)) {
                problems.add(policy.span(), "a wire is not simulated: give each link a tap or a card as its uplink");
                return None;
            }
            Some((parsed, HashMap::new()))
        }
        Err(wrong) => {
            of_others.extend(wrong);
            None
        }
    }
}

/// Text of a policy, with the place in the plan of each of its lines.
#[derive(Default)]
struct Text {
    text: String,
    places: Vec<Range<usize>>,
}

impl Text {
    fn line(&mut self, line: &str, place: &Range<usize>) {
        self.text += line;
        self.text.push('\n');
        self.places.push(place.clone());
    }

    /// Adds a table with all keys but some.
    fn table(&mut self, header: &str, table: &Spanned<Table>, but: &[&str]) {
        self.line(header, &table.span());
        for (key, value) in table.get_ref().iter().filter(|(key, _)| !but.contains(&key.as_str())) {
            self.line(&format!("{} = {value}", Value::from(key.as_str())), &table.span());
        }
    }
}

fn read_parts(keys: &HostKeys, problems: &mut Problems) -> Option<Read> {
    let (mut text, mut templates) = (Text::default(), HashMap::new());
    let none = Spanned::new(keys.name.span(), Table::new());
    let link = keys.link.as_ref().unwrap_or(&none);
    text.table("[[link]]", link, &[]);
    for (key, value) in [("name", "\"lan\""), ("uplink", "{ card = \"sim\" }")] {
        if !link.get_ref().contains_key(key) {
            text.line(&format!("{key} = {value}"), &link.span());
        }
    }
    keys.tenant.iter().for_each(|tenant| text.table("[[tenant]]", tenant, &[]));
    for vif in &keys.vif {
        let table = vif.get_ref();
        let count = match table.get("count") {
            None => 1,
            Some(Value::Integer(count)) if (1..=super::GUESTS as i64).contains(count) => *count,
            Some(other) => {
                problems.add(vif.span(), format!("count must be 1 to {}, not {other}", super::GUESTS));
                return None;
            }
        };
        let Some(name) = table.get("name").and_then(Value::as_str) else {
            problems.add(vif.span(), "a vif needs a name, such as name = \"web\"");
            return None;
        };
        for number in 1..=count {
            let own = if table.contains_key("count") { format!("{name}-{number}") } else { name.to_owned() };
            text.table("[[vif]]", vif, &["name", "count"]);
            text.line(&format!("name = {}", Value::from(own.as_str())), &vif.span());
            if !table.contains_key("socket") && !table.contains_key("xen") {
                text.line(&format!("socket = {}", Value::from(format!("/sim/{own}"))), &vif.span());
            }
            if own != name {
                templates.insert(own, name.to_owned());
            }
        }
    }
    match Policy::parse("plan", &text.text) {
        Ok(policy) if policy.links.iter().all(|link| is_simulated(&link.uplink)) => Some((policy, templates)),
        Ok(_) => {
            problems.add(link.span(), "a wire is not simulated: leave the uplink out");
            None
        }
        Err(wrong) => {
            // Copies of a vif have the same mistakes.
            let mut seen = HashSet::new();
            for problem in wrong {
                let place =
                    text.places.get(problem.line.saturating_sub(1)).cloned().unwrap_or_else(|| keys.name.span());
                if seen.insert((place.start, problem.message.split('`').next().map(str::to_owned))) {
                    problems.add(place, problem.message);
                }
            }
            None
        }
    }
}
