//! Runs experiments and writes their results.

use super::screen::Screen;
use super::{ExperimentError, find};
use crate::out;
use anyhow::Context;
use fairlane_lab::experiment::{self, Experiment, Options, Repeats, Watch};
use fairlane_lab::machine::{self, Backend};
use fairlane_lab::{Error, MachineKind, images, interrupt};
use fairlane_report::ResultFile;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run an experiment on a machine and check the claims of its paper
///
/// A claim of the paper that does not hold is a finding; a claim about Fairlane that does not hold is a failure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The experiment's name (see `fairlane lab list`), or a file
    #[arg(value_name = "NAME|FILE")]
    experiment: String,
    /// The kind of machine
    #[arg(long, value_name = "KIND", default_value = "xen")]
    machine: MachineKind,
    /// The backend of the guests' cards: kernel (netback, vhost-net or a tap), or fairlane on xen, kvm, uml and qemu
    #[arg(long, value_name = "BACKEND", default_value = "kernel")]
    backend: Backend,
    /// Whether Fairlane acknowledges TCP data early, for guests that wait for a CPU; needs --backend fairlane
    #[arg(long, value_enum, value_name = "OFF|ON", default_value = "off")]
    early_ack: Switch,
    /// The clock of the machine
    #[arg(long, value_enum, default_value = "wall")]
    clock: ClockName,
    /// The directory for result.json, report.html and the consoles' logs [default: out/lab/NAME-KIND[-BACKEND][-early-ack][-instructions]]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON, without progress
    #[arg(long)]
    json: bool,
    /// Repeats of each case, instead of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: Option<u16>,
    /// Factor for all rates, instead of the file's for this kind of machine
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// A short trial, too short to judge a paper's claims
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Switch {
    Off,
    On,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum ClockName {
    /// The real clock
    Wall,
    /// The virtual clock (icount), a nanosecond per instruction: repeatable to the digit. On xen; requests count instructions on box and kvm too
    Instructions,
}

impl ClockName {
    fn as_str(self) -> &'static str {
        match self {
            ClockName::Wall => "wall",
            ClockName::Instructions => "instructions",
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// The file is invalid, something is missing on this machine, or a guest did not boot (with the end of its console).
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut experiment = find(&args.experiment)?;
    let repeats = experiment.repeats.most();
    let scale = prepare(&mut experiment, &args)?;
    let out = args.out.clone().unwrap_or_else(|| default_directory(&experiment.name, &args));
    let logs = out.join("logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    interrupt::watch().context("cannot block signals")?;
    let screen = if args.json { Screen::hidden() } else { Screen::bar(experiment.seconds())? };
    let result = measure(&experiment, &args, scale, &logs, &screen);
    screen.close();
    let mut result = match result {
        Err(Error::Interrupted) => {
            let _ = writeln!(std::io::stderr(), "interrupted");
            return Ok(ExitCode::from(130));
        }
        result => result?,
    };
    add_warnings(&mut result, &experiment, &args, repeats);
    result.write(&out)?;
    let text =
        || format!("{}\nThe plots: {}\n", fairlane_report::text::summary(&result), out.join("report.html").display());
    out::print(&if args.json { result.to_json() } else { text() })?;
    Ok(if result.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the experiment on its machines.
fn measure(
    experiment: &Experiment,
    args: &Args,
    scale: f64,
    logs: &Path,
    screen: &Screen,
) -> Result<ResultFile, Error> {
    let scripts = match args.clock {
        ClockName::Instructions if args.machine.has_virtual_clock() => Some(images::directory()?),
        _ => None,
    };
    let boot = |topology: &_, clock: &_| machine::boot(args.machine, topology, clock, logs, &|what| screen.doing(what));
    let options = Options { machine: machine_name(args), scale, settings: settings(args), scripts };
    experiment::run(experiment, &options, &boot, screen)
}

/// Adds warnings about limits of the result. `repeats` is the number in the experiment's file.
fn add_warnings(result: &mut ResultFile, experiment: &Experiment, args: &Args, repeats: usize) {
    if args.clock == ClockName::Instructions && !args.machine.has_virtual_clock() {
        let machine = args.machine;
        result.warn(format!(
            "Instructions were counted while the real clock ran: machine {machine} has no virtual clock."
        ));
    }
    let most = experiment.repeats.most();
    if args.quick {
        result.warn("A short trial (--quick): too short to judge the paper's claims.");
    } else if most < repeats {
        result.warn(format!("At most {most} repeats of each case, not {repeats}."));
    }
}

/// The machine's name in results, with the backend unless it is the default.
fn machine_name(args: &Args) -> String {
    let backend = if args.backend == Backend::default() { String::new() } else { format!("-{}", args.backend) };
    let early = if args.early_ack == Switch::On { "-early-ack" } else { "" };
    format!("{}{backend}{early}", args.machine)
}

/// The default directory of a result.
fn default_directory(name: &str, args: &Args) -> PathBuf {
    let clock = if args.clock == ClockName::Instructions { "-instructions" } else { "" };
    format!("out/lab/{name}-{}{clock}", machine_name(args)).into()
}

/// Adapts the experiment to the machine and the options. Returns the factor for its rates.
fn prepare(experiment: &mut Experiment, args: &Args) -> Result<f64, ExperimentError> {
    let kind = args.machine;
    if args.clock == ClockName::Instructions && experiment.machines.contains(&kind) {
        experiment.count(kind);
    }
    check_options(experiment, args)?;
    experiment.serve_by(args.backend, args.early_ack == Switch::On);
    let scale = super::scale(experiment, kind, args.scale)?;
    experiment.place(kind);
    if args.quick {
        experiment.shorten();
    }
    if let Some(repeats) = args.repeats {
        experiment.repeats = Repeats::Count(repeats.into());
    } else if args.clock == ClockName::Instructions {
        experiment.fix_repeats();
    }
    Ok(scale)
}

/// Refuses options that the experiment or the machine does not support.
fn check_options(experiment: &Experiment, args: &Args) -> Result<(), ExperimentError> {
    let (name, kind, backend) = (&experiment.name, args.machine, args.backend);
    let refuse = |message: String| Err(ExperimentError::Impossible(message));
    experiment.runs_on(kind).map_err(ExperimentError::Impossible)?;
    let counts = kind.has_virtual_clock() || kind.counts() && experiment.counts();
    if args.clock == ClockName::Instructions && !counts {
        return refuse(format!(
            "machine {kind} has the wall clock only for {name}; xen has the virtual clock (icount)"
        ));
    }
    if args.clock == ClockName::Wall && experiment.cases.iter().any(|case| case.topology.count) {
        return refuse(format!("{name} counts instructions: it needs --clock instructions"));
    }
    if backend == Backend::Fairlane && !kind.supports_fairlane() {
        return refuse(format!("machine {kind} does not support --backend fairlane; {} do", machine::with_fairlane()));
    }
    if args.early_ack == Switch::On && backend != Backend::Fairlane {
        return refuse("--early-ack on needs --backend fairlane".to_owned());
    }
    if !experiment.backends.contains(&backend) {
        let backends: Vec<&str> = experiment.backends.iter().map(|backend| backend.name()).collect();
        let backends = backends.join(", ");
        return refuse(format!("{name} does not run on backend {backend}; it needs --backend {backends}"));
    }
    Ok(())
}

fn settings(args: &Args) -> BTreeMap<String, serde_json::Value> {
    BTreeMap::from([("clock".to_owned(), args.clock.as_str().into())])
}
