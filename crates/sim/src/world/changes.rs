//! Changes of hosts' policies while traffic runs.

use super::{What, World};
use crate::scenario::Change;

impl World<'_> {
    pub(super) fn begin_to_change(&mut self) {
        for (number, change) in (0..).zip(&self.scenario.changes) {
            self.at(change.at, What::Change(number));
        }
    }

    /// A host's policy changes.
    pub(super) fn change(&mut self, Change { at, host, target, setting }: &Change) {
        match self.hosts[*host].set(target, setting.clone(), self.now) {
            Ok(None) => {}
            Ok(Some(wake)) => self.at(wake, What::Host(*host as u32)),
            Err(why) => {
                let name = &self.scenario.hosts[*host].name;
                self.refused.push(format!("{name} refused a change of `{target}` at {} s: {why}", at.as_secs_f64()));
            }
        }
    }
}
