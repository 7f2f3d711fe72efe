//! Adds and removes parts of a running policy, one at a time, by the file's rules.

use super::check::conflicts;
use super::found::is_found;
use super::parse::{LINK_KEYS, TENANT_KEYS, VIF_KEYS, link, take_only_link, tenant, vif};
use super::section::Section;
use super::{Link, Policy, SettingError, Tenant, Uplink, Vif};
use crate::problem::{Problems, unknown_name};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt::{self, Display};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// A kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A guest's network card.
    Vif,
    /// An owner of guests.
    Tenant,
    /// Guests that can reach each other, and their uplink.
    Link,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::Vif, Kind::Tenant, Kind::Link];

    /// Its name, as in a policy file.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Vif => "vif",
            Kind::Tenant => "tenant",
            Kind::Link => "link",
        }
    }
}

impl Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Most names in a message.
const SHOWN: usize = 8;

impl Policy {
    /// Adds a part with the keys of a policy file, whose values need no quotes: `socket=/run/web.sock`, `weight=30`,
    /// `addresses=10.0.0.1,fd00::1`, `uplink.tap=fl0`. With `replace` it takes the place of the one with its name.
    ///
    /// # Errors
    /// What is wrong with the part, or with the resulting policy; nothing is changed then.
    pub fn add(
        &mut self,
        kind: Kind,
        name: &str,
        settings: &[(String, String)],
        replace: bool,
    ) -> Result<(), SettingError> {
        let mut next = self.clone();
        let table = table(name, settings)?;
        let mut problems = Problems::new("", "");
        match kind {
            Kind::Vif => {
                let section = Section::new("a vif", VIF_KEYS, &table, 0..0, &mut problems);
                let mut part = vif(&section, &self.sockets, &mut problems);
                take_only_link(&mut part, &section, &self.links, &mut problems);
                put(&mut next.vifs, part, |vif: &Vif| &vif.name, replace);
            }
            Kind::Tenant => {
                let section = Section::new("a tenant", TENANT_KEYS, &table, 0..0, &mut problems);
                let part = tenant(&section, &mut problems);
                put(&mut next.tenants, part, |tenant: &Tenant| &tenant.name, replace);
            }
            Kind::Link => {
                let section = Section::new("a link", LINK_KEYS, &table, 0..0, &mut problems);
                let part = link(&section, &mut problems);
                put(&mut next.links, part, |link: &Link| &link.name, replace);
            }
        }
        if !problems.is_empty() {
            let problems = problems.sorted().into_iter().map(|problem| problem.message);
            return Err(SettingError::Conflicts(problems.collect()));
        }
        self.advance(next)
    }

    /// Removes a part that no other needs.
    ///
    /// # Errors
    /// No part has this name, or others need it; nothing is changed then.
    pub fn remove(&mut self, kind: Kind, name: &str) -> Result<(), SettingError> {
        let mut next = self.clone();
        let names: Vec<&str> = match kind {
            Kind::Vif => self.vifs.iter().map(|vif| vif.name.as_str()).collect(),
            Kind::Tenant => self.tenants.iter().map(|tenant| tenant.name.as_str()).collect(),
            Kind::Link => self.links.iter().map(|link| link.name.as_str()).collect(),
        };
        if !names.contains(&name) {
            return Err(SettingError::NoTarget(unknown_name(kind.name(), name, names.into_iter())));
        }
        match kind {
            Kind::Vif if is_found(name) => {
                let why = format!("vif `{name}` is a card of a Xen guest: detach it with Xen's toolstack");
                return Err(SettingError::Conflicts(vec![why]));
            }
            Kind::Vif => next.vifs.retain(|vif| vif.name != name),
            Kind::Tenant => {
                self.unused(kind, name, |vif| vif.tenant.as_deref() == Some(name))?;
                next.tenants.retain(|tenant| tenant.name != name);
            }
            Kind::Link => {
                self.unused(kind, name, |vif| vif.link == name)?;
                let leads_here = |link: &&Link| matches!(&link.uplink, Uplink::Wire { to, .. } if to == name);
                if let Some(near) = self.links.iter().find(leads_here) {
                    let why = format!("link `{name}` is the far end of the wire of link `{}`", near.name);
                    return Err(SettingError::Conflicts(vec![why]));
                }
                next.links.retain(|link| link.name != name);
                next.tenants.iter_mut().for_each(|tenant| tenant.min_rate_on.retain(|link, _| link != name));
            }
        }
        self.advance(next)
    }

    /// Adds what runs but was not in the files that were loaded last, and is not in this policy, which is of newer files. Returns the
    /// first that does not fit, and why.
    pub fn keep_added(&mut self, running: &Policy, last: &Policy) -> Option<(Kind, String, SettingError)> {
        type Add<'a> = Box<dyn Fn(&mut Policy) + 'a>;
        let mut added: Vec<(Kind, &str, Add<'_>)> = Vec::new();
        let known = |names: fn(&Policy) -> Vec<&str>| -> HashSet<String> {
            names(last).into_iter().chain(names(self)).map(str::to_owned).collect()
        };
        let links = known(|policy| policy.links.iter().map(|link| link.name.as_str()).collect());
        for link in running.links.iter().filter(|link| !links.contains(&link.name)) {
            added.push((Kind::Link, &link.name, Box::new(|policy| policy.links.push(link.clone()))));
        }
        let tenants = known(|policy| policy.tenants.iter().map(|tenant| tenant.name.as_str()).collect());
        for tenant in running.tenants.iter().filter(|tenant| !tenants.contains(&tenant.name)) {
            let add = |policy: &mut Policy| {
                let mut tenant = tenant.clone();
                tenant.min_rate_on.retain(|link, _| policy.link(link).is_some());
                policy.tenants.push(tenant);
            };
            added.push((Kind::Tenant, &tenant.name, Box::new(add)));
        }
        let vifs = known(|policy| policy.vifs.iter().map(|vif| vif.name.as_str()).collect());
        for vif in running.vifs.iter().filter(|vif| !vifs.contains(&vif.name) && !is_found(&vif.name)) {
            added.push((Kind::Vif, &vif.name, Box::new(|policy| policy.vifs.push(vif.clone()))));
        }
        let mut all = self.clone();
        added.iter().for_each(|(_, _, add)| add(&mut all));
        if self.advance(all).is_ok() {
            return None;
        }
        added.into_iter().find_map(|(kind, name, add)| {
            let mut next = self.clone();
            add(&mut next);
            self.advance(next).err().map(|why| (kind, name.to_owned(), why))
        })
    }

    /// Checks that no vif needs a part.
    fn unused(&self, kind: Kind, name: &str, needs: impl Fn(&Vif) -> bool) -> Result<(), SettingError> {
        let vifs: Vec<&str> = self.vifs.iter().filter(|vif| needs(vif)).map(|vif| vif.name.as_str()).collect();
        if vifs.is_empty() {
            return Ok(());
        }
        let more = if vifs.len() > SHOWN { format!(" and {} more", vifs.len() - SHOWN) } else { String::new() };
        let shown = vifs[..vifs.len().min(SHOWN)].join(", ");
        let why = format!("{kind} `{name}` still has vifs ({shown}{more}): remove them first");
        Err(SettingError::Conflicts(vec![why]))
    }

    /// Becomes the next policy.
    ///
    /// # Errors
    /// Its conflicts, a sentence each; nothing is changed then.
    pub(super) fn advance(&mut self, next: Policy) -> Result<(), SettingError> {
        let found = conflicts(&next);
        if !found.is_empty() {
            return Err(SettingError::Conflicts(found.into_iter().map(|conflict| conflict.message).collect()));
        }
        *self = next;
        Ok(())
    }
}

/// Adds a part, or replaces the one with the same name.
fn put<T>(parts: &mut Vec<T>, part: T, name: impl Fn(&T) -> &String, replace: bool) {
    match parts.iter_mut().find(|other| replace && name(other) == name(&part)) {
        Some(other) => *other = part,
        None => parts.push(part),
    }
}

/// The table that a policy file would have for a part.
fn table<'a>(name: &'a str, settings: &'a [(String, String)]) -> Result<DeTable<'a>, SettingError> {
    let mut table = DeTable::new();
    table.insert(bare("name".into()), bare(DeValue::String(name.into())));
    for (key, text) in settings {
        let (outer, inner) = key.split_once('.').map_or((key.as_str(), None), |(outer, inner)| (outer, Some(inner)));
        let value = value(inner.unwrap_or(outer), text);
        let place = match inner {
            None => &mut table,
            Some(_) => {
                let nested = table.entry(bare(outer.into())).or_insert_with(|| bare(DeValue::Table(DeTable::new())));
                let DeValue::Table(nested) = nested.get_mut() else { return Err(twice(key)) };
                nested
            }
        };
        if place.insert(bare(inner.unwrap_or(outer).into()), bare(value)).is_some() {
            return Err(twice(key));
        }
    }
    Ok(table)
}

fn twice(key: &str) -> SettingError {
    SettingError::Conflicts(vec![format!("{} is given twice", key.escape_debug())])
}

/// Keys whose values are names, which may look like numbers or flags.
const NAMES: [&str; 7] = ["link", "tenant", "socket", "tap", "card", "xdp", "wire"];

/// A value as in a file, or text, which needs no quotes here. Nor do permissions and guests of Xen, and a list of addresses needs no
/// brackets.
fn value<'a>(key: &str, text: &'a str) -> DeValue<'a> {
    match DeValue::parse(text).map(Spanned::into_inner) {
        _ if NAMES.contains(&key) => DeValue::String(text.into()),
        Ok(value @ (DeValue::Boolean(_) | DeValue::Array(_) | DeValue::Table(_))) => value,
        Ok(value @ (DeValue::Integer(_) | DeValue::Float(_))) if !["mode", "xen"].contains(&key) => value,
        _ if key == "addresses" => {
            let mut array = DeArray::new();
            text.split(',').for_each(|text| array.push(bare(DeValue::String(text.trim().into()))));
            DeValue::Array(array)
        }
        _ => DeValue::String(text.into()),
    }
}

fn bare<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}
