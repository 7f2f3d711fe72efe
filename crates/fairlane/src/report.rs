//! Combines results into one page.

use crate::figures::count;
use crate::out::print;
use anyhow::bail;
use fairlane_report::{Error, ResultFile, find, write_figures, write_page};
use std::path::PathBuf;

/// Combine results into one HTML page
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Result files, or directories that contain a result.json at any depth
    #[arg(required = true, value_name = "DIR")]
    results: Vec<PathBuf>,
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Also write each figure to this directory, as an SVG file for a paper, slides or a README
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
}

/// Reads all results, then writes the page. Reports every result that cannot be read.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
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
    let results: Vec<_> = results.iter().collect();
    write_page(&args.out, &results)?;
    print(&format!("{}: {}\n", args.out.display(), count(results.len(), "result")))?;
    if let Some(dir) = args.figures {
        let figures = write_figures(&dir, &results)?;
        print(&format!("{}: {}\n", dir.display(), count(figures, "figure")))?;
    }
    Ok(())
}
