//! Fair sharing on two levels: among tenants, and among the ports of each tenant.
//!
//! Both levels are [`Fair`]: one for the link, whose members are tenants and the ports without one, and one for each tenant. A
//! decision asks both, so it takes constant time. What an idle port leaves goes to its tenant's other ports first, as in
//! hierarchical generalized processor sharing (Bennett and Zhang, "Hierarchical Packet Fair Queueing Algorithms", SIGCOMM 1996).
//!
//! A service that waits (for room at the uplink) is charged when it has ended. Meanwhile its tenant is back in its place on the
//! link, so that the tenant's other ports are served. If there are none, the tenant is in service on the link, too: like a port
//! that is, it remains a member of the fluid.
//!
//! # Bound
//! A tenant is at most 1.25 L ahead of the fluid and 3.25 L behind it, as a port of [`Fair`] is. A port of weight w, of W in its
//! tenant, is as much ahead of or behind its part of what its tenant got. So it is at most (1 + w / W) times as far from the
//! hierarchical fluid: at most 2.5 L ahead and 6.5 L behind.

use super::fair::Fair;
use super::heap::Heap;
use super::{After, Budget, Cost, Next, Scheduler, Share};
use crate::time::Nanos;
use crate::{PortId, TenantId};

/// [`Fair`] on two levels.
pub(super) struct Tenants {
    link_rate: Option<u64>,
    idle_timeout: Nanos,
    /// The link's members: port p as 2p, tenant t as 2t + 1.
    link: Fair,
    groups: Vec<Option<Group>>,
    places: Vec<Place>,
    /// Tenants all of whose active ports are above their `max_rate`, by the time when one is not.
    held: Heap,
    /// The port that was offered last, until it is charged. Its tenant is in service on the link.
    offered: Option<PortId>,
}

/// A tenant.
struct Group {
    /// Its ports by their numbers here, so that a tenant takes only as much memory as its own ports need.
    ports: Fair,
    /// The ports by these numbers, and the numbers that are free.
    members: Vec<PortId>,
    free: Vec<u32>,
    /// Number of active ports, and of those in service.
    active: usize,
    serving: usize,
    /// Those of its active ports that are not above their `max_rate` are in service: so is it on the link, though no port of it is
    /// offered.
    is_out: bool,
}

impl Group {
    /// Gives a port a number.
    fn add(&mut self, port: PortId) -> PortId {
        let number = self.free.pop().unwrap_or(self.members.len() as u32);
        if number as usize == self.members.len() {
            self.members.push(port);
        } else {
            self.members[number as usize] = port;
        }
        PortId(number)
    }

    /// Ends the service of one of its ports. Returns what is left for the link to serve.
    fn end_service(&mut self, after: After) -> After {
        self.serving -= 1;
        if self.active > 0 { After::Backlogged } else { after }
    }
}

/// A port's tenant, its number there, whether it is active, and whether its tenant was owed the service that it is in and that was not
/// charged at once.
#[derive(Clone, Copy, Default)]
struct Place {
    tenant: Option<TenantId>,
    number: PortId,
    active: bool,
    is_owed: bool,
}

fn of_port(port: PortId) -> PortId {
    PortId(2 * port.0)
}

fn of_tenant(tenant: TenantId) -> PortId {
    PortId(2 * tenant.0 + 1)
}

impl Tenants {
    /// A scheduler without ports and tenants. The arguments are those of [`Fair::new`].
    pub(super) fn new(link_rate: Option<u64>, idle_timeout: Nanos) -> Tenants {
        Tenants {
            link_rate,
            idle_timeout,
            link: Fair::new(link_rate, idle_timeout),
            groups: Vec::new(),
            places: Vec::new(),
            held: Heap::default(),
            offered: None,
        }
    }

    /// A port's tenant and its number there.
    fn member(&self, port: PortId) -> Option<(TenantId, PortId)> {
        let place = self.places.get(port.index())?;
        Some((place.tenant?, place.number))
    }

    fn group(&mut self, tenant: TenantId) -> Option<&mut Group> {
        self.groups.get_mut(tenant.index())?.as_mut()
    }

    /// Marks a port as active or not, and its tenant with it.
    fn set_active(&mut self, port: PortId, active: bool) {
        let Some(place) = self.places.get_mut(port.index()) else { return };
        if place.active == active {
            return;
        }
        place.active = active;
        if let Some(tenant) = place.tenant
            && let Some(group) = self.group(tenant)
        {
            if active { group.active += 1 } else { group.active -= 1 }
        }
    }

    /// Returns a tenant to its place on the link if its service was not charged yet: its other ports must not wait for that.
    fn put_back(&mut self, now: Nanos) {
        let Some(port) = self.offered.take() else { return };
        if let Some((tenant, _)) = self.member(port) {
            self.places[port.index()].is_owed = self.link.is_owed(of_tenant(tenant));
            self.link.defer(of_tenant(tenant), now);
        }
    }

    /// Lets a tenant with a port that can be served be chosen.
    fn enter(&mut self, tenant: TenantId, now: Nanos) {
        self.held.remove(tenant.0);
        self.link.activate(of_tenant(tenant), now);
        if self.group(tenant).is_some_and(|group| std::mem::take(&mut group.is_out)) {
            self.link.defer(of_tenant(tenant), now);
        }
    }

    /// Chooses a port of the tenant that the link chose; none if none can be served now.
    fn next_of(&mut self, tenant: TenantId, budget: Budget, now: Nanos) -> Option<Next> {
        let group = self.groups.get_mut(tenant.index())?.as_mut()?;
        let after = match group.ports.next(now) {
            Next::Serve(number, own) => {
                group.serving += 1;
                let port = group.members[number.index()];
                self.offered = Some(port);
                let (bytes, frames) = (own.bytes.min(budget.bytes), own.frames.min(budget.frames));
                return Some(Next::Serve(port, Budget { bytes, frames }));
            }
            Next::WaitUntil(time) => {
                self.held.push(tenant.0, time);
                After::Blocked
            }
            Next::Idle => After::Empty,
        };
        group.is_out = group.serving > 0;
        if !group.is_out {
            self.link.charge(of_tenant(tenant), Cost::default(), after, now);
        }
        None
    }
}

impl Scheduler for Tenants {
    fn configure_tenant(&mut self, tenant: TenantId, share: Share, now: Nanos) {
        let index = tenant.index();
        if self.groups.len() <= index {
            self.groups.resize_with(index + 1, || None);
            self.held.grow(index + 1);
        }
        let (link_rate, idle_timeout) = (self.link_rate, self.idle_timeout);
        self.groups[index].get_or_insert_with(|| Group {
            ports: Fair::new(link_rate, idle_timeout),
            members: Vec::new(),
            free: Vec::new(),
            active: 0,
            serving: 0,
            is_out: false,
        });
        self.link.configure(of_tenant(tenant), share, now);
    }

    fn remove_tenant(&mut self, tenant: TenantId) {
        if let Some(group) = self.groups.get_mut(tenant.index()) {
            *group = None;
            self.held.remove(tenant.0);
            self.link.remove(of_tenant(tenant));
        }
    }

    fn assign(&mut self, port: PortId, tenant: Option<TenantId>) {
        self.remove(port);
        if self.places.len() <= port.index() {
            self.places.resize(port.index() + 1, Place::default());
        }
        if let Some(tenant) = tenant
            && let Some(group) = self.group(tenant)
        {
            let number = group.add(port);
            self.places[port.index()] = Place { tenant: Some(tenant), number, ..Place::default() };
        }
    }

    fn configure(&mut self, port: PortId, share: Share, now: Nanos) {
        if self.places.len() <= port.index() {
            self.places.resize(port.index() + 1, Place::default());
        }
        let Some((tenant, number)) = self.member(port) else { return self.link.configure(of_port(port), share, now) };
        let Some(group) = self.group(tenant) else { return };
        group.ports.configure(number, share, now);
        // A port that was above its old `max_rate` may be below the new one.
        if group.active > 0 && self.held.remove(tenant.0) {
            self.enter(tenant, now);
        }
    }

    fn remove(&mut self, port: PortId) {
        self.set_active(port, false);
        let Some((tenant, number)) = self.member(port) else { return self.link.remove(of_port(port)) };
        self.places[port.index()] = Place::default();
        let is_offered = self.offered.take_if(|offered| *offered == port).is_some();
        let Some(group) = self.group(tenant) else { return };
        let is_served = group.ports.serves(number);
        group.ports.remove(number);
        group.free.push(number.0);
        let after = if is_served { group.end_service(After::Empty) } else { After::Empty };
        let was_last = group.serving == 0 && std::mem::take(&mut group.is_out);
        // Perhaps no other port is above its `max_rate`.
        if self.held.remove(tenant.0) {
            self.enter(tenant, Nanos(0));
        }
        if is_offered || was_last {
            self.link.charge(of_tenant(tenant), Cost::default(), after, Nanos(0));
        }
    }

    fn activate(&mut self, port: PortId, now: Nanos) {
        self.set_active(port, true);
        let Some((tenant, number)) = self.member(port) else { return self.link.activate(of_port(port), now) };
        let Some(group) = self.group(tenant) else { return };
        group.ports.activate(number, now);
        self.enter(tenant, now);
    }

    fn next(&mut self, now: Nanos) -> Next {
        self.put_back(now);
        while let Some((_, tenant)) = self.held.pop_until(now) {
            self.enter(TenantId(tenant), now);
        }
        loop {
            match self.link.next(now) {
                Next::Serve(PortId(id), budget) if id % 2 == 0 => return Next::Serve(PortId(id / 2), budget),
                Next::Serve(PortId(id), budget) => {
                    if let Some(next) = self.next_of(TenantId(id / 2), budget, now) {
                        return next;
                    }
                }
                idle => {
                    let held = self.held.peek().map(|(time, _)| time);
                    let link = if let Next::WaitUntil(time) = idle { Some(time) } else { None };
                    return held.into_iter().chain(link).min().map_or(Next::Idle, Next::WaitUntil);
                }
            }
        }
    }

    fn charge(&mut self, port: PortId, cost: Cost, after: After, now: Nanos) {
        let Some((tenant, number)) = self.member(port) else {
            return self.link.charge(of_port(port), cost, after, now);
        };
        let Some(group) = self.groups.get_mut(tenant.index()).and_then(Option::as_mut) else { return };
        let nanos = group.ports.dominant(&cost);
        let at_once = after == After::Backlogged && self.offered == Some(port);
        if at_once && group.ports.charge_at_once(number, nanos) {
            group.serving -= 1;
            self.offered = None;
            return self.link.charge_time(of_tenant(tenant), &cost, nanos, after, now);
        }
        if !group.ports.serves(number) {
            return;
        }
        group.ports.charge_time(number, &cost, nanos, after, now);
        if after != After::Backlogged {
            self.set_active(port, false);
        }
        let Some(group) = self.group(tenant) else { return };
        let after = group.end_service(after);
        group.is_out = false;
        if self.offered.take_if(|offered| *offered == port).is_none() {
            self.put_back(now);
            self.held.remove(tenant.0);
            self.link.recall(of_tenant(tenant), self.places[port.index()].is_owed, now);
        }
        self.link.charge_time(of_tenant(tenant), &cost, nanos, after, now);
    }

    fn defer(&mut self, port: PortId, now: Nanos) {
        let Some((tenant, number)) = self.member(port) else { return self.link.defer(of_port(port), now) };
        let Some(group) = self.group(tenant).filter(|group| group.ports.serves(number)) else { return };
        group.serving -= 1;
        group.ports.defer(number, now);
        if self.offered.take_if(|offered| *offered == port).is_some() {
            self.link.defer(of_tenant(tenant), now);
        }
        self.enter(tenant, now);
    }
}
