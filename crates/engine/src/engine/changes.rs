//! Changes of the running policy: single settings, parts that are added and removed, and newer files. All take the same path,
//! [`Shared::advance`].

use super::cards::{self, Cards};
use super::{Error, Shared, warn};
use crate::bridge::Bridge;
use crate::change::Refused;
use crate::confinement;
use crate::control::Saved;
use crate::ports;
use crate::worker::Worker;
use fairlane_policy::problem::Problem;
use fairlane_policy::{Change, Files, Kind, Link, Loaded, Policy, Setting, SettingError, Uplink, Vif};
use fairlane_port::xen::backend::Found;
use fairlane_port::{Port, store};
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

impl Shared {
    pub(super) fn set(&self, target: &str, key: &str, value: &str) -> Result<(), Error> {
        let setting = Setting::parse(key, value)?;
        self.change(|policy| policy.apply(target, setting))
    }

    /// Makes one change.
    pub(super) fn change(&self, change: impl FnOnce(&mut Policy) -> Result<(), SettingError>) -> Result<(), Error> {
        let mut policy = self.policy();
        let mut newer = policy.clone();
        change(&mut newer)?;
        ports::look_up_all(&mut newer)?;
        self.advance(&mut policy, newer)?;
        // One that was left out and is served now may be removed later.
        self.loaded().left_out.retain(|vif| policy.vifs.iter().all(|served| served.name != vif.name));
        Ok(())
    }

    /// Removes a part. A vif that is not served is only forgotten, so that a save has it no longer.
    pub(super) fn remove(&self, kind: Kind, name: &str) -> Result<(), Error> {
        let forget = |left_out: &mut Vec<Vif>| left_out.extract_if(.., |vif| vif.name == name).count() > 0;
        if kind == Kind::Vif && forget(&mut self.loaded().left_out) {
            return Ok(());
        }
        self.change(|policy| policy.remove(kind, name))
    }

    /// Loads newer files. Returns the number of changes, and what is wrong with drop-ins.
    pub(super) fn load(&self, files: &Files) -> Result<(usize, Vec<Problem>), Error> {
        let loaded = files.load(&self.loaded().files).map_err(|problems| {
            Error::Policy(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        })?;
        let problems = loaded.problems.clone();
        Ok((self.reload(loaded)?, problems))
    }

    /// Applies a newer policy together with the found Xen cards and with what was added while the backend ran.
    pub(super) fn reload(&self, mut loaded: Loaded) -> Result<usize, Error> {
        ports::look_up_all(&mut loaded.policy)?;
        ports::look_up_all(&mut loaded.base)?;
        let mut policy = self.policy();
        let mut last = self.loaded();
        let mut newer = loaded.policy.clone();
        if let Some((kind, name, why)) = newer.keep_added(&policy, &last.policy) {
            return Err(Error::Added { kind, name, why });
        }
        for ((guest, device), terms) in &*self.found() {
            warn(newer.add_found_card(guest, *device, terms));
        }
        let done = self.advance(&mut policy, newer);
        if let Ok(_) | Err(Error::Undone(_)) = &done {
            let is_left_out = |vif: &&Vif| policy.vifs.iter().all(|served| served.name != vif.name);
            loaded.left_out = loaded.policy.vifs.iter().filter(is_left_out).cloned().collect();
            *last = loaded;
        }
        done
    }

    /// What the file for changes has to contain to keep those that were made, and vifs that are not served but have not been removed.
    ///
    /// # Errors
    /// The file would lose something.
    pub(super) fn saved(&self) -> Result<Saved, Error> {
        let policy = self.policy();
        let last = self.loaded();
        let file = self.kept_in.clone().ok_or(Error::NoFile)?;
        if last.wrong_saved {
            return Err(Error::WrongSaved(file));
        }
        let mut kept = policy.clone();
        let left_out = Policy { vifs: last.left_out.clone(), ..policy.clone() };
        if let Some((_, name, why)) = kept.keep_added(&left_out, &policy) {
            return Err(Error::LeftOut { name, file, why });
        }
        Ok(Saved { file, text: kept.saved(&last.base) })
    }

    /// Handles a Xen card that was found, changed or removed.
    pub(super) fn card_changed(&self, found: Found) {
        let mut policy = self.policy();
        let mut newer = policy.clone();
        cards::change(&mut newer, &mut self.found(), found);
        warn(self.advance(&mut policy, newer).err());
    }

    fn found(&self) -> MutexGuard<'_, Cards> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies all changes from the policy to a newer one. Failed changes are reverted in the policy, so that they can be requested
    /// again.
    fn advance(&self, policy: &mut Policy, newer: Policy) -> Result<usize, Error> {
        let changes = policy.changes(&newer).map_err(Error::Fixed)?;
        let count = changes.len();
        let mut workers = self.of_links().clone();
        let mut jobs: Vec<Job> = Vec::new();
        let (mut now, mut failed, mut gone) = (newer.clone(), Vec::new(), Vec::new());
        for change in changes {
            match &change {
                Change::AddLink(link) => {
                    workers.insert(link.name.clone(), Arc::new(self.start_link(&newer, link)?));
                    continue;
                }
                Change::RemoveLink { link } => {
                    gone.push(link.clone());
                    continue;
                }
                _ => {}
            }
            let link = link_of(policy, &newer, &change);
            let worker = workers.get(&link).ok_or(Error::NoLink(link))?;
            let known = jobs.iter().position(|job| Arc::ptr_eq(&job.worker, worker));
            let known = known.unwrap_or_else(|| {
                jobs.push(Job {
                    worker: worker.clone(),
                    removals: Vec::new(),
                    steps: Vec::new(),
                    opened: HashMap::new(),
                });
                jobs.len() - 1
            });
            if let Change::AddVif(vif) = &change
                && !policy.vifs.iter().any(|old| old.card.shares_place_with(&vif.card))
            {
                match ports::vif(vif) {
                    Ok(port) => drop(jobs[known].opened.insert(vif.name.clone(), port)),
                    Err(why) if policy.vifs.iter().any(|old| old.name == vif.name) => return Err(why),
                    // One that is new costs only itself.
                    Err(why) => {
                        now.revert(&change, policy);
                        failed.push(why);
                        continue;
                    }
                }
            }
            match change {
                Change::RemoveVif { .. } => jobs[known].removals.push(change),
                change => jobs[known].steps.push(change),
            }
        }
        let mut have_done = |worker: &Worker, changes: Vec<Change>, opened| {
            let newer = newer.clone();
            match worker.call(move |work| work.apply(changes, &newer, opened)) {
                Ok(refused) => {
                    for Refused { change, why } in refused.into_iter().rev() {
                        now.revert(&change, policy);
                        failed.push(why);
                    }
                }
                // A worker that hangs does this once it continues; a dead one ends the process.
                Err(silent) => failed.push(silent.into()),
            }
        };
        // What one worker closes, another may be about to open. One that is alone does all between two rounds.
        let is_alone = jobs.len() == 1;
        for Job { worker, removals, .. } in jobs.iter_mut().filter(|job| !is_alone && !job.removals.is_empty()) {
            have_done(worker, std::mem::take(removals), HashMap::new());
        }
        for Job { worker, mut removals, steps, opened } in jobs {
            removals.extend(steps);
            if !removals.is_empty() {
                have_done(&worker, removals, opened);
            }
        }
        for link in gone {
            if let Some(worker) = workers.remove(&link) {
                worker.end();
            }
        }
        *self.of_links() = workers;
        *policy = now;
        store::settle();
        if failed.is_empty() { Ok(count) } else { Err(Error::Undone(failed)) }
    }

    /// Starts a link that is new, without vifs.
    ///
    /// # Errors
    /// Its uplink cannot be opened, which a confined backend cannot do any more, or no thread is left.
    fn start_link(&self, newer: &Policy, link: &Link) -> Result<Worker, Error> {
        let said = |why: &dyn std::fmt::Display| Error::failed(format!("link `{}`", link.name), why);
        if link.uplink != Uplink::None && confinement::is_prepared() {
            return Err(said(
                &"this backend gave up what it takes to open a tap or a card when it started: write the link to a file, and restart it",
            ));
        }
        let uplink = ports::uplinks(std::slice::from_ref(link))?.remove(&link.name);
        let bridge = Bridge::open_empty(newer, link, uplink, &self.clock);
        self.starter.start(vec![bridge], self.clock, link.cpu).map_err(|error| said(&error))
    }
}

/// What one worker has to do.
struct Job {
    worker: Arc<Worker>,
    /// Vifs to close, on all workers before anything else.
    removals: Vec<Change>,
    steps: Vec<Change>,
    /// The ports of new vifs.
    opened: HashMap<String, Box<dyn Port>>,
}

/// The link whose worker makes a change.
fn link_of(policy: &Policy, newer: &Policy, change: &Change) -> String {
    let of_vif = |policy: &Policy, name: &str| {
        policy.vifs.iter().find(|vif| vif.name == name).map_or(String::new(), |vif| vif.link.clone())
    };
    match change {
        Change::RemoveVif { vif } => of_vif(policy, vif),
        Change::Share { vif, .. }
        | Change::Member { vif, .. }
        | Change::AntiSpoofing { vif, .. }
        | Change::EarlyAck { vif, .. } => of_vif(newer, vif),
        Change::AddVif(vif) => vif.link.clone(),
        Change::AddLink(link) => link.name.clone(),
        Change::Rate { link, .. }
        | Change::RxRate { link, .. }
        | Change::Tenant { link, .. }
        | Change::Scheduler { link, .. }
        | Change::IdleTimeout { link, .. }
        | Change::Isolate { link, .. }
        | Change::RemoveLink { link }
        | Change::RxPool { link, .. } => link.clone(),
    }
}
