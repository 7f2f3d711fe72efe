//! The act of early ack: transfers to a guest that has a CPU for a third of the time, without and with early ack.
//!
//! The sender times each transfer twice: until its kernel has the last ACK, as in the paper, and until the receiving program
//! has confirmed the last byte, which is what a user notices.

use super::acts::Setting;
use super::stage::{PERIOD, RECEIVER, RECEIVER_ADDRESS, Stage};
use fairlane_lab::{Command, Outcome, interrupt};
use fairlane_load::{ServeSpec, transfer};
use fairlane_report::{About, Axis, Bounds, Claim, Figure, Metric, ResultFile, Series, bracketed};
use indicatif::ProgressBar;

/// Its length on the progress bar, in tenths of a second.
pub(super) const LENGTH: u64 = 10 * 2 * SIZES.len() as u64 * (SECONDS as u64 + 1);

/// How long new transfers of one size are started, in seconds, each without and with early ack: as many as narrow the medians'
/// intervals enough.
pub(super) const SECONDS: f64 = 10.0;

/// The longest of the random pauses between transfers, in seconds: a period of the guest, so that a transfer begins at any moment of
/// it. Without pauses each would begin when the one before it was answered, which is when the guest runs.
pub(super) const PAUSE: f64 = PERIOD.as_millis() as f64 / 1e3;

/// Size of a transfer in bytes and as text, and whether it has a claim. A short transfer takes hardly longer than its handshake, which
/// waits for the guest in any case, so it is only shown. A long one must be faster at both ends.
const SIZES: [(u64, &str, bool); 2] = [(100_000, "100 KB", false), (1_000_000, "1 MB", true)];

/// The speedup that a claim requires at least, of all of its interval.
const MIN_SPEEDUP: f64 = 1.0;

const PORT: u16 = 5002;

/// Where a transfer is timed, and its duration there, in milliseconds.
type End = (&'static str, fn(&transfer::Transfer) -> f64);
const ENDS: [End; 2] =
    [("sender", |transfer| transfer.acknowledged * 1e3), ("receiver", |transfer| transfer.seconds * 1e3)];

const CAPTION: &str = "The guest alternately runs for 30 ms and waits for 60 ms. Without early ack, the sender waits with the guest. \
                       With it, the sender receives ACKs at the speed of the network, as far as the guest's window allows, and the \
                       data are in the guest's ring when it runs.";

/// Runs the act and adds its measurements to the result.
///
/// # Errors
/// A guest ended or failed, or an interrupt arrived.
pub(super) fn run(stage: &Stage, result: &mut ResultFile, progress: &ProgressBar) -> anyhow::Result<()> {
    add(result, |size, is_early| {
        progress.set_message(format!("{size} bytes {} early ack", if is_early { "with" } else { "without" }));
        stage.set(&Setting { target: RECEIVER, key: "early_ack", value: is_early.to_string() })?;
        let transfers = transfers(stage, size)?;
        interrupt::check()?;
        progress.inc(LENGTH / 2 / SIZES.len() as u64);
        Ok(ENDS.map(|(_, took)| transfers.iter().map(|transfer| [transfer.t, took(transfer)]).collect()))
    })?;
    let early = stage.snapshot()?.vifs.into_iter().find_map(|vif| vif.early_ack).unwrap_or_default();
    result.setting("early_ack", serde_json::to_value(&early)?);
    Ok(())
}

/// When each transfer began, in seconds, and how long it took in milliseconds: at each of [`ENDS`].
pub(super) type Times = [Vec<[f64; 2]>; 2];

/// Adds the act as `measure` measures it: transfers of a size, without or with early ack.
///
/// # Errors
/// Those of `measure`.
pub(super) fn add(
    result: &mut ResultFile,
    mut measure: impl FnMut(u64, bool) -> anyhow::Result<Times>,
) -> anyhow::Result<()> {
    for (size, words, is_judged) in SIZES {
        let title = format!("Early ack: transfers of {words} to a guest that waits for its CPU");
        let (mut times, mut names) = (Vec::new(), Vec::new());
        for (word, is_early) in [("without", false), ("with", true)] {
            let measured = ENDS.iter().zip(measure(size, is_early)?);
            times.extend(measured.map(|((end, _), points)| {
                let name = format!("early-ack/{words}/{word}/{end}");
                let samples: Vec<f64> = points.iter().map(|[_, took]| *took).collect();
                let group = format!("{word} early ack, at the {end}");
                result.series(Series::new(&name, "ms", Axis::time()).group(&group).points(points));
                let metric = Metric::median(&samples, "ms");
                result.metrics.insert(name.replace(['/', '-', ' '], "_"), metric.clone());
                names.push(name);
                metric
            }));
        }
        result.figure(Figure::cdf(&title).caption(CAPTION).x("time of a transfer").series(names));
        let (without, with) = times.split_at(ENDS.len());
        for (index, (end, _)) in ENDS.into_iter().enumerate().filter(|_| is_judged) {
            let (before, after) = (&without[index], &with[index]);
            let (speedup, interval) = before.ratio_to(after);
            let bounds = Bounds { at_least: Some(MIN_SPEEDUP), at_most: None };
            result.claim(Claim {
                about: About::Fairlane,
                source: "README; Kangarlou, Gamage, Kompella and Xu, SC'10".to_owned(),
                text: format!(
                    "With early ack the median transfer of {words} to a guest that waits is faster, seen at the {end}"
                ),
                expected: format!("at least {MIN_SPEEDUP} times as fast"),
                measured: format!(
                    "{speedup:.2} times{} ({:.1} ms without, {:.1} ms with)",
                    bracketed(interval),
                    before.value,
                    after.value
                ),
                ours: None,
                verdict: bounds.judge(speedup, interval),
                figure: Some(title.clone()),
            });
        }
    }
    Ok(())
}

/// Transfers of a size.
fn spec(size: u64) -> transfer::Spec {
    let to = (RECEIVER_ADDRESS, PORT).into();
    transfer::Spec { to, size, count: 10_000, seconds: SECONDS, pause: PAUSE, kept: false }
}

/// Sequential transfers to the receiver, which is suspended and resumed meanwhile.
fn transfers(stage: &Stage, size: u64) -> anyhow::Result<Vec<transfer::Transfer>> {
    let explain = |error| stage.explain(error);
    // The last transfer begins within `SECONDS` and may take a while.
    let serve = ServeSpec { port: PORT, seconds: SECONDS + 1.0 };
    let server = stage.receiver().start_job(Command::TransferServe(serve)).map_err(explain)?;
    server.started().map_err(explain)?;
    let send = || stage.sender(0).run(Command::TransferSend(spec(size)));
    let outcome = stage.in_slices(stage.receiving_guest(), send).map_err(explain)?;
    server.wait().map_err(explain)?;
    let Outcome::Transfers(transfers) = outcome else { anyhow::bail!("the sender answered {outcome:?}") };
    Ok(transfers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_begins_at_any_moment_of_the_guest_s_period() {
        for (size, ..) in SIZES {
            assert_eq!(spec(size).pause, 0.09, "a guest runs for 30 ms and waits for 60 ms");
        }
    }
}
