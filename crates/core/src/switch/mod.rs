//! Where a frame goes: refuse spoofed sources, learn, look up.
//!
//! A learning bridge (IEEE 802.1Q, 8.7 and 8.8) with independent learning per VLAN and two additions against hostile
//! guests: no other port can use an address that is [pinned](AntiSpoofing) to a port, and each port has its own limit
//! of learned addresses, so that a guest that invents addresses evicts only its own.

mod anti_spoofing;
mod location;

pub use anti_spoofing::AntiSpoofing;

use crate::PortId;
use crate::packet::{Ethernet, Mac};
use crate::stats::DropReason;
use crate::table::Table;
use crate::time::Nanos;
use location::{Location, is_of, key};

/// How long an address without traffic is remembered (802.1Q, table 8-6: 300 s).
pub const AGEING: Nanos = Nanos::from_millis(300_000);

/// The most addresses learned from one guest. A guest with a pinned MAC address needs none.
pub const GUEST_ADDRESSES: usize = 64;

/// The most addresses learned from one uplink.
pub const UPLINK_ADDRESSES: usize = 4096;

/// The switch's decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward to one port.
    To(PortId),
    /// Flood to the ports of [`Switch::flood`], which are two or more.
    Flood,
    /// Drop.
    Drop(DropReason),
}

/// The configuration of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Whether guests reach the uplinks only.
    pub isolate: bool,
    /// The secret key of the address table's hash: a random number that guests do not know.
    pub seed: u64,
}

/// A MAC address that is already pinned to another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{mac} is already pinned to port {}; each port needs an address of its own", port.0)]
pub struct Taken {
    /// The address.
    pub mac: Mac,
    /// The port it is pinned to.
    pub port: PortId,
}

/// A learning switch.
pub struct Switch {
    isolate: bool,
    table: Table<Location>,
    /// By port number.
    members: Vec<Option<Member>>,
    ports: Vec<PortId>,
    uplinks: Vec<PortId>,
    /// The most entries that all members' addresses take in the table.
    most: usize,
    /// Whether an address was ever learned.
    has_learned: bool,
}

/// An attached port.
struct Member {
    is_uplink: bool,
    anti_spoofing: AntiSpoofing,
    learned: Learned,
}

/// The addresses learned from a port, as a ring: a new one replaces the oldest.
struct Learned {
    keys: Vec<u64>,
    limit: usize,
    oldest: usize,
}

impl Learned {
    fn new(limit: usize) -> Learned {
        Learned { keys: Vec::with_capacity(limit), limit, oldest: 0 }
    }

    /// Adds a key. Returns the key it replaces.
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
        Switch {
            isolate,
            table: Table::new(seed),
            members: Vec::new(),
            ports: Vec::new(),
            uplinks: Vec::new(),
            most: 0,
            has_learned: false,
        }
    }

    /// Attaches a guest's port. If it is attached already, its learned addresses are forgotten.
    ///
    /// # Errors
    /// The MAC address is pinned to another port; then nothing changed.
    pub fn attach(&mut self, port: PortId, anti_spoofing: AntiSpoofing) -> Result<(), Taken> {
        if let Some(mac) = anti_spoofing.mac
            && let Some(location) = self.pinned(mac)
            && location.port != port
        {
            return Err(Taken { mac, port: location.port });
        }
        let limit = if anti_spoofing.mac.is_some() { 0 } else { GUEST_ADDRESSES };
        self.join(port, Member { is_uplink: false, anti_spoofing, learned: Learned::new(limit) });
        Ok(())
    }

    /// Attaches an uplink: isolation does not apply to it.
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
        self.most += member.learned.limit + 1;
        self.members[port.index()] = Some(member);
        self.ports.push(port);
        self.table.reserve(self.most);
        if let Some(mac) = pinned {
            // It looks at the whole table.
            if self.has_learned {
                self.table.remove_where(|known| is_of(known, mac));
            }
            self.table.insert(key(mac, 0), Location::pinned(port));
        }
    }

    /// Detaches a port and forgets its addresses. Nothing happens if it is not attached.
    pub fn detach(&mut self, port: PortId) {
        let Some(member) = self.members.get_mut(port.index()).and_then(Option::take) else { return };
        self.most -= member.learned.limit + 1;
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

    /// Decides where a frame goes from its first bytes, and learns its sender's port.
    ///
    /// `head` holds at least the Ethernet header and tags, and for ports with pinned addresses the IP headers.
    #[inline]
    pub fn forward(&mut self, from: PortId, head: &[u8], now: Nanos) -> Verdict {
        match self.decide(from, head, now) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    #[inline]
    fn decide(&mut self, from: PortId, head: &[u8], now: Nanos) -> Result<Verdict, DropReason> {
        let frame = Ethernet::new_checked(head).map_err(|_| DropReason::Malformed)?;
        let Some(Some(member)) = self.members.get(from.index()) else { return Err(DropReason::NoDestination) };
        let (is_uplink, is_pinned) = (member.is_uplink, member.anti_spoofing.mac.is_some());
        member.anti_spoofing.check(&frame)?;
        if !is_pinned {
            self.learn(from, &frame, now)?;
        }

        let destination = frame.destination();
        if destination.is_multicast() {
            return if destination.is_bridge_group() {
                Err(DropReason::NoDestination)
            } else {
                self.flood_verdict(from)
            };
        }
        let Some(to) = self.find(destination, frame.vlan(), now) else { return self.flood_verdict(from) };
        let forbidden = to == from || self.isolate && !is_uplink && !self.is_uplink(to);
        if forbidden { Err(DropReason::NoDestination) } else { Ok(Verdict::To(to)) }
    }

    /// The ports a flooded frame goes to: all but the sender, or only the uplinks for an isolated guest.
    pub fn flood(&self, from: PortId) -> impl Iterator<Item = PortId> + '_ {
        let ports = if self.isolate && !self.is_uplink(from) { &self.uplinks } else { &self.ports };
        ports.iter().copied().filter(move |port| *port != from)
    }

    /// The verdict of a flood, which may reach only one port or none.
    fn flood_verdict(&self, from: PortId) -> Result<Verdict, DropReason> {
        let mut ports = self.flood(from);
        match (ports.next(), ports.next()) {
            (None, _) => Err(DropReason::NoDestination),
            (Some(only), None) => Ok(Verdict::To(only)),
            _ => Ok(Verdict::Flood),
        }
    }

    /// The port of an address, if known.
    #[inline]
    fn find(&self, mac: Mac, vlan: u16, now: Nanos) -> Option<PortId> {
        let learned = self.table.get(key(mac, vlan)).filter(|location| now.since(location.seen) < AGEING);
        learned.or_else(|| self.pinned(mac)).map(|location| location.port)
    }

    /// The location of a pinned address.
    fn pinned(&self, mac: Mac) -> Option<Location> {
        self.table.get(key(mac, 0)).filter(Location::is_pinned)
    }

    /// Learns the port of a frame's sender.
    #[inline]
    fn learn(&mut self, from: PortId, frame: &Ethernet<'_>, now: Nanos) -> Result<(), DropReason> {
        let key = key(frame.source(), frame.vlan());
        match self.table.get_mut(key) {
            Some(location) if location.port == from => {
                location.seen = now;
                Ok(())
            }
            _ => self.learn_anew(from, frame.source(), key, now),
        }
    }

    /// The rare case of [`Switch::learn`]: the sender is new or moved to another port.
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
        self.table.insert(key, Location { port: from, seen: now });
        self.has_learned = true;
        Ok(())
    }

    /// Forgets an address if it is at `port`.
    fn forget(&mut self, key: u64, port: PortId) {
        if self.table.get(key).is_some_and(|location| location.port == port) {
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
