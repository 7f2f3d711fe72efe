//! What an administrator writes (TOML) and changes while it runs.
//!
//! A file is read whole and every problem told ([`Policy::parse`]); a running policy changes by one setting
//! ([`Policy::apply`]) or by a newer file ([`Policy::changes`]). All three go by the same rules and words.

#![forbid(unsafe_code)]

mod change;
mod check;
mod fixed;
mod found;
mod parse;
pub mod problem;
mod rules;
mod section;
mod setting;
#[cfg(test)]
mod tests;
pub mod units;

pub use change::Change;
pub use check::OtherScheduler;
pub use fixed::Fixed;
pub use found::Terms;
pub use parse::{CONTROL, renamed_keys};
pub use setting::{LinkSetting, Setting, SettingError, VifSetting};

use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::sched::{SchedulerKind, Share};
use fairlane_core::time::Nanos;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A whole policy file, checked. Rates are bits a second, sizes bytes, times nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The control socket; `fairlane ctl` talks to it.
    pub control: PathBuf,
    /// Where metrics are served over HTTP, on loopback; none if absent.
    pub metrics: Option<SocketAddr>,
    /// The links, each a switch, a scheduler and a worker of its own. Names are unique.
    pub links: Vec<Link>,
    /// The guests' cards, in the order of the file. Names are unique, and so is how each is met.
    pub vifs: Vec<Vif>,
}

impl Policy {
    /// The link of this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }
}

/// A link: ports that can reach each other, and the uplink whose time they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Name, unique.
    pub name: String,
    /// Bits a second of the uplink, both ways; none for as fast as it goes.
    pub rate: Option<u64>,
    /// Which scheduler shares the link.
    pub scheduler: SchedulerKind,
    /// A vif without a frame for this long counts as inactive.
    pub idle_timeout: Nanos,
    /// Whether guests may talk to the uplink only.
    pub isolate: bool,
    /// The core the worker is pinned to; none lets the system choose.
    pub cpu: Option<usize>,
    /// What the link leads to.
    pub uplink: Uplink,
    /// Whether it takes every card of Xen's that no vif names, as such cards come and go.
    pub xen: bool,
}

/// What a link leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// Nothing: its guests reach only each other.
    None,
    /// A tap device of this name on the host.
    Tap {
        /// Interface name, at most 15 bytes.
        name: String,
    },
    /// A network card of the host, or what behaves like one: frames pass the host's own stack by.
    Card {
        /// Interface name, at most 15 bytes.
        name: String,
    },
    /// A wire in this process, whose far end is the uplink of another link.
    Wire {
        /// Name of the link at the far end, which has `Uplink::None` itself.
        to: String,
        /// Time a frame travels.
        delay: Nanos,
        /// Bytes that wait for the wire, at each end.
        queue: u64,
        /// Off: frames that find the queue full are dropped, as elsewhere, instead of waiting in the guest's ring.
        backpressure: bool,
    },
}

/// Bytes that wait before an uplink of this rate unless the policy says otherwise: 2 ms of it, 16 KiB to 256 KiB.
///
/// What waits there is out of the scheduler's hands, and filling it takes a guest's ring far down; what does not wait there
/// is missing when the worker is late.
pub fn uplink_queue(rate: Option<u64>) -> u64 {
    const MOST: u64 = 256 << 10;
    rate.map_or(MOST, |rate| (rate / 8 / 500).clamp(16 << 10, MOST))
}

/// How a card's driver is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Card {
    /// Over a vhost-user socket.
    VhostUser {
        /// Its path.
        socket: PathBuf,
        /// Whether the backend connects to a socket the frontend listens on, instead of listening itself.
        connect: bool,
        /// Who may.
        access: Access,
    },
    /// Through Xen, in whose driver domain the backend runs.
    Xen {
        /// The guest's name, or the number of its domain.
        guest: String,
        /// Which of its cards, from 0.
        device: u32,
    },
}

impl Card {
    /// Whether both are met at one place, of which the first must be let go before the other is there.
    pub fn shares_place_with(&self, other: &Card) -> bool {
        match (self, other) {
            (Card::VhostUser { socket: one, .. }, Card::VhostUser { socket: other, .. }) => one == other,
            _ => self == other,
        }
    }
}

/// Who may meet a card at its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The user whose the socket is, and who alone may be at its other end; anyone if absent.
    pub owner: Option<Account>,
    /// The group whose the socket is, and of which one must be; any if absent.
    pub group: Option<Account>,
    /// Permissions of the socket, of 0o777; what the process's mask leaves if absent.
    pub mode: Option<u32>,
}

/// A user, or a group. Names are the host's, and not looked up here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// By name.
    Name(String),
    /// By number.
    Number(u32),
}

/// A guest's card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vif {
    /// Name, unique. It has a `/` where nobody wrote the vif down ([`Policy::take_in`]).
    pub name: String,
    /// Name of its link.
    pub link: String,
    /// How its guest's driver is met.
    pub card: Card,
    /// Queue pairs offered, 1 to 16.
    pub queues: u16,
    /// What it is granted.
    pub share: Share,
    /// The only source MAC address it may use; any if absent.
    pub mac: Option<Mac>,
    /// The only source IP addresses it may use; any if empty.
    pub addresses: Vec<IpAddr>,
    /// Whether TCP data are acknowledged for its guest ([`fairlane_core::ack`]).
    pub early_ack: Mode,
}
