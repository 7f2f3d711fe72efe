//! Builds the images of the lab's machines.

use super::screen::Screen;
use crate::out;
use fairlane_lab::experiment::Watch;
use fairlane_lab::images;
use std::process::ExitCode;
use std::time::Instant;

/// Fetch Debian packages and build the lab's images from them
///
/// Images are kept, and rebuilt only when their inputs change. Experiments need no network afterwards.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build nothing; report what is missing, and exit with status 1 if anything is
    #[arg(long)]
    check: bool,
}

/// Builds the images, or checks what is missing.
///
/// # Errors
/// An image cannot be built. The message says what to do.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.check {
        let missing = images::check();
        let text = if missing.is_empty() { "nothing is missing\n".to_owned() } else { missing.join("\n") + "\n" };
        out::print(&text)?;
        return Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let start = Instant::now();
    let screen = Screen::spinner()?;
    let done = images::setup(&|what: &str| screen.doing(what));
    screen.close();
    done?;
    out::print(&format!("the lab is set up after {:.1} s\n", start.elapsed().as_secs_f64()))?;
    Ok(ExitCode::SUCCESS)
}
