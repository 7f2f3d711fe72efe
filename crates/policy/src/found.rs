//! Xen cards that are not in the policy file: the toolstack creates them, and the link with `xen = true` accepts them.
//!
//! They become vifs of the running policy, named after guest and card (`web/0`); no vif in a file can have such a name.
//! Their share is in xenstore, as `weight` and `min_rate` beside the toolstack's keys. For a vif in the file only the
//! file counts.

use super::{Card, Policy, Setting, Shares, Vif, rules};
use fairlane_core::ack::Mode;
use fairlane_core::receive;

/// The share of a found card in xenstore, in the syntax of a policy file; a missing value has the file's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// `weight`.
    pub weight: Option<String>,
    /// `min_rate`.
    pub min_rate: Option<String>,
}

/// Whether a vif's name is that of a card that no file names: no other has a slash.
pub fn is_found(vif: &str) -> bool {
    vif.contains('/')
}

impl Policy {
    /// Whether a link accepts Xen cards that no vif names.
    pub fn takes_found(&self) -> bool {
        self.links.iter().any(|link| link.xen)
    }

    /// Adds a found card, or changes its share. Nothing happens if a vif in the file names the card, or if no link
    /// accepts it. A wrong term has its default instead; the result has a sentence for each.
    pub fn add_found_card(&mut self, guest: &str, device: u32, terms: &Terms) -> Vec<String> {
        let card = Card::Xen { guest: guest.to_owned(), device };
        let Some(link) = self.links.iter().find(|link| link.xen) else { return Vec::new() };
        let name = format!("{guest}/{device}");
        match self.vifs.iter().find(|vif| vif.card == card) {
            Some(vif) if vif.name != name => return Vec::new(),
            Some(_) => {}
            None => {
                let (link, name) = (link.name.clone(), name.clone());
                self.vifs.push(Vif {
                    name,
                    link,
                    card,
                    queues: 1,
                    tenant: None,
                    shares: Shares::of_weight(rules::WEIGHT),
                    rx_queue: receive::QUEUE,
                    rx_timeout: receive::TIMEOUT,
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

    /// Removes a found card.
    pub fn remove_found_card(&mut self, guest: &str, device: u32) {
        let name = format!("{guest}/{device}");
        self.vifs.retain(|vif| vif.name != name);
    }
}
