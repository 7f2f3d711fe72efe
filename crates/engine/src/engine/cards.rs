//! Cards of Xen guests that the toolstack creates: those that are there already are part of the policy when the backend begins to serve,
//! so that no frame arrives for a guest that is not known yet.

use super::Shared;
use crate::error::Error;
use crate::ports;
use fairlane_policy::{Policy, Terms};
use fairlane_port::xen::backend::Found;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Cards in xenstore, by guest and device number: what their keys there grant them.
pub(super) type Cards = BTreeMap<(String, u32), Terms>;

/// Hears of cards.
pub(super) struct Finder(Arc<Mutex<Heard>>);

/// What happens with news of a card.
enum Heard {
    /// They are kept until somebody asks.
    Kept(Vec<Found>),
    /// A running backend is told.
    Told(Weak<Shared>),
}

impl Finder {
    /// Begins to look for cards.
    ///
    /// # Errors
    /// This is no Xen driver domain.
    pub(super) fn start() -> Result<Finder, Error> {
        let heard = Arc::new(Mutex::new(Heard::Kept(Vec::new())));
        let hears = heard.clone();
        ports::find(move |found| match &mut *lock(&hears) {
            Heard::Kept(all) => all.push(found),
            Heard::Told(shared) => {
                if let Some(shared) = shared.upgrade() {
                    shared.card_changed(found);
                }
            }
        })?;
        Ok(Finder(heard))
    }

    /// Waits until all cards that are there were found, and adds them to the policy.
    pub(super) fn add_to(&self, policy: &mut Policy, cards: &mut Cards) {
        ports::settle();
        if let Heard::Kept(all) = &mut *lock(&self.0) {
            all.drain(..).for_each(|found| change(policy, cards, found));
        }
    }

    /// Tells a running backend from now on, first of what was heard since.
    pub(super) fn tell(&self, shared: &Arc<Shared>) {
        let mut heard = lock(&self.0);
        if let Heard::Kept(all) = std::mem::replace(&mut *heard, Heard::Told(Arc::downgrade(shared))) {
            all.into_iter().for_each(|found| shared.card_changed(found));
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a card to the policy, changes it, or removes it.
pub(super) fn change(policy: &mut Policy, cards: &mut Cards, Found { guest, device, terms }: Found) {
    match terms {
        Some(terms) => {
            policy.add_found_card(&guest, device, &terms).into_iter().for_each(|why| tracing::warn!("{why}"));
            cards.insert((guest, device), terms);
        }
        None => {
            policy.remove_found_card(&guest, device);
            cards.remove(&(guest, device));
        }
    }
}
