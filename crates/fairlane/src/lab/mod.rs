//! The lab: real guests on one machine in every way there is, and the sources' experiments on them.

mod list;
mod run;
mod screen;
mod setup;

use anyhow::Context;
use fairlane_lab::experiment::{BUILT_IN, Experiment};
use fairlane_policy::problem::Problem;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Repeat the sources' experiments on machines of today
#[derive(clap::Subcommand)]
pub enum Command {
    List(list::Args),
    Setup(setup::Args),
    Run(run::Args),
}

/// Runs a subcommand.
///
/// # Errors
/// A sentence: what is missing, what is wrong with a file, which guest did not boot.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list::run(args).map(|()| ExitCode::SUCCESS),
        Command::Setup(args) => setup::run(args),
        Command::Run(args) => run::run(args),
    }
}

/// Why a name or file is no experiment.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// Neither is there.
    #[error("no experiment or file is named `{given}`; the experiments are {}", BUILT_IN.map(|(name, _)| name).join(", "))]
    Unknown {
        /// What was given.
        given: String,
    },
    /// It cannot be read.
    #[error("cannot read experiment {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It can, and this is wrong with it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Wrong(Vec<Problem>),
    /// It is right, and cannot be run so.
    #[error("{0}")]
    Impossible(String),
}

/// The experiment of this name, or in this file.
fn find(given: &str) -> Result<Experiment, ExperimentError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == given) {
        return Experiment::parse(&format!("experiments/{name}.toml"), text).map_err(ExperimentError::Wrong);
    }
    let path = Path::new(given);
    match std::fs::read_to_string(path) {
        Ok(text) => Experiment::parse(given, &text).map_err(ExperimentError::Wrong),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ExperimentError::Unknown { given: given.to_owned() })
        }
        Err(error) => Err(ExperimentError::Unreadable { path: path.to_owned(), error }),
    }
}

/// All experiments that come with the lab.
fn all() -> anyhow::Result<Vec<Experiment>> {
    let experiments = BUILT_IN.iter().map(|(name, _)| find(name)).collect::<Result<_, _>>();
    experiments.context("an experiment that comes with the lab")
}
