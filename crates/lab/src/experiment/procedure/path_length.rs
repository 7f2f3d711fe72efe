//! Instructions per packet, received or transmitted, by component and function.
//!
//! A stream flows between a node and the external machine or another guest. Once it is steady, the host makes two marks; the
//! instructions between them are divided by the frames that passed in that time.

use fairlane_agent::{Command, Counters, Outcome};
use fairlane_load::{ReceiveSpec, tcp, udp};
use fairlane_report::{Figure, ResultFile};
use serde::Deserialize;

use super::super::fault::{Fault, limits, node_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::executed::{self, CAPTION, Executed, bars};
use super::{Finished, Procedure};
use crate::machine::{CARD, UPLINK};
use crate::path::{Bill, Component, Counts, Domain, Domains};
use crate::{Error, Machine, Node, Topology};

/// Seconds from the stream's start until it is steady.
const SETTLE: f64 = 1.0;
/// Seconds that the stream goes on after the second mark.
const REST: f64 = 0.5;
/// Seconds that the receiver runs longer than the stream.
const RECEIVER_MARGIN: f64 = 2.0;
/// The fraction of a component's instructions whose addresses are resolved: the consoles that carry the request are slow.
const RESOLVED: f64 = 0.7;
/// The number of functions reported for each component.
const FUNCTIONS: usize = 12;
const UNIT: &str = "instructions/packet";
/// The metric of [`PathLength::compare`]: instructions outside the guest, divided by what the path is longer than the native one. It
/// is above 1 if the guest's part is shorter than the native path.
const OVERHEAD: &str = "overhead_outside_guest";

/// The packets' direction, as the node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Direction {
    Receive,
    Transmit,
}

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathLength {
    /// The node under measurement, at one end of the stream.
    #[serde(deserialize_with = "super::node")]
    at: Node,
    /// The stream's direction at that node.
    direction: Direction,
    /// The stream's other end: the external machine, or another guest.
    #[serde(default = "external", deserialize_with = "super::node")]
    with: Node,
    /// The payload of each datagram of a UDP flood, in bytes; a TCP stream if not given.
    #[serde(default)]
    payload: Option<usize>,
    /// Seconds between the marks.
    seconds: f64,
}

fn external() -> Node {
    Node::External
}

impl PathLength {
    /// The stream's sender and receiver.
    fn ends(&self) -> (Node, Node) {
        match self.direction {
            Direction::Receive => (self.with, self.at),
            Direction::Transmit => (self.at, self.with),
        }
    }

    /// The guest whose card counts the frames: the receiver of a stream between guests, which does not pass the host's card.
    fn counting_guest(&self) -> Option<Node> {
        match self.ends() {
            (Node::Guest(_), to @ Node::Guest(_)) => Some(to),
            _ => None,
        }
    }

    /// Frames that passed between the marks. A guest's count covers a span of the same length, not quite the same span; the
    /// stream is steady.
    fn packets(&self, accounts: &[Account]) -> Option<f64> {
        let by_guest = self.counting_guest().is_some();
        let mut counts = accounts.iter().filter_map(|account| match &account.outcome {
            Outcome::Marked { counters, .. } if !by_guest => Some(frames(counters, UPLINK, self.direction)),
            Outcome::Counters(counters) if by_guest => Some(frames(counters, CARD, Direction::Receive)),
            _ => None,
        });
        let (first, second) = (counts.next()?, counts.next()?);
        second.checked_sub(first).filter(|packets| *packets > 0).map(|packets| packets as f64)
    }

    /// How long the stream flows, in seconds.
    fn stream(&self) -> f64 {
        SETTLE + self.seconds + REST
    }
}

/// Frames that a card received or sent.
fn frames(counters: &Counters, card: &str, direction: Direction) -> u64 {
    let card = counters.interfaces.iter().find(|interface| interface.name == card);
    card.map_or(0, |card| match direction {
        Direction::Receive => card.received_frames,
        Direction::Transmit => card.sent_frames,
    })
}

impl Procedure for PathLength {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> = node_fault("at", self.at, topology).into_iter().collect();
        if self.at == Node::External {
            faults.push(("at", "at must be \"host\" or a guest: the external machine is not measured".to_owned()));
        }
        faults.extend(node_fault("with", self.with, topology));
        let between_guests = matches!((self.at, self.with), (Node::Guest(at), Node::Guest(with)) if at != with);
        if self.with != Node::External && !between_guests {
            let right = "with must be \"external\" or, if at is a guest, another guest: each frame must pass a card";
            faults.push(("with", right.to_owned()));
        }
        // A larger datagram would not fit one frame.
        limits(&mut faults, "payload", self.payload.unwrap_or(8) as f64, 8.0, 1472.0);
        if !topology.count {
            faults.push(("kind", "path-length needs `count = true` in the topology".to_owned()));
        }
        limits(&mut faults, "seconds", self.seconds, 0.1, 60.0);
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        let others = ["outside_guest", "packets", "throughput", "account/host", "account/guest"];
        executed::names().chain(others).map(str::to_owned).collect()
    }

    fn seconds(&self) -> f64 {
        self.stream() + RECEIVER_MARGIN
    }

    fn shorten(&mut self) {
        self.seconds = self.seconds.min(0.5);
    }

    fn scale(&mut self, _: f64) {}

    fn plan(&self, _: &Topology, at: Addresses, port: u16) -> Plan {
        let (from, to) = self.ends();
        let mut plan = Plan::default();
        let (receive, to_port) = (ReceiveSpec { port, interval: 1.0, seconds: self.seconds() }, (at(to), port).into());
        let (serve, send) = match self.payload {
            None => {
                let spec = tcp::SendSpec { to: to_port, connections: 1, seconds: self.stream() };
                (Command::TcpReceive(receive), Command::TcpSend(spec))
            }
            Some(size) => {
                let spec = udp::SendSpec { to: to_port, size, rate: None, seconds: self.stream() };
                (Command::UdpReceive(receive), Command::UdpSend(spec))
            }
        };
        plan.serve(to, serve);
        plan.start(from, 0.0, send);
        for moment in [SETTLE, SETTLE + self.seconds] {
            plan.start(Node::Host, moment, Command::Mark);
            if let Some(guest) = self.counting_guest() {
                plan.start(guest, moment, Command::Counters);
            }
        }
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        record.add("packets", Statistic::OfRepeats, "packets", self.packets(accounts));
    }

    fn observe(
        &self,
        topology: &Topology,
        machine: &dyn Machine,
        accounts: &[Account],
        record: &mut Record,
    ) -> Result<(), Error> {
        let [from, to] = executed::marks(accounts)[..] else { return Ok(()) };
        let Some(executed) = Executed::between(machine, topology, [from, to])? else { return Ok(()) };
        // Even if no packet passed: recording may be too slow for one, and must make the requests that the replay makes.
        compare_accounts(machine, &executed.before, record)?;
        let functions = functions(machine, &executed.bill)?;
        let Some(packets) = self.packets(accounts) else { return Ok(()) };
        for (component, name, instructions) in functions {
            let metric = format!("{}/{name}", component.name());
            record.add(&metric, Statistic::OfRepeats, UNIT, [instructions as f64 / packets]);
        }
        for (name, share) in executed.shares(packets) {
            record.add(name, Statistic::OfRepeats, UNIT, [share]);
        }
        record.series(bars("components", UNIT, executed.shares(packets).map(|(_, share)| share)));
        record.add("outside_guest", Statistic::OfRepeats, "of the path", [executed.outside_guest()]);
        // The busiest CPU limits the throughput.
        let throughput = packets / executed.busiest() as f64 * 1e9;
        record.add("throughput", Statistic::OfRepeats, "packets/s", [throughput]);
        record.series(bars("rate", "packets/s", [throughput]));
        Ok(())
    }

    fn comparisons(&self, cases: &[(&str, &Topology)]) -> Vec<String> {
        overheads(cases).into_iter().map(|(case, _)| format!("{case}/{OVERHEAD}")).collect()
    }

    /// The part of the overhead over a native case that lies outside the guest.
    fn compare(&self, cases: &[Finished], result: &mut ResultFile) {
        let named: Vec<_> = cases.iter().map(|case| (case.name, case.topology)).collect();
        for (case, native) in overheads(&named) {
            let value = |name: &str| result.metrics.get(name).map_or(f64::NAN, |metric| metric.value);
            let (total, native) = (value(&format!("{case}/total")), value(&format!("{native}/total")));
            let outside = total * value(&format!("{case}/outside_guest"));
            result.value(&format!("{case}/{OVERHEAD}"), outside / (total - native), "of the overhead");
        }
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let names = |series: &str| cases.iter().map(|case| format!("{}{series}", case.prefix)).collect::<Vec<_>>();
        let path = Figure::bars("Path length by component").series(names("components")).categories(executed::names());
        let rate = Figure::bars("Throughput at 1e9 instructions a second").series(names("rate"));
        vec![
            path.y("instructions a packet").caption(CAPTION),
            rate.categories(["throughput"]).y("packets a second").caption(LIMIT),
        ]
    }
}

/// Pairs of a guest's case and the bare machine's case of the same name after the slash, which is what it is compared with.
fn overheads<'a>(cases: &[(&'a str, &Topology)]) -> Vec<(&'a str, &'a str)> {
    let direction = |name: &'a str| name.rsplit_once('/').map(|(_, direction)| direction);
    let native = |name| {
        let native = cases.iter().find(|(other, topology)| topology.bare && direction(other) == direction(name));
        native.map(|(native, _)| (name, *native))
    };
    cases.iter().filter(|(_, topology)| !topology.bare).filter_map(|(name, _)| native(*name)).collect()
}

/// The caption of the throughput's figure.
const LIMIT: &str = "The packets that each CPU could pass if it executed 1e9 instructions a second and never waited; of two \
                     CPUs the busier one is the limit.";

/// Adds, for each domain, the ratio of the plugin's count since the machine started to the hypervisor's account of CPU time. That
/// account is in nanoseconds, each of which is one instruction on the virtual clock (icount).
fn compare_accounts(machine: &dyn Machine, before: &Counts, record: &mut Record) -> Result<(), Error> {
    let times = machine.cpu_time()?;
    // The mark follows at once, except for the end of the program that read the account.
    let Outcome::Marked { number, .. } = machine.agent(Node::Host).run(Command::Mark)? else { return Ok(()) };
    let Some(path) = number.checked_sub(1).and_then(|index| machine.marks().get(index).cloned()) else { return Ok(()) };
    let all = Counts::read(&path)?;
    let cpus = (0..all.cpus()).collect();
    let bill = Bill::of(&all, &Domains::learn(before, &all), &cpus);
    let domain_of = |node| match node {
        Node::Host => Some(Domain::Host),
        Node::Guest(_) => Some(Domain::Guest),
        Node::External => None,
    };
    for (name, domain) in [("account/host", Domain::Host), ("account/guest", Domain::Guest)] {
        let its = times.iter().filter(|time| domain_of(time.node) == Some(domain));
        let seconds: f64 = its.map(|time| time.seconds).sum();
        if seconds > 0.0 {
            let agreement = bill.charged(domain) as f64 / (seconds * 1e9);
            record.add(name, Statistic::OfRepeats, "of the hypervisor's account", [agreement]);
        }
    }
    Ok(())
}

/// The functions of the hypervisor and of each kernel that execute the most instructions, with their counts.
fn functions(machine: &dyn Machine, bill: &Bill) -> Result<Vec<(Component, String, u64)>, Error> {
    let tables = [
        (Component::Hypervisor, Node::Host, "/proc/xen/xensyms"),
        (Component::Kernel(Domain::Host), Node::Host, "/proc/kallsyms"),
        (Component::Kernel(Domain::Guest), Node::Guest(1), "/proc/kallsyms"),
    ];
    let mut heaviest = Vec::new();
    for (component, node, table) in tables {
        let addresses = bill.addresses(component, RESOLVED);
        if addresses.is_empty() {
            continue;
        }
        let lookup = Command::Symbols { table: table.into(), addresses };
        let Outcome::Symbols(known) = machine.agent(node).run(lookup)? else { continue };
        let functions = bill.functions(component, &known).into_iter().take(FUNCTIONS);
        heaviest.extend(functions.map(|(name, instructions)| (component, name, instructions)));
    }
    Ok(heaviest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An overhead is what a path is longer than the native one in the same direction, not the path.
    #[test]
    fn the_overhead_outside_the_guest_is_relative_to_the_native_path() {
        let topology = |bare: bool| -> Topology { toml::from_str(&format!("bare = {bare}\nguests = []")).unwrap() };
        let (native, guest) = (topology(true), topology(false));
        let named = [("native/in", &native), ("native/out", &native), ("same/in", &guest), ("same/up", &guest)];
        assert_eq!(overheads(&named), [("same/in", "native/in")], "a case without a native one has no overhead");
        let cases: Vec<Finished> = named
            .iter()
            .map(|(name, topology)| Finished { name, prefix: format!("{name}/"), topology, record: Record::default() })
            .collect();
        let mut result = ResultFile::new("e");
        result.value("native/in/total", 4000.0, UNIT).value("same/in/total", 16_000.0, UNIT);
        result.value("same/in/outside_guest", 0.45, "of the path");
        let procedure = PathLength {
            at: Node::Host,
            direction: Direction::Receive,
            with: Node::External,
            payload: None,
            seconds: 1.0,
        };
        procedure.compare(&cases, &mut result);
        assert_eq!(result.metrics["same/in/overhead_outside_guest"].value, 7200.0 / 12_000.0);
    }
}
