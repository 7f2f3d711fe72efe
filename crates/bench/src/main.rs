//! Compares Fairlane with its peers, in one run on one machine.
//!
//! Absolute rates on a shared machine differ by half between runs. So all contestants are set up, each runs for a slice of some 100
//! milliseconds while the others stand still, and the report has the ratios within each round of slices: their median, with a 95%
//! interval. Rates and times are shown, but claims are about ratios only. Instructions are counted, which no machine's speed changes.
#![forbid(unsafe_code)]

mod ack;
mod backend;
#[path = "../../core/benches/decision/mod.rs"]
mod decision;
mod forward;
mod guest;
mod instructions;
mod limit;
mod load;
mod machine;
mod ovs;
mod pair;
mod process;
mod rounds;
mod rx;
mod sched;
mod served;
mod sim;
mod telemetry;
mod testpmd;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use fairlane_lab::interrupt;
use fairlane_report::{About, Bounds, Claim, ResultFile, Verdict, bracketed, quantity, text};
use indicatif::{FormattedDuration, ProgressBar, ProgressStyle};
use machine::{Machine, Missing};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Compares Fairlane with DPDK, Open vSwitch and the kernel's bridge, and its load client with others.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Run only this part; can be repeated.
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<Part>,
    /// Most seconds of a comparison, which ends earlier once its ratios are known within 3%.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The directory for `result.json` and `report.html`.
    #[arg(long, value_name = "DIR", default_value = "out/bench")]
    out: PathBuf,
    #[command(flatten)]
    served: served::Serve,
}

/// A comparison.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Frames of 64 bytes from a guest into the backend.
    Rx,
    /// Frames of 64 bytes from guest to guest.
    Forward,
    /// Instructions and cache misses per frame of 64 bytes.
    Instructions,
    /// Nanoseconds per scheduling decision.
    Sched,
    /// The simulator's speed, and its memory per vif.
    Sim,
    /// Nanoseconds of early ack per frame.
    Ack,
    /// TCP between two guests.
    Guest,
    /// TCP toward a guest with a limit.
    Limit,
    /// The load client beside other load generators.
    Load,
}

impl Part {
    /// About how long it takes on an idle machine, with at most so many seconds a comparison.
    fn about(self, seconds: u32) -> Duration {
        // Comparisons in slices end when their ratios are known, or once the time is over.
        let slices = |count: u32, known_after: u32| count * seconds.min(known_after);
        Duration::from_secs(u64::from(match self {
            Part::Rx => 9 + slices(3, 16),
            Part::Forward => 8 + slices(1, 25),
            Part::Instructions => 60,
            Part::Sched => 2 + slices(3, 6),
            Part::Sim => 20,
            Part::Ack => 3 + slices(2, 15),
            Part::Guest => 8 + slices(1, 25),
            Part::Limit => 125,
            Part::Load => slices(2, 25),
        }))
    }

    /// Its name on the command line.
    fn name(self) -> String {
        self.to_possible_value().expect("no part is hidden").get_name().to_owned()
    }
}

/// The state of a run, for its parts.
pub struct Run {
    /// The result, to which parts add samples, metrics, figures and claims.
    pub result: ResultFile,
    /// The machine's capabilities.
    pub machine: Machine,
    /// Most seconds of a comparison.
    pub seconds: u32,
    skipped: Vec<String>,
    progress: ProgressBar,
    /// When a line was last printed without a terminal, as elapsed time of `progress`.
    last_line: Cell<Duration>,
}

/// Minimum time between two lines about contestants without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

impl Run {
    /// Shows the current work: with a spinner or, without a terminal, as a line.
    pub fn show(&self, what: String) {
        if self.progress.is_hidden() {
            self.last_line.set(self.progress.elapsed());
            eprintln!("{} {what}", FormattedDuration(self.last_line.get()));
        }
        self.progress.set_message(what);
    }

    /// Like [`Run::show`] for short steps: without a terminal, at most one line per [`LINE_INTERVAL`] is printed.
    pub fn show_turn(&self, what: String) {
        if self.progress.is_hidden() && self.progress.elapsed() < self.last_line.get() + LINE_INTERVAL {
            return;
        }
        self.show(what);
    }

    /// Prints a line above the spinner.
    pub fn print(&self, line: &str) {
        self.progress.suspend(|| eprintln!("{line}"));
    }

    /// Reports a comparison that is not measured, and why, here and in the result.
    pub fn skip(&mut self, what: &str) {
        self.print(&format!("SKIPPED: {what}"));
        self.skipped.push(what.to_owned());
    }

    /// Adds a claim that a metric, with all of its interval, is within bounds.
    pub fn claim(&mut self, metric: &str, text: &str, bounds: Bounds, figure: &str) {
        let Some(measured) = self.result.metrics.get(metric) else { return };
        let claim = Claim {
            about: About::Fairlane,
            source: "README".to_owned(),
            text: text.to_owned(),
            expected: bounds.words(&measured.unit),
            measured: quantity(measured.value, &measured.unit) + &bracketed(measured.ci95),
            ours: None,
            verdict: bounds.judge(measured.value, measured.ci95),
            figure: Some(figure.to_owned()),
        };
        self.result.claim(claim);
    }
}

/// The bound of a claim that a metric is at least this value.
pub fn at_least(limit: f64) -> Bounds {
    Bounds { at_least: Some(limit), at_most: None }
}

/// The bound of a claim that a metric is at most this value.
pub fn at_most(limit: f64) -> Bounds {
    Bounds { at_least: None, at_most: Some(limit) }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = options.served.run().map(|served| served.map(|()| true));
    match outcome.unwrap_or_else(|| run(options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if is_interrupt(&error) => {
            eprintln!("fairlane-bench: interrupted; nothing is written");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("fairlane-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether the run was ended by a signal.
fn is_interrupt(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(fairlane_lab::Error::Interrupted))
}

/// Runs the parts. Returns whether all of them succeeded and no claim is refuted: one whose interval contains its bound is undecided,
/// which is not a failure.
fn run(options: Options) -> Result<bool> {
    interrupt::watch()?;
    let progress =
        ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {elapsed_precise} {wide_msg}")?);
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut run = Run {
        result: ResultFile::new("bench"),
        machine: Machine::probe(),
        seconds: options.seconds,
        skipped: Vec::new(),
        progress,
        last_line: Cell::default(),
    };
    let versions = machine::versions().into_iter().map(|(package, version)| (package.to_owned(), version));
    run.result.host.versions.extend(versions);
    run.result.setting("seconds", options.seconds);
    run.result.setting("real_time", run.machine.real_time);
    let parts: Vec<Part> = if options.parts.is_empty() { Part::value_variants().to_vec() } else { options.parts };
    let mut failed = 0;
    for (index, part) in parts.iter().enumerate() {
        let (name, left) = (part.name(), parts[index..].iter().map(|part| part.about(run.seconds)));
        let (one, all) = (FormattedDuration(part.about(run.seconds)), FormattedDuration(left.sum()));
        run.print(&format!("part {} of {}, {name}: about {one}; all that is left: {all}", index + 1, parts.len()));
        let outcome = match part {
            Part::Rx => rx::measure(&mut run),
            Part::Forward => forward::measure(&mut run),
            Part::Instructions => instructions::measure(&mut run),
            Part::Sched => sched::measure(&mut run),
            Part::Sim => sim::measure(&mut run),
            Part::Ack => ack::measure(&mut run),
            Part::Guest => guest::measure(&mut run),
            Part::Limit => limit::measure(&mut run),
            Part::Load => load::measure(&mut run),
        };
        match outcome {
            Ok(()) => {}
            Err(error) if is_interrupt(&error) => return Err(error),
            Err(error) if error.is::<Missing>() => run.skip(&format!("part {name}: {error}")),
            Err(error) => {
                run.print(&format!("FAILED part {name}: {error:#}"));
                failed += 1;
            }
        }
    }
    run.progress.finish_and_clear();
    run.result.setting("skipped", run.skipped.clone());
    run.result.write(&options.out).context("the result")?;
    print!("{}", text::summary(&run.result));
    println!("{} parts run, {failed} failed, {} comparisons skipped", parts.len(), run.skipped.len());
    run.skipped.iter().for_each(|what| println!("  skipped: {what}"));
    println!("{}", options.out.join("report.html").display());
    let refuted = |claim: &Claim| matches!(claim.verdict, Verdict::DoesNotHold | Verdict::NotMeasured);
    Ok(failed == 0 && !run.result.claims.iter().any(refuted))
}
