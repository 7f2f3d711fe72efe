//! The policy: a TOML file, and changes to it while the backend runs.
//!
//! [`Policy::parse`] reads a whole file and reports every problem; [`Files::load`] reads it with its drop-ins. A running policy
//! changes by one setting ([`Policy::apply`]), by one part ([`Policy::add`], [`Policy::remove`]) or by newer files
//! ([`Policy::changes`]). All use the same rules and messages.

#![forbid(unsafe_code)]

mod change;
mod check;
mod edit;
mod files;
mod fixed;
mod found;
mod parse;
pub mod problem;
mod rules;
mod schema;
mod section;
mod setting;
mod shares;
#[cfg(test)]
mod tests;
pub mod units;
mod write;

pub use change::Change;
pub use check::OtherScheduler;
pub use edit::Kind;
pub use files::{File, Files, Loaded, SAVED, drop_in_directory};
pub use fixed::Fixed;
pub use found::{Terms, is_found};
pub use parse::{CONTROL, renamed_keys};
pub use schema::schema;
pub use setting::{LinkSetting, Setting, SettingError, VifSetting};
pub use shares::{Direction, ShareSetting, Shares};

use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::receive::Receive;
use fairlane_core::sched::{SchedulerKind, Share};
use fairlane_core::time::Nanos;
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A checked policy. Rates are bits a second, sizes bytes, times nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The control socket, which `fairlane ctl` connects to.
    pub control: PathBuf,
    /// The address that serves metrics and the live page over HTTP, a loopback address if there is no token; not served if absent.
    pub metrics: Option<SocketAddr>,
    /// The file with the token that clients of that address must know.
    pub metrics_token: Option<PathBuf>,
    /// The control socket that only shows; none if absent.
    pub observe: Option<Observe>,
    /// Who may connect to the sockets of vifs that do not say so themselves.
    pub sockets: Access,
    /// The links, each with its own switch, scheduler and worker. Names are unique.
    pub links: Vec<Link>,
    /// Tenants, each the owner of several guests' cards. Names are unique.
    pub tenants: Vec<Tenant>,
    /// The guests' cards, in the order of the file. Names are unique, and so are sockets and Xen devices.
    pub vifs: Vec<Vif>,
}

impl Policy {
    /// The link with this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// A vif's tenant.
    pub fn tenant_of(&self, vif: &Vif) -> Option<&Tenant> {
        let name = vif.tenant.as_ref()?;
        self.tenants.iter().find(|tenant| tenant.name == *name)
    }

    /// What a link guarantees in a direction, to its tenants and to vifs without one, in bits a second. A tenant's vifs are
    /// guaranteed parts of what the tenant is.
    pub fn guaranteed(&self, link: &Link, direction: Direction) -> u64 {
        let here = self.vifs.iter().filter(|vif| vif.link == link.name);
        let owners: HashSet<&str> = here.clone().filter_map(|vif| vif.tenant.as_deref()).collect();
        let of_vifs = here.filter(|vif| vif.tenant.is_none()).map(|vif| vif.shares);
        let of_tenants = self.tenants.iter().filter(|tenant| owners.contains(tenant.name.as_str()));
        let all = of_vifs.chain(of_tenants.map(|tenant| tenant.on(&link.name)));
        all.fold(0, |sum, shares| direction.of(&shares).min_rate.saturating_add(sum))
    }

    /// Whether vifs of a link have tenants.
    pub fn has_tenants(&self, link: &str) -> bool {
        self.vifs.iter().any(|vif| vif.link == link && vif.tenant.is_some())
    }
}

/// A control socket that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observe {
    /// Its path.
    pub socket: PathBuf,
    /// Its group; the backend's own if absent.
    pub group: Option<Account>,
    /// Its permission bits, within 0o777.
    pub mode: u32,
}

/// An owner of guests. On each link they share what the tenant's share gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Unique name.
    pub name: String,
    /// Its shares of each link.
    pub shares: Shares,
    /// What is guaranteed to it on some links in place of its share's `min_rate`, by link, in bits a second; 0 for nothing.
    pub min_rate_on: BTreeMap<String, u64>,
}

impl Tenant {
    /// Its shares of a link.
    pub fn on(&self, link: &str) -> Shares {
        let Shares { tx, .. } = self.shares;
        let min_rate = self.min_rate_on.get(link).copied().unwrap_or(tx.min_rate);
        Shares { tx: Share { min_rate, ..tx }, ..self.shares }
    }
}

/// A link: ports that can reach each other and share an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Unique name.
    pub name: String,
    /// Rate of what guests send to the uplink, in bits a second; unlimited if absent. A wire has it in both directions.
    pub rate: Option<u64>,
    /// Rate of what guests receive from the uplink together, in bits a second; unlimited if absent.
    pub rx_rate: Option<u64>,
    /// The scheduler.
    pub scheduler: SchedulerKind,
    /// A vif without a frame for this long counts as inactive.
    pub idle_timeout: Nanos,
    /// Whether guests reach the uplink only, not each other.
    pub isolate: bool,
    /// The core the worker is pinned to; not pinned if absent.
    pub cpu: Option<usize>,
    /// The uplink.
    pub uplink: Uplink,
    /// Whether the link accepts every Xen card that no vif names, as such cards appear and disappear.
    pub xen: bool,
    /// Bytes that all receive queues of the link hold together.
    pub rx_pool: u64,
}

/// A link's connection to the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// None: guests reach only each other.
    None,
    /// A tap device of this name on the host.
    Tap {
        /// Interface name, at most 15 bytes.
        name: String,
    },
    /// A network card of the host, or an interface that works like one. Frames bypass the host's network stack.
    Card {
        /// Interface name, at most 15 bytes.
        name: String,
    },
    /// The same through AF_XDP: the card's driver hands frames over before the kernel makes packets of them. Frames to
    /// the card's own address remain the host's.
    Xdp {
        /// Interface name, at most 15 bytes.
        name: String,
    },
    /// A simulated wire in this process; its far end is the uplink of another link.
    Wire {
        /// Name of the link at the far end, whose own uplink is [`Uplink::None`].
        to: String,
        /// Propagation delay.
        delay: Nanos,
        /// Queue in front of the wire in bytes, at each end.
        queue: u64,
        /// Whether frames wait in the guest's ring while the queue is full. If not, they are dropped.
        backpressure: bool,
    },
}

/// The default queue of an uplink with this rate (bits a second), in bytes: 2 ms of it, 16 KiB to 256 KiB.
///
/// The scheduler cannot reorder queued frames, and filling a long queue drains much of a guest's ring. With a short
/// queue the uplink runs dry when the worker is late.
pub fn uplink_queue(rate: Option<u64>) -> u64 {
    const MAX: u64 = 256 << 10;
    rate.map_or(MAX, |rate| (rate / 8 / 500).clamp(16 << 10, MAX))
}

/// How the backend connects to a card's frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Card {
    /// Over a vhost-user socket.
    VhostUser {
        /// Its path.
        socket: PathBuf,
        /// Whether the backend connects to a socket the frontend listens on, instead of listening itself.
        connect: bool,
        /// Who may connect.
        access: Access,
        /// Whether packed rings are offered (virtio 1.2, section 2.8), besides split ones.
        packed: bool,
    },
    /// Over Xen's shared rings; the backend runs in a driver domain.
    Xen {
        /// The guest's name or domain number.
        guest: String,
        /// Number of its card, from 0.
        device: u32,
    },
}

impl Card {
    /// Whether both use the same socket or Xen device, so that one must be closed before the other is opened.
    pub fn shares_place_with(&self, other: &Card) -> bool {
        match (self, other) {
            (Card::VhostUser { socket: one, .. }, Card::VhostUser { socket: other, .. }) => one == other,
            _ => self == other,
        }
    }
}

/// Who may connect to a card's socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The socket's owner, the only user whose process may be the peer; any user if absent.
    pub owner: Option<Account>,
    /// The socket's group, which the peer must belong to; any group if absent.
    pub group: Option<Account>,
    /// Permission bits of the socket, within 0o777; those that the umask leaves if absent.
    pub mode: Option<u32>,
}

/// A user or a group. Names are the host's and are not resolved here.
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
    /// Unique name. It contains a `/` if the vif is not from the file ([`Policy::add_found_card`]).
    pub name: String,
    /// Name of its link.
    pub link: String,
    /// How the backend connects to the frontend.
    pub card: Card,
    /// Queue pairs offered, 1 to 16.
    pub queues: u16,
    /// Name of its tenant; none if it is a member of the link itself.
    pub tenant: Option<String>,
    /// Its shares of the link, or of its tenant's.
    pub shares: Shares,
    /// Most bytes in its receive queue.
    pub rx_queue: u64,
    /// Longest time in its receive queue.
    pub rx_timeout: Nanos,
    /// The only source MAC address it may use; any if absent.
    pub mac: Option<Mac>,
    /// The only source IP addresses it may use; any if empty.
    pub addresses: Vec<IpAddr>,
    /// When TCP data is acknowledged early for its guest ([`fairlane_core::ack`]).
    pub early_ack: Mode,
}

impl Vif {
    /// How its guest's frames are queued and scheduled.
    pub fn receive(&self) -> Receive {
        Receive { share: self.shares.rx, queue: self.rx_queue, timeout: self.rx_timeout }
    }
}
