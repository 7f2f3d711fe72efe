//! Explains what limits a host: reads its counters before and after an interval under load, and judges the changes.

mod advice;
mod finding;
mod fix;
mod load;
mod pinned;
mod rules;
mod show;
mod snapshot;
mod view;

use crate::backend::Backend;
use crate::out;
use anyhow::Context;
use fix::{STATE, Settings};
use show::Report;
use snapshot::Snapshot;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};
use view::Change;

/// Default number of seconds between the two readings.
const SECONDS: f64 = 10.0;
/// How often to check whether the command has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Find out what limits this host, guest or dom0 under its load, and what to change
///
/// Reads counters twice and judges the changes. Exit status: 0 nothing found, 1 findings, 2 counters could not be read.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds between the readings [default: 10; with a command, until it ends]
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Generate a load meanwhile: connections on loopback
    #[arg(long)]
    load: bool,
    /// Comment on all settings commonly recommended for high connection rates, not only on those set on this machine
    #[arg(long)]
    settings: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Show which kernel settings would be changed
    #[arg(long)]
    fix: bool,
    /// Change them, and save the old values
    #[arg(long, requires = "fix")]
    yes: bool,
    /// Also change settings that an administrator has pinned in /etc/sysctl.conf, /etc/sysctl.d or /run/sysctl.d
    #[arg(long, requires = "fix")]
    even_pinned: bool,
    /// Restore the settings that --fix changed
    #[arg(long, conflicts_with_all = ["seconds", "load", "settings", "json", "fix", "command"])]
    undo: bool,
    /// The file with the old values
    #[arg(long, value_name = "FILE", default_value = STATE)]
    state: PathBuf,
    #[command(flatten)]
    backend: Backend,
    /// The command that makes the load; its output goes to standard error
    #[arg(last = true, conflicts_with = "load")]
    command: Vec<String>,
}

/// The counters could not be read, or the settings not changed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct DoctorError(String);

/// Reads the counters, prints the findings and, with --fix, changes settings.
///
/// # Errors
/// [`DoctorError`], for every failure.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let done = if args.undo { undo(&args) } else { examine(&args) };
    done.map_err(|error| DoctorError(format!("{error:#}")).into())
}

fn undo(args: &Args) -> anyhow::Result<ExitCode> {
    let settings = Settings { root: Path::new("/proc/sys"), state: &args.state };
    for line in settings.undo()? {
        out::print(&format!("{line}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn examine(args: &Args) -> anyhow::Result<ExitCode> {
    let readings = read_under_load(args)?;
    let change = Change { before: &readings.before, after: &readings.after, seconds: readings.seconds };
    let mut findings = rules::examine(&change);
    // Our own load fills the processors by design, so this is no finding about the host.
    findings.retain(|finding| !args.load || !["processors", "pressure"].contains(&finding.cause));
    let report = Report::new(&change, readings.command, findings, advice::advice(&readings.after, args.settings));
    if args.json {
        out::print_json(&report)?;
    } else {
        out::print(&report.text())?;
    }
    if args.fix {
        fix(args, &report, &readings.after)?;
    }
    Ok(ExitCode::from(u8::from(!report.findings.is_empty())))
}

/// Two readings of the counters.
struct Readings {
    before: Snapshot,
    after: Snapshot,
    seconds: f64,
    /// How the command ended, if it failed.
    command: Option<String>,
}

fn read_under_load(args: &Args) -> anyhow::Result<Readings> {
    let seconds = args.seconds.unwrap_or(SECONDS);
    if args.load {
        return load::run(seconds, || read_twice(args, || thread::sleep(Duration::from_secs_f64(seconds))));
    }
    let Some((program, arguments)) = args.command.split_first() else {
        return Ok(read_twice(args, || thread::sleep(Duration::from_secs_f64(seconds))));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdout(std::io::stderr());
    let mut started = Err(std::io::Error::other("not started"));
    let mut readings = read_twice(args, || {
        started = command.spawn();
        if let Ok(child) = &mut started {
            wait_for(child, args.seconds);
        }
    });
    let status = started.and_then(|mut child| child.wait()).with_context(|| format!("cannot run {program}"))?;
    readings.command = (!status.success()).then(|| format!("{program} ended with {status}"));
    Ok(readings)
}

/// Waits until the command ends, or for at most `seconds`; then the command keeps running.
fn wait_for(child: &mut Child, seconds: Option<f64>) {
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    while matches!(child.try_wait(), Ok(None)) && end.is_none_or(|end| Instant::now() < end) {
        thread::sleep(POLL_INTERVAL);
    }
}

fn read_twice(args: &Args, meanwhile: impl FnOnce()) -> Readings {
    // Measured from start to start, since a reading takes a while itself.
    let start = Instant::now();
    let before = Snapshot::of_this_machine(&args.backend.control);
    meanwhile();
    let seconds = start.elapsed().as_secs_f64().max(0.001);
    let mut after = Snapshot::of_this_machine(&args.backend.control);
    after.read_cards(&before);
    Readings { before, after, seconds, command: None }
}

/// Shows what would be set, or sets it. If standard output has JSON, this text goes to standard error.
fn fix(args: &Args, report: &Report, snapshot: &Snapshot) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    let mut settings = Vec::new();
    for step in fix::plan(&report.findings, snapshot) {
        match &step.pinned {
            Some(location) if !args.even_pinned => {
                lines.push(format!("{} left alone: pinned in {location} (--even-pinned changes it)", step.setting.key));
            }
            _ => settings.push(step.setting),
        }
    }
    if args.yes {
        lines.extend(Settings { root: Path::new("/proc/sys"), state: &args.state }.apply(&settings)?);
    } else {
        lines.extend(settings.iter().map(|setting| format!("would set {} = {}", setting.key, setting.value)));
    }
    if lines.is_empty() {
        lines.push("no kernel setting to change".to_owned());
    }
    let text = format!("\n{}\n", lines.join("\n"));
    if args.json {
        // If standard error is closed, nobody wants the text.
        let _ = std::io::stderr().write_all(text.as_bytes());
        return Ok(());
    }
    out::print(&text)
}

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.1..=86_400.0).contains(value));
    value.ok_or_else(|| "must be a number of seconds from 0.1 to 86400".to_owned())
}
