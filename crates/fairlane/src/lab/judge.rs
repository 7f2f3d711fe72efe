//! Judges written results again, by the experiments as they are now.

use super::find;
use crate::out;
use anyhow::bail;
use fairlane_report::{About, Error, ResultFile, Verdict, find as find_results};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Judge the claims of written results again
///
/// For results whose experiment has got other claims, bounds or rules since. What was measured does not change; verdicts, and what
/// follows from several cases together, are computed anew and replaced in the files. Exit status 1 means that a claim about Fairlane
/// does not hold.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Result files, or directories that contain a result.json at any depth
    #[arg(required = true, value_name = "DIR|FILE")]
    results: Vec<PathBuf>,
    /// The experiment's file, if it is not a built-in one
    #[arg(long, value_name = "FILE")]
    experiment: Option<String>,
}

/// Judges all results and replaces their files. Results that are not of a lab's experiment are left alone.
///
/// # Errors
/// A result cannot be read or written.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = match find_results(&args.results) {
        Ok(files) => files,
        Err(errors) => bail!(errors.iter().map(Error::to_string).collect::<Vec<_>>().join("\n")),
    };
    let (mut text, mut failed) = (String::new(), false);
    for file in files {
        let mut result = ResultFile::read(&file)?;
        let Ok(experiment) = find(args.experiment.as_ref().unwrap_or(&result.experiment)) else { continue };
        if experiment.name != result.experiment {
            continue;
        }
        experiment.judge(&mut result);
        result.rewrite(&file)?;
        failed |= !result.holds();
        let held = result.claims.iter().filter(|claim| claim.verdict == Verdict::Holds).count();
        let _ = writeln!(text, "{}: {held} of {} claims hold", file.display(), result.claims.len());
        let ours = result.claims.iter().filter(|claim| claim.about == About::Fairlane);
        for claim in ours.filter(|claim| claim.verdict != Verdict::Holds) {
            let (verdict, text_of, expected, measured) = (claim.verdict, &claim.text, &claim.expected, &claim.measured);
            let _ = writeln!(text, "  {verdict:?}: {text_of} (expected {expected}, measured {measured})");
        }
    }
    out::print(&text)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
