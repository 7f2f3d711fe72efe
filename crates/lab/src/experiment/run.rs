//! Runs an experiment: boots the machine of each case, repeats the procedure, and judges the claims by what came of it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Instant;

use fairlane_agent::Command;
use fairlane_load::busy;
use fairlane_report::ResultFile;
use serde_json::{Value, json};

use super::plan::{Plan, perform};
use super::procedure::Finished;
use super::record::Record;
use super::repeats::{Next, warnings};
use super::{Case, Experiment};
use crate::{Error, Machine, Node, Topology};

/// Seconds that work in the background goes on after all else has ended.
const OVERLAP: f64 = 0.5;
/// The first port that servers listen on.
const FIRST_PORT: u16 = 5001;
/// Ports that a repeat may use.
const PORTS: u16 = 20;

/// Who looks on while an experiment runs.
pub trait Watch: Sync {
    /// Says what is done now.
    fn doing(&self, what: &str);
    /// Says that work of so many seconds is done.
    fn advance(&self, seconds: f64);
    /// Whether someone wants it to end.
    fn interrupted(&self) -> bool;
}

/// How an experiment is to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The factor on all rates.
    pub scale: f64,
    /// What the result's settings say of the machine, beside its own facts.
    pub settings: BTreeMap<String, Value>,
}

/// Runs all cases of an experiment. `boot` boots a machine of the kind that is wanted; cases in a row with the same
/// topology share one.
///
/// # Errors
/// Those of booting and of the agents, and [`Error::Interrupted`]. Whatever was started has ended then.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    boot: &dyn Fn(&Topology) -> Result<Box<dyn Machine>, Error>,
    watch: &dyn Watch,
) -> Result<ResultFile, Error> {
    let start = Instant::now();
    let mut result = ResultFile::new(&experiment.name);
    result.settings.clone_from(&options.settings);
    result.setting("source", experiment.source.as_str()).setting("source's figure", experiment.figure.as_str());
    result.setting("scale", options.scale);
    let mut cases = Vec::new();
    let mut machine: Option<(Topology, Box<dyn Machine>)> = None;
    let mut wide = BTreeMap::new();
    let mut boots = Vec::new();
    let mut port = FIRST_PORT;
    for case in &experiment.cases {
        let topology = &case.topology;
        if machine.as_ref().is_none_or(|(booted, _)| booted != topology) {
            if let Some((_, old)) = machine.take() {
                old.stop()?;
            }
            watch.doing(&format!("{}booting", case.prefix()));
            let booting = Instant::now();
            machine = Some((topology.clone(), boot(topology)?));
            boots.push(booting.elapsed().as_secs_f64());
        }
        let Some((_, up)) = &machine else { continue };
        if cases.is_empty() {
            for (fact, value) in up.facts() {
                result.setting(&format!("machine: {fact}"), value);
            }
        }
        let (record, width) = repeat(experiment, case, up.as_ref(), &mut port, watch)?;
        wide.extend(width.map(|width| (case.prefix(), width)));
        let plan = serde_json::to_value(topology).unwrap_or_default();
        let background = json!({ "guests": case.background.guests, "share": case.background.share });
        let setting = json!({ "topology": plan, "procedure": format!("{:?}", case.procedure), "background": background,
                              "repeats": record.repeats });
        result.setting(&format!("case {}", if case.name.is_empty() { "-" } else { &case.name }), setting);
        cases.push(Finished { name: &case.name, prefix: case.prefix(), topology, record });
    }
    if let Some((_, machine)) = machine {
        machine.stop()?;
    }
    for warning in warnings(&experiment.repeats, &wide) {
        result.setting("warning", warning);
    }
    conclude(experiment, &cases, &mut result);
    result.metric("boot", &boots, "s");
    result.value("total_time", start.elapsed().as_secs_f64(), "s");
    Ok(result)
}

/// Repeats a case as often as wanted; answers what was measured, and how wide the interval still is if that is too wide.
fn repeat(
    experiment: &Experiment,
    case: &Case,
    machine: &dyn Machine,
    port: &mut u16,
    watch: &dyn Watch,
) -> Result<(Record, Option<f64>), Error> {
    let at = |node| machine.address(node);
    let mut record = Record::default();
    loop {
        watch.doing(&format!("{}repeat {}", case.prefix(), record.repeats + 1));
        // A server may outlast its repeat by a moment, so the next has ports of its own.
        let plan = plan(case, &at, *port);
        *port = if *port > u16::MAX - 2 * PORTS { FIRST_PORT } else { *port + PORTS };
        let mut accounts = perform(&plan, |node| machine.agent(node), watch)?;
        accounts.truncate(accounts.len() - case.background.guests.len());
        case.procedure.read(&case.topology, &at, &accounts, &mut record);
        case.procedure.observe(&case.topology, machine, &accounts, &mut record)?;
        record.repeats += 1;
        watch.advance(case.procedure.seconds());
        match experiment.repeats.next(record.repeats, &record) {
            Next::Again => {}
            Next::Done => break,
            Next::TooWide(width) => {
                case.procedure.conclude(&case.topology, &mut record);
                return Ok((record, Some(width)));
            }
        }
    }
    case.procedure.conclude(&case.topology, &mut record);
    Ok((record, None))
}

/// The procedure's plan, and the work in the background beside it.
fn plan(case: &Case, at: &dyn Fn(Node) -> Ipv4Addr, port: u16) -> Plan {
    let mut plan = case.procedure.plan(&case.topology, at, port);
    for guest in &case.background.guests {
        let spec = busy::Spec { share: case.background.share, seconds: case.procedure.seconds() + OVERLAP };
        plan.start(Node::Guest(*guest), 0.0, Command::Busy(spec));
    }
    plan
}

/// Enters metrics, series and figures of all cases, and judges the claims.
fn conclude(experiment: &Experiment, cases: &[Finished], result: &mut ResultFile) {
    for case in cases {
        case.record.enter(result, case.name, &case.prefix);
    }
    let Some(procedure) = experiment.cases.first().map(|case| &case.procedure) else { return };
    procedure.compare(cases, result);
    for figure in procedure.figures(cases) {
        result.figure(figure);
    }
    let claims: Vec<_> = experiment.claims.iter().map(|claim| claim.judge(&experiment.source, result)).collect();
    result.claims.extend(claims);
}
