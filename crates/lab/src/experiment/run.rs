//! Runs an experiment: boots the machine of each case, repeats the procedure, and judges the claims by the measurements.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use fairlane_agent::Command;
use fairlane_load::busy;
use fairlane_report::ResultFile;
use serde_json::{Value, json};

use super::plan::{Plan, execute};
use super::procedure::{Finished, waiting};
use super::record::Record;
use super::repeats::{Next, warnings};
use super::waits::Waits;
use super::{Case, Experiment};
use crate::contents::hash;
use crate::error::IoContext;
use crate::{Clock, CpuSwitch, Error, Machine, Node, Topology, cache, image};

/// Seconds that background load runs longer than the procedure.
const OVERLAP: f64 = 0.5;
/// The first port that servers listen on.
pub(super) const FIRST_PORT: u16 = 5001;
/// Ports that a repeat may use.
const PORTS: u16 = 20;
/// How often a machine is booted again for a case that lost a guest. Guests of the emulated KVM host are lost now and then: the
/// emulator's virtualization fails under its kernel.
const RETRIES_AFTER_LOSS: usize = 2;
/// How often it is booted again after a guest did not come up for no known reason, as in one of nine runs on that host. Each
/// failure takes minutes to detect.
const RETRIES_AFTER_SILENT_BOOT: usize = 1;

/// Shows the progress of an experiment.
pub trait Watch: Sync {
    /// The next activity, in words.
    fn doing(&self, what: &str);
    /// Work of this many seconds is done.
    fn advance(&self, seconds: f64);
}

/// Boots a machine with a topology and a clock.
pub type Boot<'a> = &'a dyn Fn(&Topology, &Clock) -> Result<Box<dyn Machine>, Error>;

/// Options of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The name of the machine.
    pub machine: String,
    /// The factor on all rates.
    pub scale: f64,
    /// Settings for the result, in addition to the machine's facts.
    pub settings: BTreeMap<String, Value>,
    /// The directory of recorded scripts, for the virtual clock (icount). The real clock is used without one.
    pub scripts: Option<PathBuf>,
}

/// Runs all cases of an experiment. Consecutive cases with the same topology share a machine. If it loses a guest or one does not
/// come up, it is booted again, and the result has a warning. For the virtual clock (icount) the cases are recorded first, unless
/// they were recorded before.
///
/// # Errors
/// Those of booting and of the agents. Everything that was started has ended then.
pub fn run(experiment: &Experiment, options: &Options, boot: Boot, watch: &dyn Watch) -> Result<ResultFile, Error> {
    let start = Instant::now();
    let mut result = ResultFile::new(&experiment.name);
    result.settings.clone_from(&options.settings);
    result.source(&experiment.source, &experiment.figure).machine(&options.machine);
    result.setting("scale", options.scale);
    if options.scale != 1.0 {
        result.warn(format!("All rates, the link's too, are {} times those of the experiment.", options.scale));
    }
    let mut cases: Vec<Finished> = Vec::new();
    let mut wide = BTreeMap::new();
    let mut boots = Vec::new();
    let mut runner = Runner { experiment, boot, watch, port: FIRST_PORT };
    for group in experiment.cases.chunk_by(|a, b| a.topology == b.topology) {
        let Some(Case { topology, .. }) = group.first() else { continue };
        let (first_port, mut records, mut last) = (runner.port, Vec::new(), Clock::Wall);
        for clock in clocks(experiment, group, options)? {
            // The same ports for record and replay, as the requests must be equal.
            runner.port = first_port;
            let measured = runner.measure(group, &clock, &mut |warning| _ = result.warn(warning))?;
            boots.extend(measured.boots);
            let whose = if topology.bare { "bare machine" } else { "machine" };
            for (fact, value) in measured.facts {
                result.settings.entry(format!("{whose}: {fact}")).or_insert(value);
            }
            records = measured.records;
            last = clock;
        }
        for (case, (record, width)) in group.iter().zip(records) {
            wide.extend(width.map(|width| (case.prefix(), width)));
            let plan = serde_json::to_value(topology).unwrap_or_default();
            let clock = last.word();
            let background = &case.background;
            let background =
                json!({ "guests": background.guests, "share": background.share, "waits": background.waits });
            let setting = json!({ "topology": plan, "procedure": format!("{:?}", case.procedure), "background": background,
                                  "clock": clock, "repeats": record.repeats });
            result.setting(&format!("case {}", if case.name.is_empty() { "-" } else { &case.name }), setting);
            for (name, words) in record.notes() {
                result.setting(&format!("{}{name}", case.prefix()), words.clone());
            }
            cases.push(case.finished(record));
        }
    }
    for warning in warnings(&experiment.repeats, &wide) {
        result.warn(warning);
    }
    conclude(experiment, &cases, &mut result);
    // Results on the virtual clock are the same each time, so the lab's own time must not be in them.
    if options.scripts.is_none() {
        result.metric("boot", &boots, "s");
        result.value("total_time", start.elapsed().as_secs_f64(), "s");
    }
    Ok(result)
}

/// The clocks to run cases of one machine on, in order; the last one's measurements are the result.
fn clocks(experiment: &Experiment, group: &[Case], options: &Options) -> Result<Vec<Clock>, Error> {
    let Some(directory) = &options.scripts else { return Ok(vec![Clock::Wall]) };
    // Native Linux has the real clock only.
    if group.iter().any(|case| case.topology.bare) {
        return Ok(vec![Clock::Wall]);
    }
    // The requests depend on the cases and their repeats, on the agent and on this program.
    let mut key = format!("{} {:?} {group:?}", options.machine, experiment.repeats).into_bytes();
    let program = env::current_exe().doing(|| "this program's own path".to_owned())?;
    for path in [image::agent()?, program] {
        key.extend(fs::read(&path).doing(|| path.display().to_string())?);
    }
    let script = directory.join(format!("script-{}", &hash(&key)[..16]));
    let replay = Clock::Virtual(script.clone());
    Ok(if cache::holds(&script) { vec![replay] } else { vec![Clock::Record(script), replay] })
}

/// The measurements of cases on one machine.
#[derive(Default)]
struct Measured {
    /// How long each boot of the machine took, in seconds.
    boots: Vec<f64>,
    facts: BTreeMap<String, Value>,
    /// Each case's record, and the half-width of its interval if that is too wide.
    records: Vec<(Record, Option<f64>)>,
}

/// The state of a run.
struct Runner<'a> {
    experiment: &'a Experiment,
    boot: Boot<'a>,
    watch: &'a dyn Watch,
    /// The first port of the next repeat's servers.
    port: u16,
}

impl Runner<'_> {
    /// Measures cases that share a machine. If it loses a guest or one does not come up, it is booted again, with a warning, for the
    /// current case and the remaining ones; for all of them on the virtual clock (icount), as a replay starts from the beginning.
    fn measure(&mut self, group: &[Case], clock: &Clock, warn: &mut dyn FnMut(String)) -> Result<Measured, Error> {
        let (first_port, mut measured, mut losses) = (self.port, Measured::default(), vec![0; group.len()]);
        while let Err(error) = self.measure_rest(group, clock, &mut measured) {
            // The guest may have been lost after the last case, during the stop.
            let at = measured.records.len().min(group.len() - 1);
            let (retries, how) = match &error {
                Error::Gone { .. } | Error::Silent { .. } => (RETRIES_AFTER_LOSS, error.to_string()),
                Error::Boot { guest, reason, silent: true, .. } => {
                    (RETRIES_AFTER_SILENT_BOOT, format!("guest {guest} {reason}"))
                }
                _ => return Err(error),
            };
            if losses[at] >= retries {
                return Err(error);
            }
            losses[at] += 1;
            let again_from = if *clock == Clock::Wall { &group[at] } else { &group[0] };
            warn(format!(
                "{}A guest was lost; this case and those after it were measured again: {how}",
                again_from.prefix()
            ));
            if *clock == Clock::Wall {
                measured.records.truncate(at);
            } else {
                measured.records.clear();
                self.port = first_port;
            }
        }
        Ok(measured)
    }

    /// Boots the machine and measures the cases that are not measured yet.
    fn measure_rest(&mut self, group: &[Case], clock: &Clock, measured: &mut Measured) -> Result<(), Error> {
        let left = &group[measured.records.len()..];
        let recording = if matches!(clock, Clock::Record(_)) { "record: " } else { "" };
        self.watch.doing(&format!("{}{recording}booting", left[0].prefix()));
        let booting = Instant::now();
        let machine = (self.boot)(&left[0].topology, clock)?;
        measured.boots.push(booting.elapsed().as_secs_f64());
        set_sysctls(machine.as_ref(), &left[0].topology)?;
        for case in left {
            measured.records.push(self.repeat(case, machine.as_ref())?);
        }
        measured.facts = machine.facts();
        machine.stop()
    }

    /// Repeats a case as often as configured; returns its record, and the half-width of its interval if that is too wide.
    fn repeat(&mut self, case: &Case, machine: &dyn Machine) -> Result<(Record, Option<f64>), Error> {
        let at = |node| machine.address(node);
        let mut record = Record::default();
        let too_wide = loop {
            self.watch.doing(&format!("{}repeat {}", case.prefix(), record.repeats + 1));
            case.procedure.prepare(&case.topology, machine, &mut record)?;
            // A server may run a moment longer than its repeat, so the next repeat uses other ports.
            let switches: Vec<CpuSwitch> = case
                .background
                .waits
                .iter()
                .map(|guest| machine.switch(*guest))
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .flatten()
                .collect();
            let mut plan = case.procedure.plan(&case.topology, &at, self.port);
            let commands = plan.servers.len() + plan.clients.len();
            if switches.is_empty() {
                add_load(&mut plan, case);
            }
            self.port = if self.port > u16::MAX - 2 * PORTS { FIRST_PORT } else { self.port + PORTS };
            let slice = Duration::from_secs_f64(waiting::slice(&case.topology) / 1e3);
            let waits: Vec<Waits> = switches.into_iter().map(|switch| Waits::begin(switch, slice)).collect();
            let mut accounts = execute(&plan, |node| machine.agent(node))?;
            drop(waits);
            accounts.truncate(commands);
            case.procedure.read(&case.topology, &at, &accounts, &mut record);
            case.procedure.observe(&case.topology, machine, &accounts, &mut record)?;
            record.repeats += 1;
            self.watch.advance(case.procedure.seconds());
            match self.experiment.repeats.next(record.repeats, &record) {
                Next::Again => {}
                Next::Done => break None,
                Next::TooWide(width) => break Some(width),
            }
        };
        for (name, counters) in machine.counters()? {
            record.note(&name, counters.to_string());
        }
        case.procedure.conclude(&case.topology, &mut record);
        Ok((record, too_wide))
    }
}

/// Applies the kernel settings of a topology to its guests.
fn set_sysctls(machine: &dyn Machine, topology: &Topology) -> Result<(), Error> {
    for guest in 1..=topology.guests.len() {
        for (name, value) in &topology.sysctls {
            let path = Path::new("/proc/sys").join(name.replace('.', "/"));
            machine.agent(Node::Guest(guest)).run(Command::Write { path, text: value.clone() })?;
        }
    }
    Ok(())
}

/// Adds the background load to the procedure's plan.
fn add_load(plan: &mut Plan, case: &Case) {
    for guest in &case.background.guests {
        let spec = busy::Spec { share: case.background.share, seconds: case.procedure.seconds() + OVERLAP };
        plan.start(Node::Guest(*guest), 0.0, Command::Busy(spec));
    }
}

/// Adds metrics, series and figures of all cases to the result, and judges the claims.
pub(super) fn conclude(experiment: &Experiment, cases: &[Finished], result: &mut ResultFile) {
    for case in cases {
        case.record.enter(result, case.name, &case.prefix);
    }
    let Some(procedure) = experiment.cases.first().map(|case| &case.procedure) else { return };
    procedure.compare(cases, result);
    for figure in procedure.figures(cases) {
        result.figure(figure);
    }
    result.claims = experiment.verdicts(result);
}
