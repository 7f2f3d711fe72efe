//! Writes parts of a policy as a file has them.

use super::found::is_found;
use super::rules::{IDLE_TIMEOUT, REFILL, WEIGHT, default_burst, default_frame_burst};
use super::units::{format_duration, format_rate, format_size};
use super::{Account, Card, Direction, Link, Policy, SchedulerKind, Shares, Tenant, Uplink, Vif, uplink_queue};
use fairlane_core::ack::Mode;
use fairlane_core::receive;
use fairlane_core::time::Nanos;
use std::collections::HashMap;
use std::fmt::Display;
use toml::Value;

/// What a saved file begins with.
const HEADER: &str = "\
# Written by `fairlane ctl save`: what was added, changed and removed while Fairlane ran. Each table replaces
# the one of its name in other files. The next `fairlane ctl save` writes this file anew.
";

impl Policy {
    /// The drop-in file that leads from `base` to this policy. Cards of Xen guests that no file names are left out.
    pub fn saved(&self, base: &Policy) -> String {
        let links = Difference::new(&base.links, &self.links, |link| &link.name);
        let tenants = Difference::new(&base.tenants, &self.tenants, |tenant| &tenant.name);
        let mut vifs = Difference::new(&base.vifs, &self.vifs, |vif| &vif.name);
        vifs.put.retain(|vif| !is_found(&vif.name));
        let mut file = Table(HEADER.to_owned());
        let removed = [("link", links.names()), ("tenant", tenants.names()), ("vif", vifs.names())];
        if removed.iter().any(|(_, names)| !names.is_empty()) {
            file.0 += "\n[remove]\n";
            for (kind, names) in removed.into_iter().filter(|(_, names)| !names.is_empty()) {
                file.key(kind, list(names));
            }
        }
        links.put.into_iter().for_each(|link| file.link(link));
        tenants.put.into_iter().for_each(|tenant| file.tenant(tenant));
        vifs.put.into_iter().for_each(|vif| file.vif(vif));
        file.0
    }
}

/// What leads from some parts to others.
struct Difference<'a, T> {
    /// Parts that are new or different.
    put: Vec<&'a T>,
    /// Names of parts that are gone.
    gone: Vec<&'a str>,
    name: fn(&T) -> &String,
}

impl<'a, T: PartialEq> Difference<'a, T> {
    fn new(old: &'a [T], new: &'a [T], name: fn(&T) -> &String) -> Self {
        let find = |parts: &'a [T]| -> HashMap<&'a str, &'a T> {
            parts.iter().map(|part| (name(part).as_str(), part)).collect()
        };
        let (before, after) = (find(old), find(new));
        let put = new.iter().filter(|part| before.get(name(part).as_str()) != Some(part)).collect();
        let gone = old.iter().map(|part| name(part).as_str()).filter(|name| !after.contains_key(name)).collect();
        Difference { put, gone, name }
    }

    /// The names that other files must not have: also those of new parts, in case that such a file is written later.
    fn names(&self) -> Vec<&'a str> {
        self.gone.iter().copied().chain(self.put.iter().map(|part| (self.name)(part).as_str())).collect()
    }
}

/// The text of a file.
struct Table(String);

impl Table {
    fn key(&mut self, key: &str, value: impl Display) {
        self.0 += &format!("{key} = {value}\n");
    }

    /// A value that is text in a file.
    fn text(&mut self, key: &str, value: impl Into<String>) {
        self.key(key, quoted(value));
    }

    /// A value other than the default.
    fn other<T: PartialEq + Copy, D: Display>(&mut self, key: &str, value: T, default: T, show: impl Fn(T) -> D) {
        if value != default {
            self.key(key, show(value));
        }
    }

    fn link(&mut self, link: &Link) {
        self.0 += "\n[[link]]\n";
        self.text("name", &link.name);
        self.other("rate", link.rate, None, rate);
        self.other("rx_rate", link.rx_rate, None, rate);
        self.other("scheduler", link.scheduler.name(), SchedulerKind::Fair.name(), quoted);
        match link.scheduler {
            SchedulerKind::Fair => {}
            SchedulerKind::Wrr { prioritize } => self.other("prioritize", prioritize, true, |flag| flag),
            SchedulerKind::Netback { refill } => self.other("refill", refill, REFILL, duration),
        }
        self.other("idle_timeout", link.idle_timeout, IDLE_TIMEOUT, duration);
        self.other("isolate", link.isolate, false, |flag| flag);
        if let Some(cpu) = link.cpu {
            self.key("cpu", cpu);
        }
        match &link.uplink {
            Uplink::None => {}
            Uplink::Tap { name } => self.text("uplink.tap", name),
            Uplink::Card { name } => self.text("uplink.card", name),
            Uplink::Xdp { name } => self.text("uplink.xdp", name),
            Uplink::Wire { to, delay, queue, backpressure } => {
                self.text("uplink.wire", to);
                self.other("uplink.delay", *delay, Nanos(0), duration);
                self.other("uplink.queue", *queue, uplink_queue(link.rate), size);
                self.other("uplink.backpressure", *backpressure, true, |flag| flag);
            }
        }
        self.other("xen", link.xen, false, |flag| flag);
        self.other("rx_pool", link.rx_pool, receive::POOL, size);
    }

    fn tenant(&mut self, tenant: &Tenant) {
        self.0 += "\n[[tenant]]\n";
        self.text("name", &tenant.name);
        self.shares(&tenant.shares);
        if !tenant.min_rate_on.is_empty() {
            let on = |(link, min_rate): (&String, &u64)| (link.clone(), self::min_rate(*min_rate));
            self.key("min_rate_on", Value::Table(tenant.min_rate_on.iter().map(on).collect()));
        }
    }

    fn vif(&mut self, vif: &Vif) {
        self.0 += "\n[[vif]]\n";
        self.text("name", &vif.name);
        self.text("link", &vif.link);
        if let Some(tenant) = &vif.tenant {
            self.text("tenant", tenant);
        }
        match &vif.card {
            Card::VhostUser { socket, connect, access, packed } => {
                self.text("socket", socket.to_string_lossy());
                self.other("connect", *connect, false, |flag| flag);
                for (key, account) in [("owner", &access.owner), ("group", &access.group)] {
                    match account {
                        Some(Account::Name(name)) => self.text(key, name),
                        Some(Account::Number(number)) => self.key(key, number),
                        None => {}
                    }
                }
                if let Some(mode) = access.mode {
                    self.text("mode", format!("{mode:04o}"));
                }
                self.other("packed", *packed, false, |flag| flag);
            }
            Card::Xen { guest, device } => self.text("xen", format!("{guest}/{device}")),
        }
        self.other("queues", vif.queues, 1, |queues| queues);
        self.shares(&vif.shares);
        self.other("rx_queue", vif.rx_queue, receive::QUEUE, size);
        self.other("rx_timeout", vif.rx_timeout, receive::TIMEOUT, duration);
        if let Some(mac) = vif.mac {
            self.text("mac", mac.to_string());
        }
        if !vif.addresses.is_empty() {
            self.key("addresses", list(vif.addresses.iter().map(ToString::to_string)));
        }
        match vif.early_ack {
            Mode::Off => {}
            Mode::Auto => self.key("early_ack", true),
            Mode::Always => self.text("early_ack", "always"),
        }
    }

    fn shares(&mut self, shares: &Shares) {
        for direction in Direction::ALL {
            let (keys, share) = (direction.keys(), direction.of(shares));
            match direction {
                Direction::Tx => self.other(keys.weight, share.weight, WEIGHT, |weight| weight),
                Direction::Rx if !shares.same_weight => self.key(keys.weight, share.weight),
                Direction::Rx => {}
            }
            self.other(keys.min_rate, share.min_rate, 0, min_rate);
            self.other(keys.max_rate, share.max_rate, None, rate);
            self.other(keys.burst, share.burst, default_burst(share.max_rate), size);
            self.other(keys.max_frames, share.max_frames, None, |frames| frames.unwrap_or(0));
            self.other(keys.frame_burst, share.frame_burst, default_frame_burst(share.max_frames), |frames| frames);
        }
    }
}

fn quoted(text: impl Into<String>) -> Value {
    Value::String(text.into())
}

fn list<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Value {
    Value::Array(texts.into_iter().map(quoted).collect())
}

fn rate(rate: Option<u64>) -> Value {
    quoted(rate.map_or("none".to_owned(), format_rate))
}

/// A guaranteed rate; 0 is none.
fn min_rate(min_rate: u64) -> Value {
    rate(Some(min_rate).filter(|min_rate| *min_rate > 0))
}

fn size(bytes: u64) -> Value {
    quoted(format_size(bytes))
}

fn duration(time: Nanos) -> Value {
    quoted(format_duration(time))
}
