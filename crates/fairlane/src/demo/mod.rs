//! The demo: real guests flood a link of 100 Mbit/s, and their rates follow from the policy, not from the load they offer.
//!
//! [`acts`] defines what is shown, [`stage`] starts backend and guests, [`measure`] runs an act, [`judge`] compares the
//! measurements with the claims, [`report`] writes the result. [`early`] and [`neighbour`] are acts with transfers and pings.
//! [`simulated`] has all acts in the simulator.

mod acts;
mod early;
mod judge;
mod ledger;
mod measure;
mod neighbour;
mod report;
mod simulated;
mod stage;

use acts::{Act, Name};
use anyhow::Context;
use clap::ValueEnum;
use fairlane_lab::{Error, Kind, interrupt};
use fairlane_report::ResultFile;
use indicatif::{ProgressBar, ProgressStyle};
pub(crate) use simulated::simulate;
use stage::Stage;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Boot real guests, flood a shared link from them, and show each guest's rate
///
/// Takes about two minutes, and does not need root. The exit status is 0 only if every claim about Fairlane holds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The kind of guests
    #[arg(long, value_enum, default_value = "uml")]
    guest: GuestKind,
    /// The directory for result.json and report.html
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Print the result as JSON, without progress
    #[arg(long)]
    json: bool,
    /// Seconds of each act with constant settings
    #[arg(long, value_name = "N", default_value_t = SECONDS as u16, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// The acts to show
    #[arg(long, value_name = "ACT", value_enum, value_delimiter = ',', default_values = ["before", "fair", "wrr", "weights", "min-rate", "early-ack", "neighbour"])]
    acts: Vec<Name>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GuestKind {
    /// User-Mode Linux
    Uml,
    /// QEMU, with KVM if that can boot a guest
    Qemu,
}

impl From<GuestKind> for Kind {
    fn from(kind: GuestKind) -> Kind {
        match kind {
            GuestKind::Uml => Kind::Uml,
            GuestKind::Qemu => Kind::Qemu,
        }
    }
}

/// The length of an act with constant settings, in seconds, unless otherwise chosen.
const SECONDS: usize = 8;

/// The length of booting on the progress bar, in tenths of a second.
const BOOT: u64 = 20;

/// Runs the demo.
///
/// # Errors
/// Something is missing on this machine, a guest ended (with the end of its console), or the result cannot be written.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("cannot block signals")?;
    let progress = if args.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let result = run_acts(&args, &progress);
    progress.finish_and_clear();
    let result = match result {
        Err(error) if matches!(error.downcast_ref(), Some(Error::Interrupted)) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            return Ok(ExitCode::from(130));
        }
        result => result?,
    };
    result.write(&args.out)?;
    let text = if args.json { result.to_json() } else { report::text(&result, &args.out) };
    crate::out::print(&text)?;
    Ok(if result.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all selected acts, in order.
fn run_acts(args: &Args, progress: &ProgressBar) -> anyhow::Result<ResultFile> {
    let start = Instant::now();
    let mut result = ResultFile::new("demo");
    let selected = Name::value_variants().iter().filter(|name| args.acts.contains(name));
    let acts: Vec<Act> = selected.filter_map(|name| acts::act(*name, args.seconds.into())).collect();
    // A wire's backpressure cannot be changed while it runs, so act `before` has its own stage.
    let groups: Vec<&[Act]> = acts.chunk_by(|a, b| (a.name == Name::Before) == (b.name == Name::Before)).collect();
    let length: usize = acts.iter().map(measure::intervals).sum();
    let early = args.acts.contains(&Name::EarlyAck);
    let early_length = if early { BOOT + early::LENGTH } else { 0 };
    let neighbour = args.acts.contains(&Name::Neighbour);
    let neighbour_length = if neighbour { BOOT + neighbour::LENGTH } else { 0 };
    progress.set_length(groups.len() as u64 * BOOT + length as u64 + early_length + neighbour_length);
    let style = "{elapsed_precise} {wide_bar} {msg}";
    progress.set_style(ProgressStyle::with_template(style).context("the progress bar's template")?);
    progress.enable_steady_tick(Duration::from_millis(100));
    report::add_settings(&mut result, args);
    for group in groups {
        progress.set_message("booting guests");
        let senders = group.iter().map(|act| act.loads.len()).max().unwrap_or(0);
        let backpressure = group.iter().all(|act| act.name != Name::Before);
        let boot_start = Instant::now();
        let stage = Stage::build(args.guest.into(), senders, backpressure)?;
        report::add_stage(&mut result, &stage, boot_start.elapsed(), backpressure);
        progress.inc(BOOT);
        for act in group {
            let measured = measure::run(act, &stage, progress)?;
            report::add(&mut result, act, &measured);
        }
    }
    if early {
        progress.set_message("booting guests");
        let stage = Stage::build(args.guest.into(), 1, true)?;
        progress.inc(BOOT);
        early::run(&stage, &mut result, progress)?;
    }
    if neighbour {
        progress.set_message("booting guests");
        let stage = Stage::build(args.guest.into(), 2, true)?;
        progress.inc(BOOT);
        neighbour::run(&stage, &mut result, progress)?;
    }
    report::add_total_time(&mut result, start.elapsed());
    Ok(result)
}
