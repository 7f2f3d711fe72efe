//! Joins results into one page.

use crate::out;
use anyhow::bail;
use fairlane_report::{Error, ResultFile, find, write_page};
use std::path::PathBuf;

/// Join results into one HTML page
#[derive(clap::Args)]
pub struct Args {
    /// Result files, or directories with a result.json in them or anywhere below
    #[arg(required = true, value_name = "DIR")]
    results: Vec<PathBuf>,
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
}

/// Reads all results, then writes the page; says of every result that cannot be read why.
pub fn run(args: Args) -> anyhow::Result<()> {
    let read = find(&args.results).and_then(|files| {
        let (results, errors): (Vec<_>, Vec<_>) =
            files.iter().map(|file| ResultFile::read(file)).partition(Result::is_ok);
        let errors: Vec<Error> = errors.into_iter().filter_map(Result::err).collect();
        if errors.is_empty() { Ok(results.into_iter().flatten().collect::<Vec<_>>()) } else { Err(errors) }
    });
    let results = match read {
        Ok(results) => results,
        Err(errors) => bail!(errors.iter().map(Error::to_string).collect::<Vec<_>>().join("\n")),
    };
    write_page(&args.out, &results.iter().collect::<Vec<_>>())?;
    let plural = if results.len() == 1 { "" } else { "s" };
    out::print(&format!("{}: {} result{plural}\n", args.out.display(), results.len()))
}
