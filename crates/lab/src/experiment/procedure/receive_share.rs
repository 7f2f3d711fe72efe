//! How guests share what they receive from the external machine, which sends datagrams to each of them at the same rate.

use fairlane_agent::Command;
use fairlane_load::{ReceiveSpec, udp};
use fairlane_report::{Axis, Figure, Series};
use serde::Deserialize;

use super::super::fault::{Fault, limits};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::due::{self, Bounds};
use super::flows::{Flows, mean};
use super::{Finished, Procedure, title};
use crate::{GuestPlan, Node, Topology};

/// Seconds from the senders' start until their effect is steady.
const SETTLE: f64 = 1.0;
/// Seconds that receivers count on after the senders' end.
const TAIL: f64 = 1.0;
/// The intervals of the time series, in seconds. Receivers' clocks start at slightly different times.
const INTERVAL: f64 = 0.5;
/// Bytes of a datagram's Ethernet, IP and UDP headers.
const HEADERS: f64 = 42.0;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceiveShare {
    /// The rate of the datagrams for each guest, in bits per second of Ethernet frames.
    offer: f64,
    /// How long they are sent, in seconds.
    seconds: f64,
    /// Payload of a datagram, in bytes.
    #[serde(default = "payload")]
    payload: usize,
}

fn payload() -> usize {
    1472
}

fn bounds(plan: &GuestPlan) -> Bounds {
    Bounds { least: plan.rx_min_rate, most: plan.rx_rate }
}

impl ReceiveShare {
    /// Mbit/s of payload as bits per second of frames.
    fn frames(&self, payload: f64) -> f64 {
        payload * 1e6 * (self.payload as f64 + HEADERS) / self.payload as f64
    }
}

impl Procedure for ReceiveShare {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults = Vec::new();
        limits(&mut faults, "offer", self.offer, 1e3, 1e12);
        limits(&mut faults, "seconds", self.seconds, 3.0, 3600.0);
        limits(&mut faults, "payload", self.payload as f64, 8.0, 65_507.0);
        if topology.guests.len() < 2 {
            faults.push(("guests", "guests must be two or more, as they share what they receive".to_owned()));
        }
        faults
    }

    fn metrics(&self, topology: &Topology) -> Vec<String> {
        let mut names: Vec<String> = ["total", "off"].map(str::to_owned).into();
        for (number, guest) in (1..).zip(&topology.guests) {
            names.push(format!("guest{number}"));
            let bounds = [("of_rate", guest.rx_rate), ("of_min_rate", guest.rx_min_rate)];
            let bounds = bounds.into_iter().filter(|(_, rate)| rate.is_some());
            names.extend(bounds.map(|(name, _)| format!("guest{number}/{name}")));
        }
        names.extend(topology.rx_link.map(|_| "of_link".to_owned()));
        names
    }

    fn seconds(&self) -> f64 {
        self.seconds + TAIL
    }

    fn shorten(&mut self) {
        self.seconds = self.seconds.min(4.0);
    }

    fn scale(&mut self, factor: f64) {
        self.offer *= factor;
    }

    fn plan(&self, topology: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        for guest in (1..=topology.guests.len()).map(Node::Guest) {
            let spec = ReceiveSpec { port, interval: INTERVAL, seconds: self.seconds() };
            plan.serve(guest, Command::UdpReceive(spec));
            let to = (at(guest), port).into();
            let spec = udp::SendSpec { to, size: self.payload, rate: Some(self.offer), seconds: self.seconds };
            plan.start(Node::External, 0.0, Command::UdpSend(spec));
        }
        plan
    }

    fn read(&self, topology: &Topology, at: Addresses, accounts: &[Account], record: &mut Record) {
        let mut rates = Vec::new();
        for (number, account) in (1..=topology.guests.len()).zip(accounts) {
            let flows = Flows::read(&[Node::External], at, &account.events, INTERVAL, self.seconds);
            let name = format!("guest{number}");
            record.series(
                Series::new(&name, "Mbit/s", Axis::time()).group(&format!("guest {number}")).points(flows.points(0)),
            );
            rates.push(flows.within(0, SETTLE, self.seconds));
        }
        let got: Vec<f64> = rates.iter().map(|rates| mean(rates)).collect();
        for (number, (guest, got)) in (1..).zip(topology.guests.iter().zip(&got)) {
            record.add(&format!("guest{number}"), Statistic::OfRepeats, "Mbit/s", [*got]);
            for (name, rate) in [("of_rate", guest.rx_rate), ("of_min_rate", guest.rx_min_rate)] {
                if let Some(rate) = rate {
                    record.add(&format!("guest{number}/{name}"), Statistic::OfRepeats, "", [self.frames(*got) / rate]);
                }
            }
        }
        let total: f64 = got.iter().sum();
        record.add("total", Statistic::OfRepeats, "Mbit/s", [total]);
        if let Some(rate) = topology.rx_link {
            record.add("of_link", Statistic::OfRepeats, "", [self.frames(total) / rate]);
        }
        let guests: Vec<usize> = (1..=topology.guests.len()).collect();
        let due = due::due(topology, &guests, topology.rx_link.unwrap_or(self.frames(total)), bounds);
        let off = due::off(&rates, &due, (1.0 / INTERVAL).round() as usize);
        record.add("off", Statistic::OfRepeats, "", [off]);
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let figure = |case: &Finished| {
            let names = (1..=case.topology.guests.len()).map(|number| format!("{}guest{number}", case.prefix));
            Figure::means(&title("Received", case)).series(names).y("throughput")
        };
        cases.iter().map(figure).collect()
    }
}
