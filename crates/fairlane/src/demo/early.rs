//! The act of early ack: transfers to a guest that has its CPU a third of the time, without and with it.
//!
//! Each transfer is timed twice at the sender: until its kernel has the last ACK, which is what the source measured, and until
//! the receiving program has confirmed the last byte, which is what a user feels.

use super::acts::Setting;
use super::stage::{RECEIVER, RECEIVER_ADDRESS, Stage};
use crate::interrupt::Interrupt;
use fairlane_lab::{Command, Outcome};
use fairlane_load::{ServeSpec, transfer};
use fairlane_report::stats::median;
use fairlane_report::{About, Axis, Claim, Figure, ResultFile, Series};
use indicatif::ProgressBar;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// What the progress counts for it, in tenths of a second.
pub const LENGTH: u64 = 10 * 2 * SIZES.len() as u64 * (SECONDS as u64 + 1);

/// How long transfers of a size begin, without and with early ack each.
const SECONDS: f64 = 3.0;

/// How long the guest runs and waits in turn: two others of its kind share the CPU by slices of 30 ms.
const RUNS: Duration = Duration::from_millis(30);
const WAITS: Duration = Duration::from_millis(60);

/// Bytes of a transfer, in words, and whether it is judged. A short one fits into one slice of the guest, if it begins well: it
/// is shown. A long one is to be faster for both ends.
const SIZES: [(u64, &str, bool); 2] = [(100_000, "100 KB", false), (1_000_000, "1 MB", true)];

/// How much faster at least.
const FASTER: f64 = 1.2;

const PORT: u16 = 5002;

/// Where a transfer is timed, and how long it took there, in milliseconds.
type End = (&'static str, fn(&transfer::Transfer) -> f64);
const ENDS: [End; 2] =
    [("sender", |transfer| transfer.acknowledged * 1e3), ("receiver", |transfer| transfer.seconds * 1e3)];

const CAPTION: &str = "The guest runs for 30 ms and waits for 60 ms, in turn. Without early ack the sender waits with the guest; \
                       with it the sender has ACKs at the speed of the network, as far as the guest's window goes, and the \
                       data are in the guest's ring when it runs.";

/// Performs the act, and enters it.
///
/// # Errors
/// A guest that ended or could not do its part, an interrupt.
pub fn perform(
    stage: &Stage,
    result: &mut ResultFile,
    progress: &ProgressBar,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    for (size, words, is_judged) in SIZES {
        let title = format!("Early ack: transfers of {words} to a guest that waits for its CPU");
        let (mut medians, mut names) = (Vec::new(), Vec::new());
        for (word, value) in [("without", "false"), ("with", "true")] {
            progress.set_message(format!("{words} {word} early ack"));
            stage.set(&Setting { target: RECEIVER, key: "early_ack", value: value.to_owned() })?;
            let transfers = transfers(stage, size)?;
            interrupt.check()?;
            progress.inc(LENGTH / 2 / SIZES.len() as u64);
            medians.push(ENDS.map(|(end, took)| {
                let name = format!("early-ack/{words}/{word}/{end}");
                let samples: Vec<f64> = transfers.iter().map(took).collect();
                let points = transfers.iter().map(|transfer| [transfer.t, took(transfer)]);
                let group = format!("{word} early ack, at the {end}");
                result.series(Series::new(&name, "ms", Axis::time()).group(&group).points(points));
                result.metric(&name.replace(['/', '-', ' '], "_"), &samples, "ms");
                names.push(name);
                median(&samples).unwrap_or(f64::NAN)
            }));
        }
        result.figure(Figure::cdf(&title).caption(CAPTION).x("time of a transfer").series(names));
        let [without, with] = medians[..] else { unreachable!("two modes were measured") };
        for (place, (end, _)) in ENDS.into_iter().enumerate().filter(|_| is_judged) {
            let (before, after) = (without[place], with[place]);
            result.claim(Claim {
                about: About::Fairlane,
                source: "README; Kangarlou, Gamage, Kompella and Xu, SC'10".to_owned(),
                text: format!(
                    "With early ack the median transfer of {words} to a guest that waits is faster, seen at the {end}"
                ),
                expected: format!("at least {FASTER} times as fast"),
                measured: format!("{:.2} times ({before:.1} ms without, {after:.1} ms with)", before / after),
                holds: before / after >= FASTER,
                figure: Some(title.clone()),
            });
        }
    }
    let early = stage.snapshot()?.vifs.into_iter().find_map(|vif| vif.early_ack).unwrap_or_default();
    result.setting("early_ack", serde_json::to_value(&early)?);
    Ok(())
}

/// Transfers to the receiver, one after the other, while its CPU comes and goes.
fn transfers(stage: &Stage, size: u64) -> anyhow::Result<Vec<transfer::Transfer>> {
    let explain = |error| stage.explain(error);
    // The last begins within its time, and may take long.
    let serve = ServeSpec { port: PORT, seconds: SECONDS + 1.0 };
    let serving = stage.receiver().start_job(Command::TransferServe(serve)).map_err(explain)?;
    serving.started().map_err(explain)?;
    let to = (RECEIVER_ADDRESS, PORT).into();
    let spec = transfer::Spec { to, size, count: 10_000, seconds: SECONDS, pause: 0.0, kept: false };
    let over = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let guest = stage.receiving_guest();
        let schedule = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                guest.suspend()?;
                thread::sleep(WAITS);
                guest.resume()?;
                thread::sleep(RUNS);
            }
            Ok(())
        });
        let outcome = stage.sender(0).run(Command::TransferSend(spec));
        over.store(true, Ordering::Relaxed);
        schedule.join().expect("the schedule does not panic")?;
        outcome
    });
    let outcome = outcome.map_err(explain)?;
    serving.wait().map_err(explain)?;
    let Outcome::Transfers(transfers) = outcome else { anyhow::bail!("the sender answered {outcome:?}") };
    Ok(transfers)
}
