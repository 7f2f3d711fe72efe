//! Settings that `ctl set` changes while the backend runs: one key of one vif, tenant or link, with the file's rules.

use super::check::{OtherScheduler, belongs_to};
use super::parse::TENANT_KEYS;
use super::{Direction, Link, Policy, SchedulerKind, ShareSetting, Vif, rules};
use crate::problem::{nearest, unknown_name};
use fairlane_core::ack::Mode;
use fairlane_core::time::Nanos;
use toml::de::DeValue;

/// A key with its new value. No key belongs to both vifs and links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A setting of a vif's or tenant's share.
    Share(Direction, ShareSetting),
    /// `min_rate_on.LINK` of a tenant.
    MinRateOn {
        /// The link.
        link: String,
        /// Bits a second; 0 for none.
        min_rate: u64,
    },
    /// A vif's setting.
    Vif(VifSetting),
    /// A link's setting.
    Link(LinkSetting),
}

/// A setting that only a vif has. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VifSetting {
    /// `rx_queue`.
    RxQueue(u64),
    /// `rx_timeout`.
    RxTimeout(Nanos),
    /// `early_ack`.
    EarlyAck(Mode),
    /// `tenant`; none if absent.
    Tenant(Option<String>),
}

/// A link's setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSetting {
    /// `rate` in bits a second; unlimited if absent.
    Rate(Option<u64>),
    /// `rx_rate` in bits a second; unlimited if absent.
    RxRate(Option<u64>),
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
    /// No vif, tenant or link has the given name; a sentence with a suggestion.
    #[error("{0}")]
    NoTarget(String),
    /// The key belongs to another scheduler.
    #[error(transparent)]
    OtherScheduler(#[from] OtherScheduler),
    /// Conflicts in the resulting policy, a sentence each.
    #[error("{}", .0.join("; "))]
    Conflicts(Vec<String>),
}

const VIF_SETTINGS: [&str; 4] = ["rx_queue", "rx_timeout", "early_ack", "tenant"];
const LINK_SETTINGS: [&str; 8] =
    ["rate", "rx_rate", "scheduler", "prioritize", "refill", "idle_timeout", "isolate", "rx_pool"];

impl Setting {
    /// Parses a key and the text of its value: `("max_rate", "50Mbit/s")`, `("max_rate", "none")`.
    ///
    /// # Errors
    /// The key does not exist, or does not allow this value.
    pub fn parse(key: &str, value: &str) -> Result<Setting, SettingError> {
        // Numbers and flags are in TOML syntax. Anything else is text, which the command line passes without quotes, and so is a
        // name that looks like a number.
        let value = match DeValue::parse(value).map(|value| value.into_inner()) {
            Ok(value @ (DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_))) if key != "tenant" => value,
            _ => DeValue::String(value.into()),
        };
        let setting = match key {
            "rx_queue" => rules::queue(&value).map(VifSetting::RxQueue).map(Setting::Vif),
            "rx_timeout" => rules::rx_timeout(&value).map(VifSetting::RxTimeout).map(Setting::Vif),
            "early_ack" => rules::early_ack(&value).map(VifSetting::EarlyAck).map(Setting::Vif),
            "tenant" => rules::tenant(&value).map(VifSetting::Tenant).map(Setting::Vif),
            "rate" => rules::rate(&value).map(LinkSetting::Rate).map(Setting::Link),
            "rx_rate" => rules::rate(&value).map(LinkSetting::RxRate).map(Setting::Link),
            "scheduler" => rules::scheduler(&value).map(LinkSetting::Scheduler).map(Setting::Link),
            "prioritize" => rules::flag(&value).map(LinkSetting::Prioritize).map(Setting::Link),
            "refill" => rules::refill(&value).map(LinkSetting::Refill).map(Setting::Link),
            // `delay` is its old name.
            "idle_timeout" | "delay" => rules::idle_timeout(&value).map(LinkSetting::IdleTimeout).map(Setting::Link),
            "isolate" => rules::flag(&value).map(LinkSetting::Isolate).map(Setting::Link),
            "rx_pool" => rules::pool(&value).map(LinkSetting::RxPool).map(Setting::Link),
            _ if let Some(link) = key.strip_prefix("min_rate_on.") => {
                rules::min_rate(&value).map(|min_rate| Setting::MinRateOn { link: link.to_owned(), min_rate })
            }
            _ => match Direction::ALL.into_iter().find_map(|direction| share_setting(direction, key, &value)) {
                Some(setting) => setting,
                None => return Err(SettingError::Unknown(key.to_owned())),
            },
        };
        setting.map_err(|wrong| SettingError::Value { key: key.to_owned(), wrong })
    }
}

/// Parses a key of a share; none if it is no such key.
fn share_setting(direction: Direction, key: &str, value: &DeValue) -> Option<Result<Setting, rules::Phrase>> {
    let keys = direction.keys();
    let setting = match key {
        key if key == keys.weight => rules::weight(value).map(ShareSetting::Weight),
        key if key == keys.min_rate => rules::min_rate(value).map(ShareSetting::MinRate),
        key if key == keys.max_rate => rules::rate(value).map(ShareSetting::MaxRate),
        key if key == keys.burst => rules::burst(value).map(ShareSetting::Burst),
        key if key == keys.max_frames => rules::frames(value).map(ShareSetting::MaxFrames),
        key if key == keys.frame_burst => rules::frame_burst(value).map(ShareSetting::FrameBurst),
        _ => return None,
    };
    Some(setting.map(|setting| Setting::Share(direction, setting)))
}

fn unknown_setting(key: &str) -> String {
    // Without the name and `min_rate_on`.
    let of_share = &TENANT_KEYS[1..TENANT_KEYS.len() - 1];
    let known = of_share.iter().chain(&VIF_SETTINGS).chain(&LINK_SETTINGS).copied();
    let hint = nearest(key, known).map_or(String::new(), |name| format!(", did you mean `{name}`?"));
    let [share, vif, link] = [of_share.join(", "), VIF_SETTINGS.join(", "), LINK_SETTINGS.join(", ")];
    let key = key.escape_debug();
    format!(
        "`{key}` cannot be set{hint} (of a vif or tenant: {share}; of a tenant: min_rate_on.LINK; of a vif: {vif}; of a link: {link})"
    )
}

impl Policy {
    /// Changes one setting of the vif, tenant or link named `target`; the setting determines which. No vif has the name of a
    /// tenant.
    ///
    /// # Errors
    /// No such target, or what would be wrong with the resulting policy; nothing is changed then.
    pub fn apply(&mut self, target: &str, setting: Setting) -> Result<(), SettingError> {
        let mut next = self.clone();
        let vifs = self.vifs.iter().map(|vif| vif.name.as_str());
        let tenants = self.tenants.iter().map(|tenant| tenant.name.as_str());
        let links = self.links.iter().map(|link| link.name.as_str());
        match setting {
            Setting::Share(direction, setting) => {
                let vif = next.vifs.iter_mut().find(|vif| vif.name == target).map(|vif| &mut vif.shares);
                let tenant = next.tenants.iter_mut().find(|tenant| tenant.name == target);
                let of_tenant = tenant.map(|tenant| {
                    // A guarantee on each link takes the place of those on some.
                    if matches!((direction, setting), (Direction::Tx, ShareSetting::MinRate(_))) {
                        tenant.min_rate_on.clear();
                    }
                    &mut tenant.shares
                });
                let Some(shares) = vif.or(of_tenant) else {
                    let kind = if self.tenants.is_empty() { "vif" } else { "vif or tenant" };
                    return Err(SettingError::NoTarget(unknown_name(kind, target, vifs.chain(tenants))));
                };
                shares.set(direction, setting);
            }
            Setting::MinRateOn { link, min_rate } => match next.tenants.iter_mut().find(|tenant| tenant.name == target)
            {
                Some(tenant) => drop(tenant.min_rate_on.insert(link, min_rate)),
                None => return Err(SettingError::NoTarget(unknown_name("tenant", target, tenants))),
            },
            Setting::Vif(setting) => match next.vifs.iter_mut().find(|vif| vif.name == target) {
                Some(vif) => setting.apply(vif),
                None => return Err(SettingError::NoTarget(unknown_name("vif", target, vifs))),
            },
            Setting::Link(setting) => match next.links.iter_mut().find(|link| link.name == target) {
                Some(link) => setting.apply(link)?,
                None => return Err(SettingError::NoTarget(unknown_name("link", target, links))),
            },
        }
        self.advance(next)
    }
}

impl VifSetting {
    fn apply(self, vif: &mut Vif) {
        match self {
            VifSetting::RxQueue(bytes) => vif.rx_queue = bytes,
            VifSetting::RxTimeout(time) => vif.rx_timeout = time,
            VifSetting::EarlyAck(mode) => vif.early_ack = mode,
            VifSetting::Tenant(tenant) => vif.tenant = tenant,
        }
    }
}

impl LinkSetting {
    fn apply(self, link: &mut Link) -> Result<(), OtherScheduler> {
        match self {
            LinkSetting::Rate(rate) => link.rate = rate,
            LinkSetting::RxRate(rate) => link.rx_rate = rate,
            LinkSetting::Scheduler(kind) if kind.name() == link.scheduler.name() => {}
            LinkSetting::Scheduler(kind) => link.scheduler = kind,
            LinkSetting::Prioritize(prioritize) => {
                belongs_to("prioritize", &["wrr"], link.scheduler)?;
                link.scheduler = SchedulerKind::Wrr { prioritize };
            }
            LinkSetting::Refill(refill) => {
                belongs_to("refill", &["netback"], link.scheduler)?;
                link.scheduler = SchedulerKind::Netback { refill };
            }
            LinkSetting::IdleTimeout(time) => link.idle_timeout = time,
            LinkSetting::Isolate(isolate) => link.isolate = isolate,
            LinkSetting::RxPool(bytes) => link.rx_pool = bytes,
        }
        Ok(())
    }
}
