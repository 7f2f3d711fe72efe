//! This host, as the agent of the fleet sees it: the running backend, and the policy file that it was started with.

use super::promises::Judge;
use crate::policy_file;
use fairlane_core::partition::Measured;
use fairlane_engine::control::{Client, Error};
use fairlane_engine::reading::Reading;
use fairlane_engine::snapshot::{Snapshot, TenantState};
use fairlane_fleet::{Host, Look, OfLinks, Refusal};
use fairlane_policy::units::format_rate;
use fairlane_policy::{File, Files, Policy};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The smallest `min_rate` that a policy may have, in bits a second.
pub(super) const SMALLEST: u64 = 1000;

/// A backend and its policy file.
pub(super) struct ThisHost {
    control: PathBuf,
    file: PathBuf,
    /// The last look since the policy changed.
    last: Option<Snapshot>,
    judge: Judge,
}

impl ThisHost {
    pub(super) fn new(control: PathBuf, file: PathBuf) -> ThisHost {
        ThisHost { control, file, last: None, judge: Judge::default() }
    }

    fn client(&self) -> Result<Client, Refusal> {
        connect(&self.control)
    }

    /// What this host's own files guarantee to a tenant: on each link, and on some.
    fn own_guarantee(&self, tenant: &str) -> Vec<(Option<String>, u64)> {
        let files = policy_file::files(&self.file).ok();
        let loaded = files.and_then(|files| files.load(&Files::default()).ok());
        let tenants = loaded.into_iter().flat_map(|loaded| loaded.policy.tenants);
        let Some(own) = tenants.into_iter().find(|other| other.name == tenant) else { return vec![(None, 0)] };
        let on_each = own.shares.tx.min_rate;
        if own.min_rate_on.is_empty() {
            return vec![(None, on_each)];
        }
        // Setting what it has on each link would for a moment take away what it has on some, which its guests' guarantees may need.
        let seen = self.last.as_ref().and_then(|last| tenant_of(last, tenant));
        let is_other = seen.is_some_and(|seen| seen.min_rate != on_each);
        let links = own.min_rate_on.keys().chain(seen.into_iter().flat_map(|seen| seen.min_rate_on.keys()));
        let links: BTreeSet<&String> = links.collect();
        let on_some = links.into_iter().map(|link| (Some(link.clone()), own.on(link).tx.min_rate));
        is_other.then_some((None, on_each)).into_iter().chain(on_some).collect()
    }

    /// Whether there is one link, and what a tenant has there is simply its guarantee.
    fn has_one_link(&self, tenant: &str) -> Result<bool, Refusal> {
        let seen = match &self.last {
            Some(seen) => seen,
            None => &self.client()?.show().map_err(|error| Refusal::NoBackend(error.to_string()))?,
        };
        Ok(seen.links.len() == 1 && tenant_of(seen, tenant).is_none_or(|tenant| tenant.min_rate_on.is_empty()))
    }
}

fn tenant_of<'a>(seen: &'a Snapshot, name: &str) -> Option<&'a TenantState> {
    seen.tenants.iter().find(|tenant| tenant.name == name)
}

fn connect(control: &Path) -> Result<Client, Refusal> {
    Client::connect(control).map_err(|error| Refusal::NoBackend(error.to_string()))
}

/// A drop-in that is wrong is a mistake here: without it, others than the fleet's store would say what is in force.
fn check(files: &Files) -> Result<(), String> {
    let problems = files.load(&Files::default()).map_or_else(|problems| problems, |loaded| loaded.problems);
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
}

impl Host for ThisHost {
    fn policy(&self) -> Option<String> {
        let text = std::fs::read_to_string(&self.file).ok()?;
        Policy::parse("", &text).is_ok().then_some(text)
    }

    fn apply(&mut self, policy: &str) -> Result<usize, Refusal> {
        let wrong = |why: &dyn ToString| Refusal::Wrong(why.to_string());
        let former = policy_file::files(&self.file).map_err(|error| wrong(&error))?;
        let newer = File::new(former.policy.name.clone(), policy);
        let files = Files::new(newer, former.drop_ins().to_vec());
        check(&files).map_err(Refusal::Wrong)?;
        let mut client = self.client()?;
        let changes = client.load(&files).map_err(|error| match error {
            Error::Refused(why) => Refusal::Wrong(why),
            other => Refusal::NoBackend(other.to_string()),
        })?;
        if former.policy.text != policy
            && let Err(error) = policy_file::replace(&self.file, policy)
        {
            // After a restart the backend would have the former policy: then it is to have it now.
            let back =
                client.load(&former).err().map_or(String::new(), |error| format!("; and it is in force: {error}"));
            return Err(Refusal::Wrong(format!("{error:#}{back}")));
        }
        (self.last, self.judge) = Default::default();
        Ok(changes)
    }

    fn look(&mut self) -> Look {
        let now = self.client().ok().and_then(|mut client| client.show().ok());
        let (broken, below_due) = self.judge.look(now.as_ref());
        let last = std::mem::replace(&mut self.last, now);
        let reading = last.as_ref().zip(self.last.as_ref()).and_then(|(last, now)| Reading::between(last, now));
        let measured = |reading: &Reading| {
            let mut tenants = OfLinks::<Measured>::new();
            for ((tenant, link), measured) in reading.measured() {
                tenants.entry(tenant.to_owned()).or_default().insert(link.to_owned(), measured);
            }
            tenants
        };
        Look { broken, below_due, tenants: reading.as_ref().map(measured) }
    }

    /// As `ctl set` does, so the policy file stays as it is.
    fn guarantee(&mut self, tenant: &str, min_rates: Option<&BTreeMap<String, u64>>) -> Result<(), Refusal> {
        let possible = |min_rate: u64| if min_rate < SMALLEST { 0 } else { min_rate };
        let wanted: Vec<(Option<String>, u64)> = match min_rates {
            None => self.own_guarantee(tenant),
            Some(rates) if self.has_one_link(tenant)? => rates.values().map(|rate| (None, possible(*rate))).collect(),
            Some(rates) => rates.iter().map(|(link, rate)| (Some(link.clone()), possible(*rate))).collect(),
        };
        let on: BTreeMap<String, u64> =
            wanted.iter().filter_map(|(link, min_rate)| Some((link.clone()?, *min_rate))).collect();
        let mut seen = match &mut self.last {
            // A host without the tenant guarantees nothing to it.
            Some(last) => match last.tenants.iter_mut().find(|seen| seen.name == tenant) {
                Some(seen) => Some(seen),
                None => return Ok(()),
            },
            None => None,
        };
        for (link, min_rate) in wanted {
            let is_in_force = |seen: &TenantState| match &link {
                None => seen.min_rate == min_rate && seen.min_rate_on == on,
                Some(link) => seen.min_rate_on.get(link) == Some(&min_rate),
            };
            if seen.as_deref().is_some_and(is_in_force) {
                continue;
            }
            let key = link.as_ref().map_or("min_rate".to_owned(), |link| format!("min_rate_on.{link}"));
            let value = if min_rate == 0 { "none".to_owned() } else { format_rate(min_rate) };
            let mut client = connect(&self.control)?;
            client.set(tenant, &key, &value).map_err(|error| Refusal::Wrong(error.to_string()))?;
            match (seen.as_deref_mut(), link) {
                (Some(seen), None) => (seen.min_rate, seen.min_rate_on) = (min_rate, BTreeMap::new()),
                (Some(seen), Some(link)) => drop(seen.min_rate_on.insert(link, min_rate)),
                (None, _) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_engine::Engine;

    /// Of a guest that is guaranteed half of what its tenant is on its link.
    const POLICY: &str = "[[tenant]]\nname = \"red\"\nmin_rate_on.lan = \"10Mbit/s\"\n\
        [[vif]]\nname = \"app\"\nlink = \"lan\"\ntenant = \"red\"\nmin_rate = \"5Mbit/s\"\nsocket = \"DIR/app.sock\"\n";

    #[test]
    fn a_guarantee_on_a_link_is_back_when_the_fleets_is_taken_away() {
        for (links, of_fleet) in [(vec!["lan"], vec![("lan", 6)]), (vec!["dmz", "lan"], vec![("dmz", 1), ("lan", 7)])] {
            let home = tempfile::tempdir().unwrap();
            let links: String = links.iter().map(|link| format!("[[link]]\nname = \"{link}\"\n")).collect();
            let text = format!("control = \"DIR/control.sock\"\n{links}{POLICY}");
            let file = home.path().join("policy.toml");
            std::fs::write(&file, text.replace("DIR", home.path().to_str().unwrap())).unwrap();
            let engine = Engine::start(policy_file::read(&file).unwrap()).unwrap();
            let guaranteed = |link: &str| engine.policy().tenants[0].on(link).tx.min_rate;
            let own = ["dmz", "lan"].map(guaranteed);
            let mut host = ThisHost::new(home.path().join("control.sock"), file);
            host.look();
            let parts = of_fleet.iter().map(|(link, rate)| ((*link).to_owned(), *rate * 1_000_000)).collect();
            host.guarantee("red", Some(&parts)).unwrap();
            parts.iter().for_each(|(link, rate)| assert_eq!(guaranteed(link), *rate));
            host.look();
            host.guarantee("red", None).unwrap();
            assert_eq!(["dmz", "lan"].map(guaranteed), own);
        }
    }
}
