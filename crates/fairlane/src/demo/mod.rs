//! The demo: real guests flood a link of 100 Mbit/s, and who gets what follows from the policy, not from who shouts most.
//!
//! [`acts`] says what is shown, [`stage`] sets it up, [`take`] performs and measures it, [`judge`] compares with what was
//! promised, [`report`] writes it down; [`early`] is an act of another kind.

mod acts;
mod early;
mod judge;
mod ledger;
mod report;
mod stage;
mod take;

use crate::interrupt::Interrupt;
use acts::{Act, Name};
use anyhow::Context;
use clap::ValueEnum;
use fairlane_lab::{Error, Kind};
use fairlane_report::ResultFile;
use indicatif::{ProgressBar, ProgressStyle};
use stage::Stage;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Boot real guests, flood a shared link from them, and show who gets what
///
/// Takes about a minute and no root. Exit status 0 only if every claim about Fairlane holds.
#[derive(clap::Args)]
pub struct Args {
    /// What the guests run on
    #[arg(long, value_enum, default_value = "uml")]
    guest: GuestKind,
    /// Where result.json and report.html are written
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Print the result as JSON, and no progress
    #[arg(long)]
    json: bool,
    /// Length of each act whose settings stay the same
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// The acts to show
    #[arg(long, value_name = "ACT", value_enum, value_delimiter = ',', default_values = ["before", "fair", "wrr", "weights", "min-rate", "early-ack"])]
    acts: Vec<Name>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GuestKind {
    /// User-Mode Linux
    Uml,
    /// QEMU, with KVM where that boots a guest
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

/// What the progress counts for booting, in tenths of a second.
const BOOT: u64 = 20;

/// Runs the demo.
///
/// # Errors
/// A sentence: what is missing on this machine, which guest ended and what it said last, what cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::watch().context("cannot take over signals")?;
    let progress = if args.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let result = play(&args, &progress, &interrupt);
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

/// Shows all acts wanted, in order.
fn play(args: &Args, progress: &ProgressBar, interrupt: &Interrupt) -> anyhow::Result<ResultFile> {
    let start = Instant::now();
    let mut result = ResultFile::new("demo");
    let wanted = Name::value_variants().iter().filter(|name| args.acts.contains(name));
    let acts: Vec<Act> = wanted.filter_map(|name| acts::act(*name, args.seconds.into())).collect();
    // A wire's backpressure cannot change while it runs, so the first act has a stage of its own.
    let parts: Vec<&[Act]> = acts.chunk_by(|a, b| (a.name == Name::Before) == (b.name == Name::Before)).collect();
    let length: usize = acts.iter().map(take::intervals).sum();
    let early = args.acts.contains(&Name::EarlyAck);
    let early_length = if early { BOOT + early::LENGTH } else { 0 };
    progress.set_length(parts.len() as u64 * BOOT + length as u64 + early_length);
    let style = "{elapsed_precise} {wide_bar} {msg}";
    progress.set_style(ProgressStyle::with_template(style).context("the progress bar's template")?);
    progress.enable_steady_tick(Duration::from_millis(100));
    report::begin(&mut result, args);
    for part in parts {
        progress.set_message("booting guests");
        let senders = part.iter().map(|act| act.loads.len()).max().unwrap_or(0);
        let backpressure = part.iter().all(|act| act.name != Name::Before);
        let booting = Instant::now();
        let stage = Stage::build(args.guest.into(), senders, backpressure)?;
        report::booted(&mut result, &stage, booting.elapsed(), backpressure);
        progress.inc(BOOT);
        for act in part {
            let take = take::perform(act, &stage, progress, interrupt)?;
            report::add(&mut result, act, &take);
        }
    }
    if early {
        progress.set_message("booting guests");
        let stage = Stage::build(args.guest.into(), 1, true)?;
        progress.inc(BOOT);
        early::perform(&stage, &mut result, progress, interrupt)?;
    }
    report::end(&mut result, start.elapsed());
    Ok(result)
}
