//! How closely guests' measured shares of the host's link follow their cards' weights, which change in steps while all flood it.
//!
//! The weights go from `from` to `to` in even steps. The host sets them as a toolstack would, which takes a moment: a guest's
//! share is measured in the second half of each step.

use std::iter::zip;

use fairlane_agent::Command;
use fairlane_load::{ReceiveSpec, udp};
use fairlane_report::{Axis, Figure, Series};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::flows::{Flows, mean, worst};
use super::{Finished, Procedure, passage, succeeded, title};
use crate::machine::set_weights;
use crate::{Error, Machine, Node, Topology};

/// Seconds from the first start to the first measured step: the guests get their commands one after the other.
const LEAD: f64 = 1.0;
/// Seconds that the receiver counts on after the senders' end.
const TAIL: f64 = 0.5;
/// Intervals of the time series in a step: an even number.
const INTERVALS: f64 = 4.0;
/// Weights that a card can have.
const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WeightSteps {
    /// The guests that flood the link.
    guests: Vec<usize>,
    /// The weights of their cards in the first step.
    from: Vec<u32>,
    /// The weights of their cards in the last step.
    to: Vec<u32>,
    /// The number of steps.
    steps: usize,
    /// The length of a step, in seconds.
    #[serde(default = "step")]
    step: f64,
    /// Payload of a datagram, in bytes.
    #[serde(default = "payload")]
    payload: usize,
}

fn step() -> f64 {
    1.0
}

fn payload() -> usize {
    1472
}

impl WeightSteps {
    /// The weights of a step, counted from 0.
    fn weights(&self, step: usize) -> impl Iterator<Item = u32> {
        let progress = step as f64 / (self.steps - 1) as f64;
        zip(&self.from, &self.to)
            .map(move |(from, to)| (f64::from(*from) + progress * (f64::from(*to) - f64::from(*from))).round() as u32)
    }

    /// When a step starts, in seconds.
    fn begin(&self, step: usize) -> f64 {
        LEAD + step as f64 * self.step
    }

    /// When the last step ends, in seconds.
    fn end(&self) -> f64 {
        self.begin(self.steps)
    }

    /// Each guest's measured share of the link in the second half of a step, and its due share, 0 to 1.
    fn shares(&self, flows: &Flows, step: usize) -> Vec<(f64, f64)> {
        let settled = self.begin(step) + self.step / 2.0;
        let had = |guest| flows.within(guest, settled, self.begin(step + 1)).iter().sum::<f64>();
        let had: Vec<f64> = (0..self.guests.len()).map(had).collect();
        let total: f64 = had.iter().sum();
        let weights: u32 = self.weights(step).sum();
        zip(had, self.weights(step))
            .map(|(had, weight)| (had / total, f64::from(weight) / f64::from(weights)))
            .collect()
    }
}

impl Procedure for WeightSteps {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> =
            self.guests.iter().filter_map(|guest| guest_fault("guests", *guest, topology)).collect();
        if self.guests.len() < 2 {
            faults.push(("guests", "guests must be two or more, such as [1, 2]".to_owned()));
        }
        for (key, weights) in [("from", &self.from), ("to", &self.to)] {
            let (have, need) = (weights.len(), self.guests.len());
            if have != need {
                faults.push((key, format!("{key} must have a weight for each guest, {need}, not {have}")));
            }
            for weight in weights.iter().filter(|weight| !WEIGHTS.contains(weight)) {
                faults.push((key, format!("a weight must be 1 to 10000, not {weight}")));
            }
        }
        limits(&mut faults, "steps", self.steps as f64, 2.0, 100.0);
        limits(&mut faults, "step", self.step, 0.5, 60.0);
        limits(&mut faults, "payload", self.payload as f64, 8.0, 65_507.0);
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        let guests = self.guests.iter().map(|guest| format!("guest{guest}"));
        guests.chain(["total", "error", "error/mean", passage::LOST].map(str::to_owned)).collect()
    }

    fn seconds(&self) -> f64 {
        self.end() + TAIL + passage::DRAIN
    }

    fn shorten(&mut self) {
        self.steps = self.steps.min(7);
    }

    fn scale(&mut self, _: f64) {}

    fn prepare(&self, topology: &Topology, machine: &dyn Machine, record: &mut Record) -> Result<(), Error> {
        passage::begin(topology, machine, record)
    }

    fn plan(&self, _: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        let spec = ReceiveSpec { port, interval: self.step / INTERVALS, seconds: self.end() + TAIL };
        plan.serve(Node::External, Command::UdpReceive(spec));
        for step in 0..self.steps {
            // The first weights are set before the guests send.
            let begin = if step == 0 { 0.0 } else { self.begin(step) };
            plan.start(Node::Host, begin, set_weights(zip(self.guests.iter().copied(), self.weights(step))));
        }
        for guest in &self.guests {
            let to = (at(Node::External), port).into();
            let spec = udp::SendSpec { to, size: self.payload, rate: None, seconds: self.end() };
            plan.start(Node::Guest(*guest), 0.0, Command::UdpSend(spec));
        }
        plan
    }

    fn read(&self, _: &Topology, at: Addresses, accounts: &[Account], record: &mut Record) {
        let Some(receiver) = accounts.first() else { return };
        let senders: Vec<Node> = self.guests.iter().copied().map(Node::Guest).collect();
        let flows = Flows::read(&senders, at, &receiver.events, self.step / INTERVALS, self.end());
        let steps: Vec<Vec<(f64, f64)>> = (0..self.steps).map(|step| self.shares(&flows, step)).collect();
        let mut total = 0.0;
        for (place, guest) in self.guests.iter().enumerate() {
            let (name, about) = (format!("guest{guest}"), format!("guest {guest}"));
            record.series(Series::new(&name, "Mbit/s", Axis::time()).group(&about).points(flows.points(place)));
            let share = |of: fn(&(f64, f64)) -> f64| {
                steps.iter().zip(0..).map(move |(shares, step)| [self.begin(step), 100.0 * of(&shares[place])])
            };
            let axis = || Axis::new("step begins", "s");
            let had = Series::new(&format!("{name}/part"), "%", axis()).group(&about);
            record.series(had.points(share(|(had, _)| *had)));
            let due = Series::new(&format!("{name}/due"), "%", axis()).group(&format!("{about}'s due"));
            record.series(due.points(share(|(_, due)| *due)));
            let got = mean(&flows.within(place, LEAD, self.end()));
            total += got;
            record.add(&name, Statistic::OfRepeats, "Mbit/s", [got]);
        }
        record.add("total", Statistic::OfRepeats, "Mbit/s", [total]);
        let errors: Vec<f64> = steps.iter().flatten().map(|(had, due)| 100.0 * (had - due).abs()).collect();
        // NaN if nothing arrived in a step.
        record.add("error", Statistic::OfRepeats, "% of the link", [worst(errors.iter().copied())]);
        record.add("error/mean", Statistic::OfRepeats, "% of the link", [mean(&errors)]);
    }

    fn observe(
        &self,
        topology: &Topology,
        machine: &dyn Machine,
        accounts: &[Account],
        record: &mut Record,
    ) -> Result<(), Error> {
        succeeded(machine, accounts, "a weight was not set")?;
        passage::end(topology, machine, record)
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let names = |case: &Finished, what: &str| -> Vec<String> {
            self.guests.iter().map(|guest| format!("{}guest{guest}{what}", case.prefix)).collect()
        };
        let figure = |case: &Finished| {
            [
                Figure::means(&title("Throughput", case)).series(names(case, "")).y("throughput"),
                Figure::means(&title("Part of the link", case))
                    .series(names(case, "/part"))
                    .series(names(case, "/due"))
                    .y("part of the link"),
            ]
        };
        cases.iter().flat_map(figure).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fairlane_agent::{Event, Outcome};
    use fairlane_load::Sample;

    use super::*;

    fn steps() -> WeightSteps {
        let (guests, from, to) = (vec![1, 2], vec![30, 1], vec![1, 30]);
        WeightSteps { guests, from, to, steps: 30, step: step(), payload: payload() }
    }

    fn at(node: Node) -> Ipv4Addr {
        let Node::Guest(guest) = node else { return Ipv4Addr::LOCALHOST };
        Ipv4Addr::new(10, 0, 0, guest as u8)
    }

    #[test]
    fn weights_go_from_the_first_to_the_last_in_even_steps() {
        let weights = |step| steps().weights(step).collect::<Vec<_>>();
        assert_eq!([weights(0), weights(1), weights(14), weights(29)], [[30, 1], [29, 2], [16, 15], [1, 30]]);
        let mut short = steps();
        short.shorten();
        assert_eq!(short.weights(6).collect::<Vec<_>>(), [1, 30]);
    }

    /// A receiver's samples of guests with `shares` of 31 in the second half of each step, and even shares in the first half.
    fn events(shares: impl Fn(usize) -> [u64; 2]) -> Vec<Event> {
        let intervals = 1..=((steps().end() * 4.0) as usize);
        let event = |interval: usize| {
            let step = (interval - 1).saturating_sub(4) / 4;
            let settled = (interval - 1) % 4 >= 2;
            let bytes = if settled { shares(step) } else { [15, 15] };
            let sample = move |guest: usize| Sample {
                t: interval as f64 / 4.0,
                source: (at(Node::Guest(guest)), 1).into(),
                bytes: 1000 * bytes[guest - 1],
                datagrams: 1,
                skipped: 0,
                late: 0,
            };
            [1, 2].map(|guest| Event::Sample(sample(guest)))
        };
        intervals.flat_map(event).collect()
    }

    fn worst(shares: impl Fn(usize) -> [u64; 2]) -> f64 {
        let account = Account { events: events(shares), outcome: Outcome::Served };
        let mut record = Record::default();
        let topology = toml::from_str("guests = []").unwrap();
        steps().read(&topology, &at, &[account], &mut record);
        record.samples("error")[0]
    }

    #[test]
    fn shares_are_measured_in_the_second_half_of_a_step() {
        assert!(worst(|step| [30 - step as u64, 1 + step as u64]) < 1e-9);
        let late = worst(|step| if step == 20 { [11, 20] } else { [30 - step as u64, 1 + step as u64] });
        assert!((late - 100.0 / 31.0).abs() < 1e-9, "{late}");
        assert!(worst(|step| if step == 3 { [0, 0] } else { [30 - step as u64, 1 + step as u64] }).is_nan());
    }
}
