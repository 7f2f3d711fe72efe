//! The way of a frame between hosts, and to and from the outside: the queue in the middle, and those in front of hosts.

use super::{What, World};
use crate::frame::Frame;
use crate::scenario::{Place, Source};
use fairlane_core::time::Nanos;
use rand::RngExt;

impl World<'_> {
    /// A frame is on the wire of a host.
    pub(super) fn leave(&mut self, host: usize, frame: &Frame, at: Nanos) {
        match self.heading(frame) {
            // A copy that was flooded: its receiver has its own.
            Place::Guest(guest) if self.guests[guest].host == host => {}
            Place::Outside if self.core.is_none() && self.is_passive(frame) => {
                let traffic = &self.scenario.traffic[self.flows[frame.content().flow as usize].traffic];
                if traffic.loss == 0.0 {
                    let arrives = at + self.scenario.fabric.delay + Nanos(traffic.rtt.0 / 2);
                    if arrives <= self.end {
                        return self.count(frame, arrives);
                    }
                }
                let slot = self.keep(*frame);
                self.at(at, What::Enter(slot));
            }
            _ => {
                let slot = self.keep(*frame);
                self.at(at, What::Enter(slot));
            }
        }
    }

    /// Whether nothing follows from a frame's arrival.
    fn is_passive(&self, frame: &Frame) -> bool {
        let traffic = self.flows[frame.content().flow as usize].traffic;
        let source = &self.scenario.traffic[traffic].source;
        !matches!(source, Source::Requests { .. }) && !source.is_stream()
    }

    /// A frame enters the fabric.
    pub(super) fn enter(&mut self, frame: Frame) {
        let flow = &self.flows[frame.content().flow as usize];
        let (index, is_far) = (flow.traffic, flow.from == Place::Outside || flow.to == Place::Outside);
        let traffic = &self.scenario.traffic[index];
        let is_lost = traffic.loss > 0.0 && self.random.random::<f64>() < traffic.loss;
        let sent = match &mut self.core {
            _ if is_lost => None,
            Some(line) => line.send(frame.len, self.now),
            None => Some(self.now),
        };
        let Some(sent) = sent else {
            self.tallies[index].lost_in_fabric += 1;
            return;
        };
        let extra = if is_far { Nanos(traffic.rtt.0 / 2) } else { Nanos(0) };
        let arrives = sent + self.scenario.fabric.delay + extra;
        match self.heading(&frame) {
            Place::Guest(guest) if !self.is_uneven => self.reach(frame, guest, arrives),
            Place::Guest(_) => {
                let slot = self.keep(frame);
                self.at(arrives, What::Reach(slot));
            }
            Place::Outside => {
                let slot = self.keep(frame);
                self.at(arrives, What::Arrive(slot));
            }
        }
    }

    /// A frame comes to the queue in front of its receiver's host.
    pub(super) fn reach(&mut self, frame: Frame, guest: usize, at: Nanos) {
        let host = self.guests[guest].host;
        match self.ingress[host].send(frame.len, at) {
            Some(arrives) => {
                self.hosts[host].wire.lock().arrive(arrives, frame);
                if let Some(wake) = self.hosts[host].rouse(arrives) {
                    self.at(wake, What::Host(host as u32));
                }
            }
            None => {
                let traffic = self.flows[frame.content().flow as usize].traffic;
                self.tallies[traffic].lost_in_fabric += 1;
            }
        }
    }
}
