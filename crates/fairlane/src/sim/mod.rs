//! Simulates a plan, or an experiment of the lab.

mod compare;
pub(crate) mod experiment;
pub(crate) mod machine;

use crate::{demo, lab, out};
use anyhow::{Context, ensure};
use fairlane_lab::MachineKind;
use fairlane_lab::machine::Backend;
use fairlane_policy::problem::Problem;
use fairlane_report::{ResultFile, text};
use fairlane_sim::Scenario;
use std::io;
use std::path::{Path, PathBuf};

/// Try a policy in virtual time: hosts, guests and traffic of a plan
///
/// The bridges are the daemon's own; guests, their traffic and the wires are simulated. The same plan gives the same result.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The plan
    #[arg(value_name = "PLAN.toml", required_unless_present = "experiment")]
    plan: Option<PathBuf>,
    /// Simulate an experiment of the lab instead: its name, or a file; or `demo`
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["plan", "seed"])]
    experiment: Option<String>,
    /// The kind of machine to simulate it as
    #[arg(long, value_name = "KIND", default_value = "uml", requires = "experiment")]
    machine: MachineKind,
    /// Factor for all rates, instead of the file's for this kind of machine
    #[arg(long, value_name = "FACTOR", requires = "experiment")]
    scale: Option<f64>,
    /// Print a table of the simulation beside these results of the lab
    #[arg(long, value_name = "RESULT.json", num_args = 1.., requires = "experiment", conflicts_with = "json")]
    compare: Vec<PathBuf>,
    /// The directory for result.json and report.html [default: out/sim/PLAN]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Another seed than the plan's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Why a plan cannot be simulated. Displays one line per problem: `plan.toml:12: rate must be ...`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// The file cannot be read.
    #[error("cannot read plan {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file can be read, but has these problems.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// Simulates the plan and writes its result.
///
/// # Errors
/// The plan is wrong, or the result cannot be written.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let result = match (&args.experiment, &args.plan) {
        (Some(name), _) if name == "demo" => {
            let is_its_own = args.machine == MachineKind::Uml && args.scale.is_none();
            ensure!(is_its_own, "the demo has guests of User-Mode Linux (--machine uml) and its own rates");
            demo::simulate()?
        }
        (Some(name), _) => of_experiment(name, args.machine, args.scale)?,
        (None, Some(plan)) => of_plan(plan, args.seed)?,
        (None, None) => unreachable!("one of them is required"),
    };
    if !args.compare.is_empty() {
        return out::print(&compare::table(&result, &args.compare)?);
    }
    let out = args.out.unwrap_or_else(|| Path::new("out/sim").join(&result.experiment));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    result.write(&out)?;
    let text = || format!("{}\nThe plots: {}\n", text::summary(&result), out.join("report.html").display());
    out::print(&if args.json { result.to_json() } else { text() })
}

/// Simulates an experiment with Fairlane as its backend, as the lab would run it on a kind of machine.
fn of_experiment(name: &str, kind: MachineKind, scale: Option<f64>) -> anyhow::Result<ResultFile> {
    let mut experiment = lab::find(name)?;
    experiment.serve_by(Backend::Fairlane, false);
    lab::scale(&mut experiment, kind, scale)?;
    experiment::run(&experiment, kind)
}

/// Simulates a plan.
fn of_plan(path: &Path, seed: Option<u64>) -> anyhow::Result<ResultFile> {
    let (text, mut scenario) = read(path)?;
    scenario.seed = seed.unwrap_or(scenario.seed);
    let mut result = fairlane_sim::run(&scenario)?.result(&scenario);
    result.setting("plan", text).setting("seed", scenario.seed).setting("seconds", scenario.seconds);
    Ok(result)
}

/// Reads a plan.
///
/// # Errors
/// See [`PlanError`].
fn read(path: &Path) -> Result<(String, Scenario), PlanError> {
    let text = std::fs::read_to_string(path).map_err(|error| PlanError::Unreadable { path: path.to_owned(), error })?;
    let scenario = Scenario::parse(path, &text).map_err(PlanError::Invalid)?;
    Ok((text, scenario))
}
