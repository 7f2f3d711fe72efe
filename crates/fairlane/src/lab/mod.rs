//! The lab's command: real guests on several kinds of machine, and published experiments on them.

mod judge;
mod list;
mod run;
mod screen;
mod setup;

use anyhow::Context;
use fairlane_lab::MachineKind;
use fairlane_lab::experiment::{BUILT_IN, Experiment};
use fairlane_policy::problem::Problem;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Repeat published experiments on current machines
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Setup(setup::Args),
    Run(run::Args),
    Judge(judge::Args),
}

/// Runs a subcommand.
///
/// # Errors
/// Something is missing, a file is invalid, or a guest did not boot.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list::run(args).map(|()| ExitCode::SUCCESS),
        Command::Setup(args) => setup::run(args),
        Command::Run(args) => run::run(args),
        Command::Judge(args) => judge::run(args),
    }
}

/// Why an experiment cannot be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExperimentError {
    /// There is neither an experiment nor a file of this name.
    #[error("no experiment or file is named `{given}`; the experiments are {}", BUILT_IN.map(|(name, _)| name).join(", "))]
    Unknown {
        /// The given name.
        given: String,
    },
    /// The file cannot be read.
    #[error("cannot read experiment {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file can be read, but has these problems.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
    /// The experiment is valid, but cannot be run with these options.
    #[error("{0}")]
    Impossible(String),
}

/// Multiplies all rates of an experiment by a given factor, or its own for this kind of machine. Returns the factor.
pub(crate) fn scale(
    experiment: &mut Experiment,
    kind: MachineKind,
    given: Option<f64>,
) -> Result<f64, ExperimentError> {
    let scale = given.or_else(|| experiment.scale.get(&kind).copied()).unwrap_or(1.0);
    if !(0.001..=10.0).contains(&scale) {
        return Err(ExperimentError::Impossible(format!("--scale must be 0.001 to 10, not {scale}")));
    }
    experiment.scale(scale);
    Ok(scale)
}

/// Finds the experiment of this name, or reads it from this file.
pub(crate) fn find(given: &str) -> Result<Experiment, ExperimentError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == given) {
        return Experiment::parse(&format!("experiments/{name}.toml"), text).map_err(ExperimentError::Invalid);
    }
    let path = Path::new(given);
    match std::fs::read_to_string(path) {
        Ok(text) => Experiment::parse(given, &text).map_err(ExperimentError::Invalid),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ExperimentError::Unknown { given: given.to_owned() })
        }
        Err(error) => Err(ExperimentError::Unreadable { path: path.to_owned(), error }),
    }
}

/// All built-in experiments.
fn all() -> anyhow::Result<Vec<Experiment>> {
    let experiments = BUILT_IN.iter().map(|(name, _)| find(name)).collect::<Result<_, _>>();
    experiments.context("a built-in experiment")
}
