//! Compares results with a base: the loss for each size, and whether it is too high.

mod page;
mod pairs;
mod reference;

use crate::load::parse_percent;
use crate::out;
use fairlane_report::ResultFile;
use pairs::Pair;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compare results with a base, size by size
///
/// A rate lower than the base's counts as a loss; times and counts are shown, but not judged. Exit status 1 means that a loss
/// exceeds --max-loss, or that a result is incomplete.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The result to compare with: a result.json, or its directory
    base: PathBuf,
    /// The results to compare
    #[arg(required = true)]
    others: Vec<PathBuf>,
    /// Largest acceptable loss of any rate, in percent
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    max_loss: Option<f64>,
    /// Also show published figures, with their origin
    #[arg(long)]
    reference: bool,
    /// Write result.json and report.html
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the comparison as a result in JSON
    #[arg(long)]
    json: bool,
}

/// A result with its label.
pub(crate) struct Named {
    label: String,
    result: ResultFile,
}

/// Compares results; shows and writes the comparison.
///
/// # Errors
/// A result cannot be read, or two have nothing in common.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let base = read(&args.base)?;
    let others = args.others.iter().map(|path| read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let all = with_labels(base, others);
    let mut pairs: Vec<Pair> = Vec::new();
    for other in &all[1..] {
        let found = pairs::pairs(&all[0], other);
        if found.is_empty() {
            anyhow::bail!("{} and {} have no series or metric of the same name and unit", all[0].label, other.label);
        }
        pairs.extend(found);
    }
    let result = page::result(&all, &pairs, args.max_loss, args.reference);
    if let Some(dir) = &args.out {
        result.write(dir)?;
    }
    if args.json {
        out::print(&result.to_json())?;
    } else {
        out::print(&page::text(&result, &pairs, args.reference.then_some(&all[0].result)))?;
        if let Some(dir) = &args.out {
            out::print(&format!("\nThe plots: {}\n", dir.join("report.html").display()))?;
        }
    }
    let complete = all.iter().all(|named| complete(&named.result));
    Ok(if complete && result.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a run was complete.
fn complete(result: &ResultFile) -> bool {
    result.settings.get("complete").is_none_or(|complete| complete != false)
}

fn read(path: &Path) -> anyhow::Result<(PathBuf, ResultFile)> {
    Ok((path.to_owned(), ResultFile::read(path)?))
}

/// Labels results with the names of their machines, or with their paths if those names are not distinct.
fn with_labels(base: (PathBuf, ResultFile), others: Vec<(PathBuf, ResultFile)>) -> Vec<Named> {
    let all: Vec<_> = std::iter::once(base).chain(others).collect();
    let machines: Vec<_> = all.iter().filter_map(|(_, result)| result.machine.clone()).collect();
    let distinct =
        machines.len() == all.len() && machines.iter().enumerate().all(|(nth, name)| !machines[..nth].contains(name));
    let label = |path: &Path, result: &ResultFile| match &result.machine {
        Some(machine) if distinct => machine.clone(),
        _ => path.display().to_string(),
    };
    all.into_iter().map(|(path, result)| Named { label: label(&path, &result), result }).collect()
}
