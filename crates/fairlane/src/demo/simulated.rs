//! All acts in the simulator: the same policy, loads and settings on two hosts, which the wire joins. Guests and wire are a model.

use super::acts::{Act, LINK_RATE, Name, SENDERS, Setting, act};
use super::measure::{FRAME, INTERVALS, LEAD, Measurement, TAIL, seconds};
use super::stage::{RECEIVER, RUN_TIME, WAIT_TIME, policy};
use super::{SECONDS, early, neighbour, report};
use crate::sim::experiment::round_trips;
use crate::sim::machine::{DATAGRAM, ECHO, SMALL, Surroundings, WINDOW};
use anyhow::Context;
use clap::ValueEnum;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_lab::MachineKind;
use fairlane_load::ping::RoundTrips;
use fairlane_policy::{Link, Uplink, Vif};
use fairlane_report::ResultFile;
use fairlane_sim::Outcome;
use fairlane_sim::scenario::{Change, Cpu, Fabric, Host, Place, Scenario, Source, Traffic};
use std::path::Path;
use std::time::Duration;

/// Simulates the demo with guests of User-Mode Linux.
///
/// # Errors
/// An act cannot be simulated.
pub(crate) fn simulate() -> anyhow::Result<ResultFile> {
    let mut result = ResultFile::new("demo");
    result.machine("simulation");
    for act in Name::value_variants().iter().filter_map(|name| act(*name, SECONDS)) {
        report::add(&mut result, &act, &flood(&act)?);
    }
    early::add(&mut result, transfers)?;
    neighbour::add(&mut result, pings)?;
    result.warn("Simulated: frames are not counted at each point of their path.");
    Ok(result)
}

/// An act in which guests flood the link.
fn flood(act: &Act) -> anyhow::Result<Measurement> {
    let senders = act.loads.len();
    let length = LEAD + act.seconds() * INTERVALS;
    let mut scenario = stage(senders, act.name != Name::Before, seconds(length + TAIL))?;
    for (guest, load) in act.loads.iter().enumerate() {
        // At random: at even distances, two senders of the wire's frames stay in step with it, and one of them gets nothing.
        let source = load.map_or(Source::Flood, |rate| Source::Poisson { rate: rate as u64 });
        scenario.traffic.push(traffic(source, FRAME as u32, seconds(length + 1), (guest, senders)));
    }
    for setting in &act.prelude {
        scenario.changes.push(to_change(Nanos(0), setting)?);
    }
    let mut at = Nanos::from_secs_f64(seconds(LEAD));
    for step in &act.steps {
        for setting in &step.settings {
            scenario.changes.push(to_change(at, setting)?);
        }
        at += Nanos(step.seconds as u64 * SECOND);
    }
    let outcome = run(&scenario)?;
    let bytes = outcome.tallies.iter().map(|tally| tally.intervals[LEAD..length].to_vec()).collect();
    Ok(Measurement { bytes, lateness: Vec::new(), ledger: None })
}

/// The act of early ack: transfers of a size.
fn transfers(size: u64, is_early: bool) -> anyhow::Result<early::Times> {
    let mut scenario = stage(1, true, early::SECONDS)?;
    scenario.guests[1].cpu = in_slices()?;
    let value = is_early.to_string();
    scenario.changes.push(to_change(Nanos(0), &Setting { target: RECEIVER, key: "early_ack", value })?);
    let pause = Nanos::from_secs_f64(early::PAUSE / 2.0);
    let source = Source::Transfer { bytes: size, pause, anew: true, window: WINDOW };
    scenario.traffic.push(traffic(source, SMALL, early::SECONDS, (0, 1)));
    let outcome = run(&scenario)?;
    let [tally] = &outcome.tallies[..] else { unreachable!("there is one flow") };
    // The simulator keeps times without their order.
    Ok([&tally.trips, &tally.received].map(|times| {
        let each = times.iter_recorded();
        let each = each
            .flat_map(|time| std::iter::repeat_n(time.value_iterated_to(), time.count_since_last_iteration() as usize));
        each.zip(0u32..).map(|(took, number)| [number.into(), took as f64 / 1e6]).collect()
    }))
}

/// The act of a neighbour that waits: pings of one guest, while another is flooded.
fn pings(case: &neighbour::Case, waits: bool) -> anyhow::Result<RoundTrips> {
    let receiver = 2;
    let length = neighbour::SECONDS + neighbour::PATIENCE;
    let mut scenario = stage(receiver, true, length)?;
    if waits {
        scenario.guests[neighbour::FLOODED].cpu = in_slices()?;
    }
    let flood = Source::Constant { rate: case.rate as u64 };
    let from = case.sender.unwrap_or(receiver);
    scenario.traffic.push(traffic(flood, case.size as u32 + DATAGRAM, length, (from, neighbour::FLOODED)));
    let requests = Source::Requests { interval: Nanos::from_secs_f64(neighbour::INTERVAL) };
    scenario.traffic.push(traffic(requests, ECHO, neighbour::SECONDS, (receiver, neighbour::PINGED)));
    let outcome = run(&scenario)?;
    let count = (neighbour::SECONDS / neighbour::INTERVAL) as u16;
    Ok(round_trips(&outcome.tallies[1], count, neighbour::PATIENCE))
}

/// The stage: senders on one host, the receiver, which is the last guest, on another, and the wire between them.
fn stage(senders: usize, backpressure: bool, seconds: f64) -> anyhow::Result<Scenario> {
    let (_, policy) = policy(Path::new("/sim"), senders, backpressure)?;
    let surroundings = Surroundings::of(MachineKind::Uml);
    let delay = |link: &Link| if let Uplink::Wire { delay, .. } = link.uplink { Some(delay) } else { None };
    let delay = policy.links.iter().find_map(delay).context("the stage has a wire")?;
    let host = |link: &Link| Host {
        name: link.name.clone(),
        policy: policy.clone(),
        link: link.clone(),
        card: LINK_RATE as u64,
        costs: surroundings.costs,
    };
    let guest = |vif: &Vif| surroundings.guest(usize::from(vif.name == RECEIVER), vif.name.clone());
    Ok(Scenario {
        name: "demo".to_owned(),
        seed: 1,
        seconds,
        settle: Nanos(0),
        interval: Nanos::from_secs_f64(self::seconds(1)),
        fabric: Fabric { delay, ..Fabric::default() },
        hosts: policy.links.iter().map(host).collect(),
        guests: policy.vifs.iter().map(guest).collect(),
        traffic: Vec::new(),
        guarantees: Vec::new(),
        changes: Vec::new(),
    })
}

fn run(scenario: &Scenario) -> anyhow::Result<Outcome> {
    let outcome = fairlane_sim::run(scenario)?;
    anyhow::ensure!(outcome.refused.is_empty(), "{}", outcome.refused.join("; "));
    Ok(outcome)
}

/// A flow between two guests, from the start on.
fn traffic(source: Source, frame: u32, seconds: f64, (from, to): (usize, usize)) -> Traffic {
    let name = SENDERS.get(from).copied().unwrap_or(RECEIVER).to_owned();
    let time = (Nanos(0), Nanos::from_secs_f64(seconds));
    Traffic::new(name, source, frame, time, vec![(Place::Guest(from), Place::Guest(to))])
}

/// When a guest runs that waits first.
fn in_slices() -> anyhow::Result<Cpu> {
    let [runs, waits] = [RUN_TIME, WAIT_TIME].map(|time: Duration| Nanos(time.as_nanos() as u64));
    Cpu::turns(&[runs, waits], runs).context("a guest runs now and then")
}

/// A setting as a change of the host that has its vif or link.
fn to_change(at: Nanos, Setting { target, key, value }: &Setting) -> anyhow::Result<Change> {
    let setting = fairlane_policy::Setting::parse(key, value)?;
    Ok(Change { at, host: usize::from(*target == RECEIVER), target: (*target).to_owned(), setting })
}
