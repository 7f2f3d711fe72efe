//! Settings that `ctl set` changes while the backend runs: one key of one vif or link, with the file's rules.

use super::check::{OtherScheduler, belongs_to, conflicts};
use super::{Link, Policy, SchedulerKind, Vif, rules};
use crate::problem::{nearest, unknown_name};
use fairlane_core::ack::Mode;
use fairlane_core::time::Nanos;
use toml::de::DeValue;

/// A key with its new value. No key belongs to both vifs and links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A vif's setting.
    Vif(VifSetting),
    /// A link's setting.
    Link(LinkSetting),
}

/// A vif's setting. Rates are bits a second, sizes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VifSetting {
    /// `weight`.
    Weight(u32),
    /// `min_rate`; 0 for none.
    MinRate(u64),
    /// `max_rate`; unlimited if absent. A burst that is the default for the old rate becomes the default for the new
    /// one.
    MaxRate(Option<u64>),
    /// `burst`.
    Burst(u64),
    /// `rx_weight`.
    RxWeight(u32),
    /// `rx_min_rate`; 0 for none.
    RxMinRate(u64),
    /// `rx_max_rate`; unlimited if absent. It changes a default burst as [`VifSetting::MaxRate`] does.
    RxMaxRate(Option<u64>),
    /// `rx_burst`.
    RxBurst(u64),
    /// `rx_queue`.
    RxQueue(u64),
    /// `rx_timeout`.
    RxTimeout(Nanos),
    /// `early_ack`.
    EarlyAck(Mode),
}

/// A link's setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSetting {
    /// `rate` in bits a second; unlimited if absent.
    Rate(Option<u64>),
    /// `scheduler`, with the defaults of its own keys.
    Scheduler(SchedulerKind),
    /// `prioritize` (scheduler `wrr`).
    Prioritize(bool),
    /// `refill` (scheduler `netback`).
    Refill(Nanos),
    /// `idle_timeout`.
    IdleTimeout(Nanos),
    /// `isolate`.
    Isolate(bool),
    /// `rx_pool` in bytes.
    RxPool(u64),
}

/// Why a setting was refused. Displays as the message that a policy file would get.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No settable key has this name.
    #[error("{}", unknown_setting(.0))]
    Unknown(String),
    /// The key does not allow the value.
    #[error("{key} {wrong}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong, to follow the key.
        wrong: String,
    },
    /// No vif or link has the given name; a sentence with a suggestion.
    #[error("{0}")]
    NoTarget(String),
    /// The key belongs to another scheduler.
    #[error(transparent)]
    OtherScheduler(#[from] OtherScheduler),
    /// Conflicts in the resulting policy, a sentence each.
    #[error("{}", .0.join("; "))]
    Conflicts(Vec<String>),
}

const VIF_SETTINGS: [&str; 11] = [
    "weight",
    "min_rate",
    "max_rate",
    "burst",
    "rx_weight",
    "rx_min_rate",
    "rx_max_rate",
    "rx_burst",
    "rx_queue",
    "rx_timeout",
    "early_ack",
];
const LINK_SETTINGS: [&str; 7] = ["rate", "scheduler", "prioritize", "refill", "idle_timeout", "isolate", "rx_pool"];

impl Setting {
    /// Parses a key and the text of its value: `("max_rate", "50Mbit/s")`, `("max_rate", "none")`.
    ///
    /// # Errors
    /// The key does not exist, or does not allow this value.
    pub fn parse(key: &str, value: &str) -> Result<Setting, SettingError> {
        // Numbers and flags are in TOML syntax. Anything else is text, which the command line passes without quotes.
        let value = match DeValue::parse(value).map(|value| value.into_inner()) {
            Ok(value @ (DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_))) => value,
            _ => DeValue::String(value.into()),
        };
        let setting = match key {
            "weight" => rules::weight(&value).map(VifSetting::Weight).map(Setting::Vif),
            "min_rate" => rules::min_rate(&value).map(VifSetting::MinRate).map(Setting::Vif),
            "max_rate" => rules::rate(&value).map(VifSetting::MaxRate).map(Setting::Vif),
            "burst" => rules::burst(&value).map(VifSetting::Burst).map(Setting::Vif),
            "rx_weight" => rules::weight(&value).map(VifSetting::RxWeight).map(Setting::Vif),
            "rx_min_rate" => rules::min_rate(&value).map(VifSetting::RxMinRate).map(Setting::Vif),
            "rx_max_rate" => rules::rate(&value).map(VifSetting::RxMaxRate).map(Setting::Vif),
            "rx_burst" => rules::burst(&value).map(VifSetting::RxBurst).map(Setting::Vif),
            "rx_queue" => rules::queue(&value).map(VifSetting::RxQueue).map(Setting::Vif),
            "rx_timeout" => rules::rx_timeout(&value).map(VifSetting::RxTimeout).map(Setting::Vif),
            "early_ack" => rules::early_ack(&value).map(VifSetting::EarlyAck).map(Setting::Vif),
            "rate" => rules::rate(&value).map(LinkSetting::Rate).map(Setting::Link),
            "scheduler" => rules::scheduler(&value).map(LinkSetting::Scheduler).map(Setting::Link),
            "prioritize" => rules::flag(&value).map(LinkSetting::Prioritize).map(Setting::Link),
            "refill" => rules::refill(&value).map(LinkSetting::Refill).map(Setting::Link),
            // `delay` is its old name.
            "idle_timeout" | "delay" => rules::idle_timeout(&value).map(LinkSetting::IdleTimeout).map(Setting::Link),
            "isolate" => rules::flag(&value).map(LinkSetting::Isolate).map(Setting::Link),
            "rx_pool" => rules::pool(&value).map(LinkSetting::RxPool).map(Setting::Link),
            _ => return Err(SettingError::Unknown(key.to_owned())),
        };
        setting.map_err(|wrong| SettingError::Value { key: key.to_owned(), wrong })
    }
}

fn unknown_setting(key: &str) -> String {
    let known = VIF_SETTINGS.iter().chain(&LINK_SETTINGS).copied();
    let hint = nearest(key, known).map_or(String::new(), |name| format!(", did you mean `{name}`?"));
    let (vif, link) = (VIF_SETTINGS.join(", "), LINK_SETTINGS.join(", "));
    format!("`{}` cannot be set{hint} (of a vif: {vif}; of a link: {link})", key.escape_debug())
}

impl Policy {
    /// Changes one setting of the vif or link named `target`; the setting determines which of the two.
    ///
    /// # Errors
    /// No such target, or what would be wrong with the resulting policy; nothing is changed then.
    pub fn apply(&mut self, target: &str, setting: Setting) -> Result<(), SettingError> {
        let mut next = self.clone();
        let unknown =
            |kind: &str, known: &[&str]| SettingError::NoTarget(unknown_name(kind, target, known.iter().copied()));
        match setting {
            Setting::Vif(setting) => match next.vifs.iter_mut().find(|vif| vif.name == target) {
                Some(vif) => setting.apply(vif),
                None => return Err(unknown("vif", &self.vifs.iter().map(|vif| &*vif.name).collect::<Vec<_>>())),
            },
            Setting::Link(setting) => match next.links.iter_mut().find(|link| link.name == target) {
                Some(link) => setting.apply(link)?,
                None => return Err(unknown("link", &self.links.iter().map(|link| &*link.name).collect::<Vec<_>>())),
            },
        }
        let found = conflicts(&next);
        if !found.is_empty() {
            return Err(SettingError::Conflicts(found.into_iter().map(|conflict| conflict.message).collect()));
        }
        *self = next;
        Ok(())
    }
}

impl VifSetting {
    fn apply(self, vif: &mut Vif) {
        let (share, rx) = (&mut vif.share, &mut vif.rx);
        match self {
            VifSetting::Weight(weight) => share.weight = weight,
            VifSetting::MinRate(rate) => share.min_rate = rate,
            VifSetting::MaxRate(rate) => set_max_rate(&mut share.max_rate, &mut share.burst, rate),
            VifSetting::Burst(burst) => share.burst = burst,
            VifSetting::RxWeight(weight) => rx.weight = Some(weight),
            VifSetting::RxMinRate(rate) => rx.min_rate = rate,
            VifSetting::RxMaxRate(rate) => set_max_rate(&mut rx.max_rate, &mut rx.burst, rate),
            VifSetting::RxBurst(burst) => rx.burst = burst,
            VifSetting::RxQueue(bytes) => rx.queue = bytes,
            VifSetting::RxTimeout(time) => rx.timeout = time,
            VifSetting::EarlyAck(mode) => vif.early_ack = mode,
        }
    }
}

/// Changes a rate, and a burst that is the default for the old rate.
fn set_max_rate(max_rate: &mut Option<u64>, burst: &mut u64, rate: Option<u64>) {
    if *burst == rules::default_burst(*max_rate) {
        *burst = rules::default_burst(rate);
    }
    *max_rate = rate;
}

impl LinkSetting {
    fn apply(self, link: &mut Link) -> Result<(), OtherScheduler> {
        match self {
            LinkSetting::Rate(rate) => link.rate = rate,
            LinkSetting::Scheduler(kind) if kind.name() == link.scheduler.name() => {}
            LinkSetting::Scheduler(kind) => link.scheduler = kind,
            LinkSetting::Prioritize(prioritize) => {
                belongs_to("prioritize", "wrr", link.scheduler)?;
                link.scheduler = SchedulerKind::Wrr { prioritize };
            }
            LinkSetting::Refill(refill) => {
                belongs_to("refill", "netback", link.scheduler)?;
                link.scheduler = SchedulerKind::Netback { refill };
            }
            LinkSetting::IdleTimeout(time) => link.idle_timeout = time,
            LinkSetting::Isolate(isolate) => link.isolate = isolate,
            LinkSetting::RxPool(bytes) => link.rx_pool = bytes,
        }
        Ok(())
    }
}
