//! Where a frame goes: learn, look up, refuse spoofed sources.
//!
//! A learning bridge (IEEE 802.1Q, 8.7 and 8.8) that learns for each VLAN apart, with two additions for hostile guests:
//! what a port is [pinned](AntiSpoofing) to, no other port can take, and each port has a number of learned addresses of its own,
//! so that one that makes up addresses pushes out only its own.

mod anti_spoofing;
mod place;

pub use anti_spoofing::AntiSpoofing;

use crate::PortId;
use crate::packet::{Ethernet, Mac};
use crate::stats::DropReason;
use crate::table::Table;
use crate::time::Nanos;
use place::{Place, is_of, key};

/// How long an address is remembered that no longer sends (802.1Q, table 8-6: 300 s).
pub const AGEING: Nanos = Nanos::from_millis(300_000);

/// Addresses learned from one guest at most. A guest with a pinned MAC address needs none.
pub const GUEST_ADDRESSES: usize = 64;

/// Addresses learned from one uplink at most.
pub const UPLINK_ADDRESSES: usize = 4096;

/// What the switch says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To one port.
    To(PortId),
    /// To every port that may hear this sender, except the sender: [`Switch::flood`]. They are two or more.
    Flood,
    /// To nobody.
    Drop(DropReason),
}

/// How a switch is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Whether guests reach the uplinks only.
    pub isolate: bool,
    /// A random number that guests do not know: it keys the address table's hash.
    pub seed: u64,
}

/// A MAC address that is pinned to another port already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{mac} belongs to port {} already; right is an address of its own for each port", port.0)]
pub struct Taken {
    /// The address.
    pub mac: Mac,
    /// Whose it is.
    pub port: PortId,
}

/// A switch.
pub struct Switch {
    isolate: bool,
    table: Table<Place>,
    /// By port number.
    members: Vec<Option<Member>>,
    ports: Vec<PortId>,
    uplinks: Vec<PortId>,
}

/// An attached port.
struct Member {
    is_uplink: bool,
    anti_spoofing: AntiSpoofing,
    learned: Learned,
}

/// The addresses learned from a port, as a ring: a new one takes the place of the oldest.
struct Learned {
    keys: Vec<u64>,
    limit: usize,
    oldest: usize,
}

impl Learned {
    fn new(limit: usize) -> Learned {
        Learned { keys: Vec::with_capacity(limit), limit, oldest: 0 }
    }

    /// Adds a key; returns the one it replaces.
    fn push(&mut self, key: u64) -> Option<u64> {
        if self.keys.len() < self.limit {
            self.keys.push(key);
            return None;
        }
        let replaced = std::mem::replace(&mut self.keys[self.oldest], key);
        self.oldest = (self.oldest + 1) % self.limit;
        Some(replaced)
    }
}

impl Switch {
    /// A switch without ports.
    pub fn new(config: Config) -> Switch {
        let Config { isolate, seed } = config;
        Switch { isolate, table: Table::new(seed), members: Vec::new(), ports: Vec::new(), uplinks: Vec::new() }
    }

    /// Attaches a guest's port. A port that is attached is attached anew: its learned addresses are forgotten.
    ///
    /// # Errors
    /// The pinned MAC address is another port's; then nothing changed.
    pub fn attach(&mut self, port: PortId, anti_spoofing: AntiSpoofing) -> Result<(), Taken> {
        if let Some(mac) = anti_spoofing.mac
            && let Some(place) = self.pinned(mac)
            && place.port != port
        {
            return Err(Taken { mac, port: place.port });
        }
        let limit = if anti_spoofing.mac.is_some() { 0 } else { GUEST_ADDRESSES };
        self.join(port, Member { is_uplink: false, anti_spoofing, learned: Learned::new(limit) });
        Ok(())
    }

    /// Attaches a port that leads to the world: isolation does not bind it.
    pub fn attach_uplink(&mut self, port: PortId) {
        self.join(
            port,
            Member { is_uplink: true, anti_spoofing: AntiSpoofing::default(), learned: Learned::new(UPLINK_ADDRESSES) },
        );
        self.uplinks.push(port);
    }

    fn join(&mut self, port: PortId, member: Member) {
        self.detach(port);
        if self.members.len() <= port.index() {
            self.members.resize_with(port.index() + 1, || None);
        }
        let pinned = member.anti_spoofing.mac;
        self.members[port.index()] = Some(member);
        self.ports.push(port);
        self.table.reserve(self.members.iter().flatten().map(|member| member.learned.limit + 1).sum());
        if let Some(mac) = pinned {
            self.table.remove_where(|known| is_of(known, mac));
            self.table.insert(key(mac, 0), Place::pinned(port));
        }
    }

    /// Detaches a port and forgets its addresses. Nothing happens if it is not attached.
    pub fn detach(&mut self, port: PortId) {
        let Some(member) = self.members.get_mut(port.index()).and_then(Option::take) else { return };
        self.ports.retain(|other| *other != port);
        self.uplinks.retain(|other| *other != port);
        let pinned = member.anti_spoofing.mac.map(|mac| key(mac, 0));
        for key in member.learned.keys.into_iter().chain(pinned) {
            self.forget(key, port);
        }
    }

    /// Sets whether guests reach the uplinks only.
    pub fn isolate(&mut self, isolate: bool) {
        self.isolate = isolate;
    }

    /// Judges a frame by its first bytes, and learns from it where its sender is.
    ///
    /// The head holds at least Ethernet header and tags, and for ports with pinned addresses the IP headers.
    #[inline]
    pub fn forward(&mut self, from: PortId, head: &[u8], now: Nanos) -> Verdict {
        match self.place(from, head, now) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    #[inline]
    fn place(&mut self, from: PortId, head: &[u8], now: Nanos) -> Result<Verdict, DropReason> {
        let frame = Ethernet::new_checked(head).map_err(|_| DropReason::Malformed)?;
        let Some(Some(member)) = self.members.get(from.index()) else { return Err(DropReason::NoDestination) };
        let (is_uplink, is_pinned) = (member.is_uplink, member.anti_spoofing.mac.is_some());
        member.anti_spoofing.check(&frame)?;
        if !is_pinned {
            self.learn(from, &frame, now)?;
        }

        let destination = frame.destination();
        if destination.is_multicast() {
            return if destination.is_bridge_group() { Err(DropReason::NoDestination) } else { self.spread(from) };
        }
        let Some(to) = self.find(destination, frame.vlan(), now) else { return self.spread(from) };
        let barred = to == from || self.isolate && !is_uplink && !self.is_uplink(to);
        if barred { Err(DropReason::NoDestination) } else { Ok(Verdict::To(to)) }
    }

    /// The ports a flooded frame goes to: all but the sender, or the uplinks alone if isolation says so.
    pub fn flood(&self, from: PortId) -> impl Iterator<Item = PortId> + '_ {
        let heard = if self.isolate && !self.is_uplink(from) { &self.uplinks } else { &self.ports };
        heard.iter().copied().filter(move |port| *port != from)
    }

    /// A flood, told simpler where it reaches one port or none.
    fn spread(&self, from: PortId) -> Result<Verdict, DropReason> {
        let mut heard = self.flood(from);
        match (heard.next(), heard.next()) {
            (None, _) => Err(DropReason::NoDestination),
            (Some(only), None) => Ok(Verdict::To(only)),
            _ => Ok(Verdict::Flood),
        }
    }

    /// Where an address is, as far as is known.
    #[inline]
    fn find(&self, mac: Mac, vlan: u16, now: Nanos) -> Option<PortId> {
        let place = self.table.get(key(mac, vlan)).filter(|place| now.since(place.seen) < AGEING);
        place.or_else(|| self.pinned(mac)).map(|place| place.port)
    }

    /// Where an address is pinned.
    fn pinned(&self, mac: Mac) -> Option<Place> {
        self.table.get(key(mac, 0)).filter(Place::is_pinned)
    }

    /// Remembers where a frame's sender is.
    #[inline]
    fn learn(&mut self, from: PortId, frame: &Ethernet<'_>, now: Nanos) -> Result<(), DropReason> {
        let key = key(frame.source(), frame.vlan());
        match self.table.get_mut(key) {
            Some(place) if place.port == from => {
                place.seen = now;
                Ok(())
            }
            _ => self.learn_anew(from, frame.source(), key, now),
        }
    }

    /// The rarer part of [`Switch::learn`]: the sender is new, or was at another port.
    #[cold]
    fn learn_anew(&mut self, from: PortId, mac: Mac, key: u64, now: Nanos) -> Result<(), DropReason> {
        if !mac.is_station() {
            return Err(DropReason::Malformed);
        }
        if self.pinned(mac).is_some() {
            return Err(DropReason::SpoofedMac);
        }
        let Some(Some(member)) = self.members.get_mut(from.index()) else { return Ok(()) };
        if let Some(replaced) = member.learned.push(key) {
            self.forget(replaced, from);
        }
        self.table.insert(key, Place { port: from, seen: now });
        Ok(())
    }

    /// Forgets where an address is, if it is at `port`.
    fn forget(&mut self, key: u64, port: PortId) {
        if self.table.get(key).is_some_and(|place| place.port == port) {
            self.table.remove(key);
        }
    }

    #[inline]
    fn is_uplink(&self, port: PortId) -> bool {
        matches!(self.members.get(port.index()), Some(Some(member)) if member.is_uplink)
    }
}

#[cfg(test)]
mod tests;
