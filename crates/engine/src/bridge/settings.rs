//! What may change on a bridge between two rounds: its ports, what they are granted, the scheduler, captures.

use super::Bridge;
use crate::forward::UPLINK;
use crate::slot::{Attached, Slot, Turn};
use fairlane_core::PortId;
use fairlane_core::sched::{Scheduler, Share};
use fairlane_core::stats::Counters;
use fairlane_core::switch::{Pins, Taken};
use fairlane_core::time::Nanos;
use fairlane_port::Port;
use fairlane_port::capture::{Captured, Recorder};

impl Bridge {
    /// Attaches the uplink, in place of the one that was there.
    pub fn set_uplink(&mut self, port: Box<dyn Port>) {
        let share = Share { weight: 1, min_rate: 0, max_rate: None, burst: 0 };
        self.fabric.switch.attach_uplink(UPLINK);
        self.fabric.slots[UPLINK.index()] = Some(Box::new(Slot::new("uplink".to_owned(), port, share)));
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
        pins: Pins,
        now: Nanos,
    ) -> Result<PortId, Taken> {
        let guests = &self.fabric.slots[1..];
        let index = guests.iter().position(Option::is_none).unwrap_or(guests.len()) + 1;
        let id = PortId(index as u32);
        let mut slot = Slot::new(name.to_owned(), port, share);
        slot.judged_by_ip = !pins.addresses.is_empty();
        self.fabric.switch.attach(id, pins)?;
        if index == self.fabric.slots.len() {
            self.fabric.slots.push(None);
        }
        self.fabric.slots[index] = Some(Box::new(slot));
        self.scheduler.configure(id, share, now);
        self.idle.push(id);
        Ok(id)
    }

    /// Takes a guest's port off and closes it. What waits in its ring stays there; whoever waited for it goes on.
    /// None if it is not there.
    pub fn remove(&mut self, port: PortId, now: Nanos) -> Option<()> {
        if port == UPLINK {
            return None;
        }
        while self.call(port, now) {}
        let slot = self.fabric.slots.get_mut(port.index())?.take()?;
        if let Turn::Parked(on) = slot.turn
            && let Some(on) = self.fabric.slot(on)
        {
            on.waiters.remove(port);
        }
        self.held.retain(|service| service.port != port);
        self.idle.retain(|idle| *idle != port);
        self.contended.retain(|on| *on != port);
        self.unheard.retain(|unheard| *unheard != port);
        self.fabric.touched.retain(|touched| *touched != port);
        self.fabric.switch.detach(port);
        self.accelerated.retain(|other| *other != port);
        self.scheduler.remove(port);
        Some(())
    }

    /// The number of a guest's port, by name.
    pub fn find(&self, name: &str) -> Option<PortId> {
        let named = |slot: &Option<Box<Slot>>| slot.as_ref().is_some_and(|slot| slot.name == name);
        let index = self.fabric.slots[1..].iter().position(named)?;
        Some(PortId(index as u32 + 1))
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of all ports.
    pub fn ports(&self) -> Vec<PortId> {
        let slots = self.fabric.slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.is_some()).map(|(index, _)| PortId(index as u32)).collect()
    }

    /// What passed through a port.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        Some(self.fabric.slots.get(port.index())?.as_ref()?.counters)
    }

    /// A port, to talk to about other things than frames.
    pub fn port(&mut self, port: PortId) -> Option<&mut dyn Port> {
        Some(&mut *self.fabric.slot(port)?.port)
    }

    /// Starts to record a port's frames. False if that is done already.
    pub fn start_capture(&mut self, port: PortId, recorder: Recorder) -> bool {
        let Some(slot) = self.fabric.slots.get_mut(port.index()) else { return false };
        let Some(mut taken) = slot.take() else { return false };
        let started = matches!(taken.port, Attached::Plain(_));
        taken.port = match taken.port {
            Attached::Plain(port) => Attached::Captured(Box::new(Captured::new(port, recorder))),
            captured => captured,
        };
        *slot = Some(taken);
        started
    }

    /// Ends a capture, if there is one.
    pub fn stop_capture(&mut self, port: PortId) {
        let Some(slot) = self.fabric.slots.get_mut(port.index()) else { return };
        let Some(mut taken) = slot.take() else { return };
        taken.port = match taken.port {
            Attached::Captured(captured) => Attached::Plain(captured.stop()),
            plain => plain,
        };
        *slot = Some(taken);
    }

    /// Changes what a port is granted, from the next decision on.
    pub fn set_share(&mut self, port: PortId, share: Share, now: Nanos) {
        if let Some(slot) = self.fabric.slot(port) {
            slot.share = share;
            self.scheduler.configure(port, slot.granted(), now);
        }
    }

    /// Takes a port's limit over, which may be another after one of its events.
    pub fn heed_limit(&mut self, port: PortId, now: Nanos) {
        let Some(slot) = self.fabric.slot(port).filter(|_| port != UPLINK) else { return };
        let limit = slot.port.limit();
        if slot.limit != limit {
            slot.limit = limit;
            self.scheduler.configure(port, slot.granted(), now);
        }
    }

    /// Changes the source addresses a port may use, from the next frame on.
    ///
    /// # Errors
    /// The MAC address is pinned to another port; then nothing changed.
    pub fn set_pins(&mut self, port: PortId, pins: Pins) -> Result<(), Taken> {
        let judged_by_ip = !pins.addresses.is_empty();
        if port == UPLINK || self.fabric.slot(port).is_none() {
            return Ok(());
        }
        self.fabric.switch.attach(port, pins)?;
        if let Some(slot) = self.fabric.slot(port) {
            slot.judged_by_ip = judged_by_ip;
        }
        Ok(())
    }

    /// Changes whether guests reach the uplink only, from the next frame on.
    pub fn set_isolate(&mut self, isolate: bool) {
        self.fabric.switch.isolate(isolate);
    }

    /// Changes the rate of the uplink, if it has one.
    pub fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        if let Some(slot) = self.fabric.slot(UPLINK) {
            slot.port.set_rate(rate, now);
        }
    }

    /// Replaces the scheduler. Ports keep their frames, their shares and what they wait for.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>, now: Nanos) {
        self.scheduler = scheduler;
        // The new scheduler knows of no service; what the old one asked for and was not told is forgiven.
        for service in self.held.drain(..) {
            if let Some(slot) = self.fabric.slot(service.port) {
                slot.turn = Turn::Active;
            }
        }
        for (index, slot) in self.fabric.slots.iter().enumerate().skip(1) {
            let Some(slot) = slot else { continue };
            let port = PortId(index as u32);
            self.scheduler.configure(port, slot.granted(), now);
            if slot.turn == Turn::Active {
                self.scheduler.activate(port, now);
            }
        }
    }
}
