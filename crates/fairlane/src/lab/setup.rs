//! Builds what the lab's machines are started with.

use super::screen::Screen;
use crate::out;
use fairlane_lab::experiment::Watch;
use fairlane_lab::images;
use std::process::ExitCode;
use std::time::Instant;

/// Fetch Debian packages and build the lab's images from them
///
/// Images are kept, and built anew only when what they are made from changes. Experiments need no network afterwards.
#[derive(clap::Args)]
pub struct Args {
    /// Build nothing; say what is missing, and exit with status 1 if anything is
    #[arg(long)]
    check: bool,
}

/// Builds, or checks.
///
/// # Errors
/// A sentence that says what to do.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.check {
        let missing = images::check();
        let text = if missing.is_empty() { "nothing is missing\n".to_owned() } else { missing.join("\n") + "\n" };
        out::print(&text)?;
        return Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let start = Instant::now();
    let screen = Screen::open()?;
    let done = images::setup(&|what: &str| screen.doing(what));
    screen.close();
    done?;
    out::print(&format!("the lab is set up; that took {:.1} s\n", start.elapsed().as_secs_f64()))?;
    Ok(ExitCode::SUCCESS)
}
