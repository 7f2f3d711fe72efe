//! Explains a slow host: reads its counters before and after an interval under load, and judges what changed.

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

/// Seconds between the readings, if nothing else says when.
const SECONDS: f64 = 10.0;
/// How often it is looked whether the command has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Say what limits this host, guest or dom0 under its load, and what to change
///
/// Reads counters twice and judges what changed between. Exit status: 0 nothing found, 1 findings, 2 it could not look.
#[derive(clap::Args)]
pub struct Args {
    /// Seconds between the readings [default: 10; with a command, until it ends]
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Make a load of our own meanwhile: connections on loopback
    #[arg(long)]
    load: bool,
    /// Speak of all settings passed on for high connection rates, not only of those set here
    #[arg(long)]
    settings: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Show which kernel settings would be changed
    #[arg(long)]
    fix: bool,
    /// Change them, and keep the old values
    #[arg(long, requires = "fix")]
    yes: bool,
    /// Change those too that an administrator has pinned in /etc/sysctl.conf, /etc/sysctl.d or /run/sysctl.d
    #[arg(long, requires = "fix")]
    even_pinned: bool,
    /// Put back what --fix changed
    #[arg(long, conflicts_with_all = ["seconds", "load", "settings", "json", "fix", "command"])]
    undo: bool,
    /// The file of old values
    #[arg(long, value_name = "FILE", default_value = STATE)]
    state: PathBuf,
    #[command(flatten)]
    backend: Backend,
    /// The load: run meanwhile, its output on standard error
    #[arg(last = true, conflicts_with = "load")]
    command: Vec<String>,
}

/// It could not look, or not change what it should.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DoctorError(String);

/// Looks, says and, if told so, changes.
///
/// # Errors
/// [`DoctorError`], whatever was in the way.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
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
    let looked = look(args)?;
    let change = Change { before: &looked.before, after: &looked.after, seconds: looked.seconds };
    let mut findings = rules::examine(&change);
    // Our own load takes all there is: that it fills the processors says nothing of the host.
    findings.retain(|finding| !args.load || !["processors", "pressure"].contains(&finding.cause));
    let report = Report::new(&change, looked.command, findings, advice::advice(&looked.after, args.settings));
    if args.json {
        out::print_json(&report)?;
    } else {
        out::print(&report.text())?;
    }
    if args.fix {
        fix(args, &report, &looked.after)?;
    }
    Ok(ExitCode::from(u8::from(!report.findings.is_empty())))
}

/// Two readings.
struct Looked {
    before: Snapshot,
    after: Snapshot,
    seconds: f64,
    /// How the command ended, if not well.
    command: Option<String>,
}

fn look(args: &Args) -> anyhow::Result<Looked> {
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
    let mut looked = read_twice(args, || {
        started = command.spawn();
        if let Ok(child) = &mut started {
            watch(child, args.seconds);
        }
    });
    let status = started.and_then(|mut child| child.wait()).with_context(|| format!("cannot run {program}"))?;
    looked.command = (!status.success()).then(|| format!("{program} ended with {status}"));
    Ok(looked)
}

/// Waits until the command ends, for so many seconds at most. It goes on by itself.
fn watch(child: &mut Child, seconds: Option<f64>) {
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    while matches!(child.try_wait(), Ok(None)) && end.is_none_or(|end| Instant::now() < end) {
        thread::sleep(LOOK);
    }
}

fn read_twice(args: &Args, meanwhile: impl FnOnce()) -> Looked {
    // From beginning to beginning: a reading takes a while itself.
    let start = Instant::now();
    let before = Snapshot::of_this_machine(&args.backend.control);
    meanwhile();
    let seconds = start.elapsed().as_secs_f64().max(0.001);
    let mut after = Snapshot::of_this_machine(&args.backend.control);
    after.ask_about_cards(&before);
    Looked { before, after, seconds, command: None }
}

/// Shows what would be set, or sets it. With JSON on standard output, what is said goes to standard error.
fn fix(args: &Args, report: &Report, snapshot: &Snapshot) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    let mut settings = Vec::new();
    for step in fix::plan(&report.findings, snapshot) {
        match &step.pinned {
            Some(place) if !args.even_pinned => {
                lines.push(format!("{} left alone: pinned in {place} (--even-pinned changes it)", step.setting.key));
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
        // Where nobody reads it, nothing is lost.
        let _ = std::io::stderr().write_all(text.as_bytes());
        return Ok(());
    }
    out::print(&text)
}

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.1..=86_400.0).contains(value));
    value.ok_or_else(|| "must be a number of seconds from 0.1 to 86400".to_owned())
}
