//! An experiment of the lab in the simulator: the same file, the same procedure, the same metrics and claims. Only the machine is
//! another: what its agents would do is traffic of a scenario, and their accounts are made of what it counts.

use super::machine::{DATAGRAM, ECHO, LARGE, SEGMENT, SMALL, Surroundings, WINDOW};
use fairlane_core::time::Nanos;
use fairlane_lab::experiment::{Account, Case, Experiment, Plan, simulate};
use fairlane_lab::{Command, Event, MachineKind, Node, Outcome, machine};
use fairlane_load::ping::RoundTrips;
use fairlane_load::{ReceiveSpec, Received, Sample, Sent};
use fairlane_policy::{Direction, Policy, Setting, ShareSetting};
use fairlane_report::ResultFile;
use fairlane_sim::scenario::{Change, Cpu, Fabric, Guest, Host, Place, Scenario, Source, Traffic};
use fairlane_sim::{Outcome as Simulated, Tally};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Simulates an experiment as if on this kind of machine, with Fairlane as its backend.
///
/// # Errors
/// The experiment does something that is not simulated.
pub(super) fn run(experiment: &Experiment, kind: MachineKind) -> anyhow::Result<ResultFile> {
    let surroundings = Surroundings::of(kind);
    let mut result = simulate(experiment, &format!("simulation of {kind}"), |case, plan| {
        let simulation = Simulation::of(case, plan, &surroundings)?;
        let outcome = fairlane_sim::run(&simulation.scenario)?;
        Ok::<_, anyhow::Error>(simulation.accounts(plan, &outcome))
    })?;
    result.warn("Simulated: what only the counters of a machine tell is not measured.");
    Ok(result)
}

/// A case as a scenario. Its traffic is that of the plan's clients, in their order; a client without traffic has none.
struct Simulation {
    scenario: Scenario,
    /// The traffic of each client.
    traffic: Vec<Option<usize>>,
}

impl Simulation {
    fn of(case: &Case, plan: &Plan, surroundings: &Surroundings) -> anyhow::Result<Simulation> {
        let topology = &case.topology;
        let policy = Policy::parse("the lab's policy", &machine::policy(topology));
        let policy = policy.map_err(|wrong| anyhow::anyhow!("{}", wrong[0]))?;
        let slice = Nanos::from_millis(topology.slice_ms.unwrap_or(30).into());
        let guest = |number: usize| {
            let waits = case.background.waits.contains(&number);
            // As the lab suspends guests, or as two busy guests keep the CPU from it: one slice of three.
            let turns = Cpu::turns(&[slice, slice + slice], Nanos(0)).filter(|_| waits);
            let guest = surroundings.guest(0, Node::Guest(number).to_string());
            Guest { cpu: turns.unwrap_or(Cpu::Always), ..guest }
        };
        let guests = (1..=topology.guests.len()).map(guest).collect();
        let link = policy.links[0].clone();
        let card = surroundings.card;
        let mut seconds = case.procedure.seconds();
        let (mut traffic, mut numbers) = (Vec::new(), Vec::new());
        let mut changes = Vec::new();
        for (node, start, command) in plan.clients() {
            if let Some(weights) = machine::weights_set(command) {
                changes.extend(weights.into_iter().map(|weight| change(*start, weight)));
                numbers.push(None);
                continue;
            }
            let made = client(*node, *start, command, topology.offload)?;
            numbers.push(made.as_ref().map(|_| traffic.len()));
            traffic.extend(made);
        }
        let intervals = plan.servers().iter().filter_map(|(_, command)| counted(command));
        let interval = intervals.clone().map(|spec| spec.interval).fold(f64::INFINITY, f64::min);
        let interval = if interval.is_finite() { interval } else { 1.0 };
        seconds = intervals.map(|spec| spec.seconds).fold(seconds, f64::max);
        let scenario = Scenario {
            name: case.name.clone(),
            seed: 1,
            seconds,
            settle: Nanos(0),
            interval: Nanos::from_secs_f64(interval),
            fabric: Fabric { delay: surroundings.delay, ..Fabric::default() },
            hosts: vec![Host { name: "host".to_owned(), policy, link, card, costs: surroundings.costs }],
            guests,
            traffic,
            guarantees: Vec::new(),
            changes,
        };
        Ok(Simulation { scenario, traffic: numbers })
    }

    /// What the agents would report.
    fn accounts(&self, plan: &Plan, outcome: &Simulated) -> Vec<Account> {
        let served = plan.servers().iter().map(|(node, command)| match counted(command) {
            Some(spec) => self.received(plan, outcome, *node, spec),
            None => Account { events: Vec::new(), outcome: Outcome::Served },
        });
        let sent = plan.clients().iter().zip(&self.traffic).map(|((_, _, command), traffic)| {
            let tally = traffic.map(|traffic| &outcome.tallies[traffic]);
            Account { events: Vec::new(), outcome: tally.map_or(Outcome::Served, |tally| sent(command, tally)) }
        });
        served.chain(sent).collect()
    }

    /// What a receiver counted, by source and interval.
    fn received(&self, plan: &Plan, outcome: &Simulated, node: Node, spec: &ReceiveSpec) -> Account {
        let of_server = |command: &Command| goal(command) == Some(SocketAddr::from((node.address(), spec.port)));
        let clients = plan.clients().iter().zip(&self.traffic).zip(1u16..);
        let mut events = Vec::new();
        let mut sources = Vec::new();
        let own = self.scenario.interval.as_secs_f64();
        let together = (spec.interval / own).round().max(1.0) as usize;
        for (((from, _, command), traffic), port) in clients.filter(|(((.., command), _), _)| of_server(command)) {
            let Some(traffic) = traffic else { continue };
            let (tally, frame) = (&outcome.tallies[*traffic], self.scenario.traffic[*traffic].frame);
            let headers = if matches!(command, Command::TcpSend(_)) { SEGMENT } else { DATAGRAM };
            let source = SocketAddr::from((from.address(), port));
            let sample = |t: f64, bytes: u64| {
                let frames = bytes / u64::from(frame);
                let datagrams = if matches!(command, Command::TcpSend(_)) { 0 } else { frames };
                Sample { t, source, bytes: frames * u64::from(frame - headers), datagrams, skipped: 0, late: 0 }
            };
            let whole = (spec.seconds / spec.interval).round() as usize;
            for (index, bytes) in tally.intervals.chunks(together).take(whole).enumerate() {
                let t = (index + 1) as f64 * spec.interval;
                events.push(Event::Sample(sample(t, bytes.iter().sum())));
            }
            sources.push(sample(spec.seconds, tally.intervals.iter().sum()));
        }
        let received = Received { seconds: spec.seconds, sources };
        Account { events, outcome: Outcome::Received(received) }
    }
}

/// What sets a guest's weight at a time, in seconds.
fn change(at: f64, (guest, weight): (usize, u32)) -> Change {
    let setting = Setting::Share(Direction::Tx, ShareSetting::Weight(weight));
    Change { at: Nanos::from_secs_f64(at), host: 0, target: Node::Guest(guest).to_string(), setting }
}

/// What a receiver counts, if the command is one.
fn counted(command: &Command) -> Option<&ReceiveSpec> {
    match command {
        Command::UdpReceive(spec) | Command::TcpReceive(spec) => Some(spec),
        _ => None,
    }
}

/// Where a client sends to.
fn goal(command: &Command) -> Option<SocketAddr> {
    match command {
        Command::UdpSend(spec) => Some(spec.to),
        Command::TcpSend(spec) => Some(spec.to),
        _ => None,
    }
}

/// The traffic of a client; none if it has none.
///
/// # Errors
/// It is not simulated.
fn client(node: Node, start: f64, command: &Command, offload: bool) -> anyhow::Result<Option<Traffic>> {
    let (source, frame, to, seconds, streams) = match command {
        Command::UdpSend(spec) => {
            let source = spec.rate.map_or(Source::Flood, |rate| Source::Constant { rate: rate as u64 });
            (source, spec.size as u32 + DATAGRAM, ip(spec.to), spec.seconds, 1)
        }
        Command::TcpSend(spec) => {
            let frame = if offload { LARGE } else { SMALL };
            (Source::Stream { window: WINDOW, bytes: None }, frame, ip(spec.to), spec.seconds, spec.connections)
        }
        Command::Ping(spec) => {
            let seconds = f64::from(spec.count) * spec.interval - spec.interval / 2.0;
            (Source::Requests { interval: Nanos::from_secs_f64(spec.interval) }, ECHO, Some(spec.to), seconds, 1)
        }
        // A disk's and a processor's load are the machine's.
        Command::Disk(_) | Command::Busy(_) => return Ok(None),
        other => anyhow::bail!("{} is not simulated; traffic of datagrams, streams and pings is", word(other)),
    };
    let from = place(node)?;
    let to = match to {
        Some(to) if to == Node::External.address() => Place::Outside,
        Some(to) => Place::Guest((1..=200).find(|guest| Node::Guest(*guest).address() == to).unwrap_or(1) - 1),
        None => anyhow::bail!("an address of IPv6 is not simulated"),
    };
    let time = (Nanos::from_secs_f64(start), Nanos::from_secs_f64(start + seconds));
    let flows = vec![(from, to); streams];
    Ok(Some(Traffic::new(node.to_string(), source, frame, time, flows)))
}

fn place(node: Node) -> anyhow::Result<Place> {
    match node {
        Node::External => Ok(Place::Outside),
        Node::Guest(guest) => Ok(Place::Guest(guest - 1)),
        Node::Host => anyhow::bail!("traffic of the host itself is not simulated"),
    }
}

/// What a client reports that sent so many pings: an answer later than its patience, in seconds, is none.
pub(crate) fn round_trips(tally: &Tally, count: u16, patience: f64) -> RoundTrips {
    let mut seconds = vec![None; usize::from(count)];
    for (number, trip) in &tally.answered {
        let trip = trip.as_secs_f64();
        if let Some(place) = seconds.get_mut(*number as usize).filter(|_| trip <= patience) {
            *place = Some(trip);
        }
    }
    RoundTrips { seconds }
}

/// What a client reports.
fn sent(command: &Command, tally: &Tally) -> Outcome {
    match command {
        Command::Ping(spec) => Outcome::RoundTrips(round_trips(tally, spec.count, spec.patience)),
        Command::UdpSend(spec) => {
            let datagrams = tally.settled.0;
            Outcome::Sent(Sent { seconds: spec.seconds, bytes: datagrams * spec.size as u64, datagrams, refused: 0 })
        }
        _ => Outcome::Sent(Sent::default()),
    }
}

fn ip(to: SocketAddr) -> Option<Ipv4Addr> {
    match to.ip() {
        IpAddr::V4(to) => Some(to),
        IpAddr::V6(_) => None,
    }
}

/// The name of a command.
fn word(command: &Command) -> String {
    let text = format!("{command:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
