//! Simulates a plan, or runs an experiment, with many settings.

use crate::out::print;
use crate::sim::PlanError;
use anyhow::{Context, ensure};
use clap::{Args, Subcommand, ValueEnum};
use fairlane_report::text;
use fairlane_sweep::{Grid, Store};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;

/// Simulate a plan, or run an experiment of the lab, with many settings, and find the best
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Simulate or run all points of a grid; begun before, go on
    ///
    /// Rows are written to DIR/parts as Parquet files, a part at a time. What is done is kept, however the sweep ends.
    Run {
        #[command(flatten)]
        sweep: Sweep,
        /// Simulations at a time on this computer [default: one for each CPU]; an experiment runs alone
        #[arg(long, value_name = "N", conflicts_with = "on")]
        workers: Option<NonZero<usize>>,
        /// What runs the points on other computers
        #[arg(long, value_name = "ENGINE")]
        on: Option<Engine>,
        /// Print the result as JSON, without progress
        #[arg(long)]
        json: bool,
    },
    /// Tell how far a sweep is, and write the page of what is done
    Status {
        #[command(flatten)]
        sweep: Sweep,
    },
    /// Do the part that HQ_TASK_ID names, from 0: a task of HyperQueue
    #[command(hide = true)]
    Part {
        #[command(flatten)]
        sweep: Sweep,
    },
}

/// A sweep.
#[derive(Args)]
pub(crate) struct Sweep {
    /// The grid
    #[arg(value_name = "GRID.toml")]
    grid: PathBuf,
    /// The directory of its rows, result.json and report.html [default: out/sweep/GRID]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What runs points on other computers.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Engine {
    /// HyperQueue: `hq` with a running server. All its workers see DIR, the grid and the plan by the same paths.
    Hyperqueue,
}

/// Runs the command.
///
/// # Errors
/// The grid is wrong, the directory is another sweep's or cannot be written, or the engine failed.
pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run { sweep, workers, on, json } => {
            let (grid, store) = sweep.open()?;
            let bar = bar(json)?;
            let mut progress = |done, parts| {
                bar.set_length(parts);
                bar.set_position(done);
            };
            match on {
                None => {
                    let workers = if grid.is_experiment() {
                        ensure!(
                            workers.is_none_or(|workers| workers.get() == 1),
                            "an experiment needs the whole computer: leave --workers out"
                        );
                        1
                    } else {
                        workers.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZero::get)
                    };
                    fairlane_sweep::run_here(&store, &grid, workers, &mut progress)?;
                }
                Some(Engine::Hyperqueue) => {
                    fairlane_sweep::run_on_hyperqueue(&store, &grid, &sweep.worker(&store)?, &mut progress)?;
                }
            }
            bar.finish_and_clear();
            finish(&grid, &store, json)
        }
        Command::Status { sweep } => {
            let (grid, store) = sweep.open()?;
            let (missing, parts) = (store.missing()?.len() as u64, store.parts());
            print(&format!("{} of {parts} parts are done\n", parts - missing))?;
            finish(&grid, &store, false)
        }
        Command::Part { sweep } => {
            let (grid, store) = sweep.open()?;
            let given = std::env::var("HQ_TASK_ID").unwrap_or_default();
            let part = given.parse().ok().filter(|part| *part < store.parts());
            let last = store.parts() - 1;
            let part =
                part.with_context(|| format!("HQ_TASK_ID must be a part of this sweep, 0 to {last}, not {given:?}"))?;
            Ok(store.work(&grid, part)?)
        }
    }
}

impl Sweep {
    fn open(&self) -> anyhow::Result<(Grid, Store)> {
        let grid = Grid::read(&self.grid).map_err(PlanError::Invalid)?;
        let out = self.out.clone().unwrap_or_else(|| Path::new("out/sweep").join(&grid.name));
        let store = Store::open(&out, &grid)?;
        Ok((grid, store))
    }

    /// The command that does a part, by paths that do not depend on the directory it runs in.
    fn worker(&self, store: &Store) -> anyhow::Result<[OsString; 6]> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let (grid, out) = (std::path::absolute(&self.grid)?, std::path::absolute(store.path())?);
        Ok([program.into(), "sweep".into(), "part".into(), grid.into(), "--out".into(), out.into()])
    }
}

fn bar(hidden: bool) -> anyhow::Result<ProgressBar> {
    let bar = if hidden { ProgressBar::hidden() } else { ProgressBar::new(0) };
    bar.set_style(ProgressStyle::with_template("{elapsed_precise} {wide_bar} {pos}/{len} parts, {eta} left")?);
    Ok(bar)
}

/// Writes the result of all rows that are there.
fn finish(grid: &Grid, store: &Store, json: bool) -> anyhow::Result<()> {
    let rows = store.rows(grid)?;
    let result = fairlane_sweep::result(grid, store, &rows);
    result.write(store.path())?;
    let page = store.path().join("report.html");
    let best: String = fairlane_sweep::best(grid, &result)
        .into_iter()
        .map(|(setting, value)| format!("  {setting} = {value}\n"))
        .collect();
    let text = || format!("{}\nThe best point:\n{best}\nThe plots: {}\n", text::summary(&result), page.display());
    print(&if json { result.to_json() } else { text() })
}
