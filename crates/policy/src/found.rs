//! Cards that nobody wrote down: those of the guests that a driver domain of Xen's is given, on the link that takes them.
//!
//! They are vifs of the running policy like all others, named after guest and card (`web/0`), which no vif of a file can be.
//! What one is granted is in xenstore, as `weight` and `min_rate` beside the keys of Xen's toolstack; a vif of a file goes by
//! the file.

use super::{Card, Policy, Setting, Vif, rules};
use fairlane_core::ack::Mode;
use fairlane_core::sched::Share;

/// What a found card is granted in xenstore, each as the text of a policy file; the file's default where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// `weight`.
    pub weight: Option<String>,
    /// `min_rate`.
    pub min_rate: Option<String>,
}

impl Policy {
    /// Whether a link takes the cards that no vif names.
    pub fn takes_found(&self) -> bool {
        self.links.iter().any(|link| link.xen)
    }

    /// Takes a found card in, or grants it other terms. Nothing happens where a vif of the file names the card, or no link
    /// takes it. What of the terms is wrong is as if it were not there, and is told, a sentence each.
    pub fn take_in(&mut self, guest: &str, device: u32, terms: &Terms) -> Vec<String> {
        let card = Card::Xen { guest: guest.to_owned(), device };
        let Some(link) = self.links.iter().find(|link| link.xen) else { return Vec::new() };
        let name = format!("{guest}/{device}");
        match self.vifs.iter().find(|vif| vif.card == card) {
            Some(vif) if vif.name != name => return Vec::new(),
            Some(_) => {}
            None => {
                let share =
                    Share { weight: rules::WEIGHT, min_rate: 0, max_rate: None, burst: rules::default_burst(None) };
                let (link, name) = (link.name.clone(), name.clone());
                self.vifs.push(Vif {
                    name,
                    link,
                    card,
                    queues: 1,
                    share,
                    mac: None,
                    addresses: Vec::new(),
                    early_ack: Mode::Off,
                });
            }
        }
        let default = rules::WEIGHT.to_string();
        let mut wrong = Vec::new();
        for (key, value, default) in
            [("weight", &terms.weight, default.as_str()), ("min_rate", &terms.min_rate, "none")]
        {
            let mut set = |value: &str| self.apply(&name, Setting::parse(key, value)?);
            if let Err(sentence) = set(value.as_deref().unwrap_or(default)) {
                wrong.push(format!("{name} in xenstore: {sentence}"));
                // The default is never wrong.
                let _ = set(default);
            }
        }
        wrong
    }

    /// Lets a found card go.
    pub fn let_go(&mut self, guest: &str, device: u32) {
        let name = format!("{guest}/{device}");
        self.vifs.retain(|vif| vif.name != name);
    }
}
