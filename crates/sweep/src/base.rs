//! What a grid's points are made of: a plan, which is simulated, or an experiment of the lab, which is run on its machines.

use crate::named::{self, Digests};
use fairlane_lab::MachineKind;
use fairlane_lab::experiment::Experiment;
use fairlane_lab::machine::Backend;
use fairlane_policy::problem::Problem;
use fairlane_report::{Metric, ResultFile};
use fairlane_sim::Scenario;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use toml::{Table, Value};

/// Metrics by name.
pub(crate) type Metrics = BTreeMap<String, Metric>;

/// A plan or an experiment.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    file: PathBuf,
    pub text: String,
    pub table: Table,
    /// Where an experiment runs; none for a plan.
    lab: Option<Lab>,
}

/// Where an experiment runs: options of `fairlane lab run`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lab {
    machine: MachineKind,
    #[serde(default)]
    backend: Backend,
    #[serde(default)]
    early_ack: bool,
    #[serde(default)]
    clock: Clock,
}

/// The clock of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Clock {
    #[default]
    Wall,
    Instructions,
}

impl Lab {
    fn options(&self) -> Vec<&'static str> {
        let mut options = vec!["--machine", self.machine.name(), "--backend", self.backend.name()];
        if self.early_ack {
            options.extend(["--early-ack", "on"]);
        }
        if self.clock == Clock::Instructions {
            options.extend(["--clock", "instructions"]);
        }
        options
    }
}

impl Base {
    /// A file's text as a plan, or as an experiment that runs in this lab.
    ///
    /// # Errors
    /// What is wrong with it, by its own lines.
    pub(crate) fn new(file: PathBuf, text: String, lab: Option<Lab>) -> Result<Base, Vec<Problem>> {
        check(&file, &text, lab)?;
        let table = text.parse().unwrap_or_default();
        Ok(Base { file, text, table, lab })
    }

    /// Whether it is an experiment: a run of it needs a whole computer.
    pub(crate) fn is_experiment(&self) -> bool {
        self.lab.is_some()
    }

    /// What it is called.
    pub(crate) fn noun(&self) -> &'static str {
        if self.is_experiment() { "experiment" } else { "plan" }
    }

    /// The files that it names as it stands, or with some of these values.
    pub(crate) fn files<'a>(&'a self, values: impl Iterator<Item = &'a Value>) -> Digests {
        named::digests(&self.file, self.table.values().chain(values))
    }

    /// Where points are run.
    pub(crate) fn machine(&self) -> &'static str {
        self.lab.map_or("simulation", |lab| lab.machine.name())
    }

    /// What a file with other values is wrong in. Its lines are those of a text that nobody has.
    pub(crate) fn check(&self, table: &Table) -> Result<(), String> {
        check(&self.file, &table.to_string(), self.lab).map_err(messages)
    }

    /// Runs the file with other values, and with a seed if it is a plan.
    ///
    /// # Errors
    /// The values are wrong, or the run failed.
    pub(crate) fn run(&self, mut table: Table, seed: u64) -> Result<Metrics, String> {
        match self.lab {
            None => {
                table.insert("seed".to_owned(), Value::Integer(seed as i64));
                let scenario = Scenario::parse(&self.file, &table.to_string()).map_err(messages)?;
                let outcome = fairlane_sim::run(&scenario).map_err(|why| why.to_string())?;
                Ok(outcome.result(&scenario).metrics)
            }
            Some(lab) => {
                let output = self.run_in(lab, &table).map_err(|why| why.to_string())?;
                let result = ResultFile::from_json(&String::from_utf8_lossy(&output.stdout), "the result");
                result.map(|result| result.metrics).map_err(|_| {
                    let said = String::from_utf8_lossy(&output.stderr);
                    said.trim().lines().next_back().map_or_else(|| output.status.to_string(), str::to_owned)
                })
            }
        }
    }

    /// Runs an experiment, by this program's own command in a process of its own: its machines, and what goes wrong with them, end with it,
    /// and it ends with this one, however that ends.
    fn run_in(&self, lab: Lab, table: &Table) -> std::io::Result<Output> {
        let place = tempfile::tempdir()?;
        let file = place.path().join(self.file.file_name().unwrap_or_default());
        std::fs::write(&file, table.to_string())?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .arg(std::env::current_exe()?)
            .args(["lab", "run"])
            .arg(&file)
            .args(lab.options())
            .args(["--repeats", "1", "--json", "--out"]);
        command.arg(place.path().join("out")).stdin(Stdio::null()).output()
    }
}

fn check(file: &Path, text: &str, lab: Option<Lab>) -> Result<(), Vec<Problem>> {
    let Some(lab) = lab else { return Scenario::parse(file, text).map(|_| ()) };
    let name = file.display().to_string();
    let experiment = Experiment::parse(&name, text)?;
    experiment.runs_on(lab.machine).map_err(|message| vec![Problem { file: name, line: 1, message }])
}

fn messages(problems: Vec<Problem>) -> String {
    problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>().join("; ")
}
