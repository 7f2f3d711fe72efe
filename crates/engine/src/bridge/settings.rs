//! Changes to a bridge between two rounds: its ports, their shares, the scheduler, captures.

use super::Bridge;
use crate::entry::{Attached, PortEntry, RxState, Turn};
use crate::forward::{Fabric, UPLINK};
use crate::waiters::Waiters;
use fairlane_core::PortId;
use fairlane_core::receive::Receive;
use fairlane_core::sched::{Scheduler, Share};
use fairlane_core::stats::{Counters, DropReason};
use fairlane_core::switch::{AntiSpoofing, Taken};
use fairlane_core::time::Nanos;
use fairlane_port::Port;
use fairlane_port::capture::{Captured, Recorder};

impl Bridge {
    /// Attaches the uplink and replaces an earlier one.
    pub fn set_uplink(&mut self, port: Box<dyn Port>) {
        let share = Share::of_weight(1);
        self.fabric.switch.attach_uplink(UPLINK);
        self.fabric.entries[UPLINK.index()] = Some(Box::new(PortEntry::new("uplink".to_owned(), port, share)));
    }

    /// Attaches a guest's port under the lowest free number.
    ///
    /// # Errors
    /// Its MAC address is pinned to another port; then nothing changed.
    pub fn add(
        &mut self,
        name: &str,
        port: Box<dyn Port>,
        share: Share,
        anti_spoofing: AntiSpoofing,
        now: Nanos,
    ) -> Result<PortId, Taken> {
        let index = if self.vacant == 0 { None } else { self.fabric.entries[1..].iter().position(Option::is_none) };
        let index = index.map_or(self.fabric.entries.len(), |vacant| vacant + 1);
        let id = PortId(index as u32);
        let mut entry = PortEntry::new(name.to_owned(), port, share);
        entry.judged_by_ip = !anti_spoofing.addresses.is_empty();
        entry.waiters = Waiters::of(self.guests);
        let receive = entry.receive;
        self.fabric.switch.attach(id, anti_spoofing)?;
        if index == self.fabric.entries.len() {
            self.fabric.entries.push(None);
        } else {
            self.vacant -= 1;
        }
        self.fabric.entries[index] = Some(Box::new(entry));
        self.names.insert(name.to_owned(), id);
        self.guests += 1;
        self.scheduler.configure(id, share, now);
        self.fabric.receivers.pool.reweigh(0, receive.share.weight);
        self.fabric.receivers.scheduler.configure(id, receive.share, now);
        self.set_idle(id);
        Ok(id)
    }

    /// Detaches and closes a guest's port. Frames in its ring stay there, frames queued for it are dropped, and senders that wait
    /// for it send again. None if there is no such port.
    pub fn remove(&mut self, port: PortId, now: Nanos) -> Option<()> {
        if port == UPLINK {
            return None;
        }
        self.leave_idle(port);
        let mut entry = self.fabric.entries.get_mut(port.index())?.take()?;
        self.names.remove(&entry.name);
        self.vacant += 1;
        entry.waiters.release(|sender, _, _| {
            if let Some(sender) = self.fabric.entry(sender) {
                sender.turn = Turn::Active;
            }
            self.scheduler.activate(sender, now);
            true
        });
        if let Turn::Parked(on) = entry.turn
            && let Some(on) = self.fabric.entry(on)
        {
            on.waiters.release(|sender, _, _| sender == port);
        }
        let Fabric { receivers, touched, switch, .. } = &mut self.fabric;
        entry.drop_queue(receivers, DropReason::ReceiverDown);
        receivers.pool.reweigh(entry.receive.share.weight, 0);
        receivers.remove(port);
        touched.retain(|touched| *touched != port);
        switch.detach(port);
        self.held.retain(|service| service.port != port);
        self.contended.retain(|on| *on != port);
        self.muted.retain(|muted| *muted != port);
        self.accelerated.retain(|other| *other != port);
        self.scheduler.remove(port);
        self.forget_tenant(entry.tenant);
        Some(())
    }

    /// The number of a guest's port, by name.
    pub fn find(&self, name: &str) -> Option<PortId> {
        self.names.get(name).copied()
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of all ports.
    pub fn ports(&self) -> Vec<PortId> {
        let entries = self.fabric.entries.iter().enumerate();
        entries.filter(|(_, entry)| entry.is_some()).map(|(index, _)| PortId(index as u32)).collect()
    }

    /// The counters of a port.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        Some(self.fabric.entries.get(port.index())?.as_ref()?.counters)
    }

    /// Number of frames in a guest's receive queue.
    pub fn queued(&self, port: PortId) -> usize {
        self.fabric.entries.get(port.index()).and_then(Option::as_ref).map_or(0, |entry| entry.queue.len())
    }

    /// A port, for its control functions.
    pub fn port(&mut self, port: PortId) -> Option<&mut dyn Port> {
        Some(&mut *self.fabric.entry(port)?.port)
    }

    /// Starts to capture a port's frames. Returns false if a capture is running.
    pub fn start_capture(&mut self, port: PortId, recorder: Recorder) -> bool {
        let Some(entry) = self.fabric.entries.get_mut(port.index()) else { return false };
        let Some(mut taken) = entry.take() else { return false };
        let started = matches!(taken.port, Attached::Plain(_));
        taken.port = match taken.port {
            Attached::Plain(port) => Attached::Captured(Box::new(Captured::new(port, recorder))),
            captured => captured,
        };
        *entry = Some(taken);
        started
    }

    /// Ends a capture, if there is one.
    pub fn stop_capture(&mut self, port: PortId) {
        let Some(entry) = self.fabric.entries.get_mut(port.index()) else { return };
        let Some(mut taken) = entry.take() else { return };
        taken.port = match taken.port {
            Attached::Captured(captured) => Attached::Plain(captured.stop()),
            plain => plain,
        };
        *entry = Some(taken);
    }

    /// Changes a port's share, from the next decision on.
    pub fn set_share(&mut self, port: PortId, share: Share, now: Nanos) {
        if let Some(entry) = self.fabric.entry(port) {
            entry.share = share;
            self.scheduler.configure(port, entry.effective_share(), now);
            self.refresh(port);
        }
    }

    /// Changes how frames for a guest are queued and scheduled, from the next decision on. Queued frames stay.
    pub fn set_receive(&mut self, port: PortId, receive: Receive, now: Nanos) {
        let Some(entry) = self.fabric.entry(port).filter(|_| port != UPLINK) else { return };
        let before = std::mem::replace(&mut entry.receive, receive);
        self.fabric.receivers.pool.reweigh(before.share.weight, receive.share.weight);
        self.fabric.receivers.scheduler.configure(port, receive.share, now);
        self.refresh(port);
    }

    /// Changes the memory of all receive queues. Queued frames stay.
    pub fn set_receive_pool(&mut self, bytes: u64) {
        self.fabric.receivers.pool.set_limit(bytes);
    }

    /// Applies a port's limit, which one of its events may have changed.
    pub fn apply_limit(&mut self, port: PortId, now: Nanos) {
        let Some(entry) = self.fabric.entry(port).filter(|_| port != UPLINK) else { return };
        let limit = entry.port.limit();
        if entry.limit != limit {
            entry.limit = limit;
            self.scheduler.configure(port, entry.effective_share(), now);
            self.refresh(port);
        }
    }

    /// Changes the source addresses that a port may use, from the next frame on.
    ///
    /// # Errors
    /// The MAC address is pinned to another port; then nothing changed.
    pub fn set_anti_spoofing(&mut self, port: PortId, anti_spoofing: AntiSpoofing) -> Result<(), Taken> {
        let judged_by_ip = !anti_spoofing.addresses.is_empty();
        if port == UPLINK || self.fabric.entry(port).is_none() {
            return Ok(());
        }
        self.fabric.switch.attach(port, anti_spoofing)?;
        if let Some(entry) = self.fabric.entry(port) {
            entry.judged_by_ip = judged_by_ip;
        }
        Ok(())
    }

    /// Changes whether guests reach the uplink only, from the next frame on.
    pub fn set_isolate(&mut self, isolate: bool) {
        self.fabric.switch.isolate(isolate);
    }

    /// Changes the rate of the uplink, if there is one.
    pub fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        if let Some(entry) = self.fabric.entry(UPLINK) {
            entry.port.set_rate(rate, now);
        }
    }

    /// Changes the rate of what guests receive from the uplink together. Queued frames stay.
    pub fn set_rx_rate(&mut self, rate: Option<u64>, now: Nanos) {
        self.fabric.receivers.pace.set_rate(rate, now);
    }

    /// Replaces the scheduler. Ports keep their frames, their shares, their tenants and what they wait for.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>, now: Nanos) {
        self.scheduler = scheduler;
        for (id, tenant) in self.tenants.iter() {
            self.scheduler.configure_tenant(id, tenant.on(&self.name).tx, now);
        }
        // The new scheduler does not know these services; the old one is not charged for them.
        for service in self.held.drain(..) {
            if let Some(entry) = self.fabric.entry(service.port) {
                entry.turn = Turn::Active;
            }
        }
        for (index, entry) in self.fabric.entries.iter().enumerate().skip(1) {
            if let Some(entry) = entry {
                entry.enter_senders(PortId(index as u32), &mut *self.scheduler, now);
            }
        }
    }

    /// Replaces the scheduler of receivers. Queued frames stay.
    pub fn set_receivers_scheduler(&mut self, scheduler: Box<dyn Scheduler>, now: Nanos) {
        let Fabric { entries, receivers, .. } = &mut self.fabric;
        receivers.scheduler = scheduler;
        for (id, tenant) in self.tenants.iter() {
            receivers.scheduler.configure_tenant(id, tenant.shares.rx, now);
        }
        for (index, entry) in entries.iter().enumerate().skip(1) {
            if let Some(entry) = entry {
                entry.enter_receivers(PortId(index as u32), &mut *receivers.scheduler, now);
            }
        }
    }
}

impl PortEntry {
    /// Enters the port into the link's scheduler, which does not know it or has it elsewhere.
    pub(super) fn enter_senders(&self, port: PortId, scheduler: &mut dyn Scheduler, now: Nanos) {
        scheduler.assign(port, self.tenant);
        scheduler.configure(port, self.effective_share(), now);
        if self.turn == Turn::Active {
            scheduler.activate(port, now);
        }
    }

    /// The same for the receivers' scheduler.
    pub(super) fn enter_receivers(&self, port: PortId, scheduler: &mut dyn Scheduler, now: Nanos) {
        scheduler.assign(port, self.tenant);
        scheduler.configure(port, self.receive.share, now);
        if self.rx_state == RxState::Ready {
            scheduler.activate(port, now);
        }
    }
}
