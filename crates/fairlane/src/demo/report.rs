//! The demo's result: series, figures and claims, and a summary for the terminal.

use super::Args;
use super::acts::{self, Act, LINK_RATE, Name, SENDERS};
use super::judge;
use super::ledger::Ledger;
use super::measure::{INTERVALS, Measurement};
use super::stage::Stage;
use clap::ValueEnum;
use fairlane_report::{At, Axis, Figure, ResultFile, Series};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

const SHARES: &str = "Share against weight";

/// Adds the settings of the run.
pub(super) fn add_settings(result: &mut ResultFile, args: &Args) {
    result
        .setting("link", "100 Mbit/s wire, 1 ms delay, queue of 32 KiB")
        .setting("guests", format!("{:?}", args.guest).to_lowercase())
        .setting("frames", "UDP, Ethernet frames of 1514 bytes; rates count frames without preamble and check sequence")
        .setting("interval", format!("{} s", 1.0 / INTERVALS as f64));
}

/// Adds a stage: its policy, and how long booting took.
pub(super) fn add_stage(result: &mut ResultFile, stage: &Stage, took: Duration, backpressure: bool) {
    let name = if backpressure { "with_backpressure" } else { "without_backpressure" };
    result.setting(&format!("policy_{name}"), stage.policy.as_str());
    result.value(&format!("boot_{name}"), took.as_secs_f64(), "s");
}

/// Adds an act.
pub(super) fn add(result: &mut ResultFile, act: &Act, measured: &Measurement) {
    let act_name = act.name.as_str();
    let mut names = Vec::new();
    for (sender, guest) in SENDERS.into_iter().enumerate().take(act.loads.len()) {
        let group = format!("guest {guest}");
        let name = format!("{act_name}/{guest}");
        let rate = |bytes: &u64| *bytes as f64 * 8.0 * INTERVALS as f64 / 1e6;
        let samples = measured.bytes[sender].iter().zip(1..).map(|(bytes, interval)| {
            let end = f64::from(interval) / INTERVALS as f64;
            [end, rate(bytes)]
        });
        let due = format!("{name} due");
        result.series(Series::new(&name, "Mbit/s", Axis::time()).group(&group).points(samples));
        result.series(Series::new(&due, "Mbit/s", Axis::time()).group(&group).expected().points(dues(act, sender)));
        names.extend([name, due]);
        let rates: Vec<f64> = measured.rates(sender).iter().map(|rate| rate / 1e6).collect();
        if act.steps.len() == 1 {
            result.metric(&format!("{act_name}_{guest}"), &rates, "Mbit/s");
        }
    }
    let mut figure = Figure::lines(act.title).caption(act.caption).y("throughput").series(names);
    let mut start = 0;
    for step in act.steps.iter().filter(|step| !step.label.is_empty()) {
        figure = figure.mark(At::X(start as f64), &step.label);
        start += step.seconds;
    }
    result.figure(figure);
    if act.steps.len() > 1 {
        add_shares(result, act, measured);
    }
    if let Some(ledger) = &measured.ledger {
        result.setting(&format!("ledger_{act_name}"), ledger_json(ledger));
        result.value(&format!("{act_name}_drops"), ledger.drops() as f64, "frames");
        let latest = measured.lateness.iter().copied().fold(0.0, f64::max);
        result.value(&format!("{act_name}_latest_change"), latest, "ms");
    }
    result.claims.extend(judge::claims(act, measured));
}

/// The due rate of a sender, as a line of steps.
fn dues(act: &Act, sender: usize) -> Vec<[f64; 2]> {
    let mut start = 0;
    let mut points = Vec::new();
    for step in &act.steps {
        let rate = step.shares[sender] * LINK_RATE / 1e6;
        points.extend([[start as f64, rate], [(start + step.seconds) as f64, rate]]);
        start += step.seconds;
    }
    points
}

/// Adds the plot of share against weight, for the acts in which weights change.
fn add_shares(result: &mut ResultFile, act: &Act, measured: &Measurement) {
    let axis = || Axis::new("weight of guest a, of all weights", "");
    let due = || act.by_second().map(|step| step.shares[0]);
    if result.find("share due").is_none() {
        let line = Series::new("share due", "", axis()).group("due share").expected();
        result.series(line.points(due().map(|share| [share, share])));
        let caption = "One point per second: guest a's share of the link against its share of the weights.";
        result.figure(Figure::lines(SHARES).caption(caption).y("share of guest a").series(["share due"]));
    }
    for (step, share) in act.by_second().zip(measured.shares(0)) {
        result.value(&format!("{}/{}/a", act.name.as_str(), step.label), 100.0 * share, "% of the link");
    }
    let name = format!("{}/share", act.name.as_str());
    let group = if act.name == Name::Wrr { "weighted round robin" } else { "fair" };
    let points = due().zip(measured.shares(0)).map(|(due, share)| [due, share]);
    result.series(Series::new(&name, "", axis()).group(group).points(points));
    // The figure that both acts share comes last.
    if let Some(index) = result.figures.iter().position(|figure| figure.title == SHARES) {
        let figure = result.figures.remove(index);
        result.figure(figure.series([name]));
    }
}

fn ledger_json(ledger: &Ledger) -> serde_json::Value {
    json!({
        "datagrams sent": ledger.sent_datagrams,
        "frames taken from rings": ledger.taken,
        "put on the wire": ledger.on_wire,
        "dropped before it": ledger.dropped,
        "off the wire": ledger.off_wire,
        "delivered": ledger.delivered,
        "dropped behind it": ledger.undelivered,
        "datagrams received": ledger.received_datagrams,
    })
}

/// Adds the duration of the whole demo.
pub(super) fn add_total_time(result: &mut ResultFile, took: Duration) {
    result.value("total_time", took.as_secs_f64(), "s");
}

/// The summary for the terminal: one table per act, claims and metrics, and the path of the report.
pub(super) fn text(result: &ResultFile, out: &Path) -> String {
    let mut text = String::new();
    for name in Name::value_variants() {
        let prefix = format!("{}/", name.as_str());
        let guests: Vec<&Series> =
            SENDERS.iter().filter_map(|guest| result.find(&format!("{prefix}{guest}"))).collect();
        if guests.is_empty() {
            continue;
        }
        let Some(act) = acts::act(*name, 1) else { continue };
        let _ = write!(text, "\n{}\n", act.title);
        let rows = guests.iter().map(|series| row(result, series)).collect();
        let head = ["", "mean", "least second", "greatest second", "due"];
        text += &fairlane_report::text::table(head, [false, true, true, true, true], rows);
    }
    let report = out.join("report.html");
    format!("{}\n{}\nThe plots: {}\n", text.trim_start(), fairlane_report::text::summary(result), report.display())
}

/// A guest's rates over whole seconds, in Mbit/s.
fn row(result: &ResultFile, series: &Series) -> [String; 5] {
    let seconds: Vec<f64> = series
        .values()
        .chunks_exact(INTERVALS)
        .map(|second| second.iter().sum::<f64>() / second.len() as f64)
        .collect();
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = seconds.iter().copied().fold(0.0, f64::max);
    let dues = result.find(&format!("{} due", series.name)).map_or(Vec::new(), Series::values);
    let due = match (dues.first(), dues.last()) {
        (Some(first), Some(last)) if first != last => format!("{first:.1} to {last:.1}"),
        (Some(first), _) => format!("{first:.1}"),
        _ => String::new(),
    };
    let figure = |rate: f64| format!("{rate:.2}");
    [series.label().to_owned(), figure(mean), figure(least), figure(most), due]
}
