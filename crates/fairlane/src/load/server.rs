//! The server: serves all patterns of the client and HTTP requests of any client, and reports what it served.

use super::{print_status, run_error, target};
use crate::out;
use anyhow::Context;
use clap::ValueEnum;
use fairlane_lab::interrupt;
use fairlane_load::traffic::server::{self, Acceptors, Interval, Outcome, Served, Spec};
use fairlane_report::{Axis, Figure, ResultFile, Series, text::table};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fmt::Write, thread};

/// Serve all patterns of the client on one TCP and UDP port, and HTTP (/?s=16k requests an object of 16 KiB)
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from(([0, 0, 0, 0], target::PORT)))]
    listen: SocketAddr,
    /// Number of serving threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Which threads accept connections
    #[arg(long, value_name = "WHO", default_value = "each")]
    acceptors: AcceptorThreads,
    /// Seconds to serve [default: until interrupted]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Seconds per interval
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    interval: f64,
    /// Seconds without progress after which a connection is closed
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    patience: f64,
    /// Write result.json, report.html and intervals.csv
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum AcceptorThreads {
    /// Every thread, with its own listener (SO_REUSEPORT)
    Each,
    /// One thread, which passes connections to the others
    One,
}

/// Serves until the time is over or an interrupt arrives, which is the normal end.
///
/// # Errors
/// A port in use, invalid arguments, or results that cannot be written.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("cannot block signals")?;
    let spec = Spec {
        at: args.listen,
        threads: args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)),
        acceptors: match args.acceptors {
            AcceptorThreads::Each => Acceptors::Each,
            AcceptorThreads::One => Acceptors::One,
        },
        seconds: args.seconds,
        interval: args.interval,
        patience: args.patience,
    };
    let mut intervals = Vec::new();
    let started = |at| print_status(&format!("serving at {at}"));
    let outcome = server::run(&spec, interrupt::flag(), started, |interval| {
        let all = sum(&interval.threads);
        // Idle intervals are not shown.
        if !args.json && all != Served::default() {
            print_status(&line(interval, &all));
        }
        if args.out.is_some() || args.json {
            intervals.push(interval.clone());
        }
    });
    let outcome = outcome.map_err(run_error)?;
    let result = result(&args, &spec, &outcome, &intervals);
    if let Some(dir) = &args.out {
        result.write(dir)?;
        let path = dir.join("intervals.csv");
        std::fs::write(&path, csv(&intervals)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    out::print(&if args.json { result.to_json() } else { summary(&outcome) })?;
    Ok(ExitCode::SUCCESS)
}

fn sum(threads: &[Served]) -> Served {
    threads.iter().fold(Served::default(), |sum, served| sum + *served)
}

fn line(interval: &Interval, all: &Served) -> String {
    let per_second = |count: u64| count as f64 / interval.seconds;
    let megabits = per_second(all.sent + all.received) * 8e-6;
    let (t, accepted, requests) = (interval.t, per_second(all.accepted), per_second(all.requests));
    format!("{t:8.1} s  {accepted:10.0} connections/s  {requests:10.0} requests/s  {megabits:9.1} Mbit/s")
}

/// One row per serving thread, and the sum.
fn summary(outcome: &Outcome) -> String {
    let rate = |count: u64| format!("{:.2}", count as f64 / outcome.seconds);
    let row = |name: String, served: &Served| {
        [
            name,
            served.accepted.to_string(),
            rate(served.accepted),
            served.requests.to_string(),
            rate(served.requests),
            format!("{:.2}", served.received as f64 * 8e-6 / outcome.seconds),
            format!("{:.2}", served.sent as f64 * 8e-6 / outcome.seconds),
            served.reset.to_string(),
            served.refused.to_string(),
            served.dropped.to_string(),
        ]
    };
    let mut rows: Vec<_> =
        outcome.threads.iter().enumerate().map(|(thread, served)| row(name(thread, outcome), served)).collect();
    let all = sum(&outcome.threads);
    rows.push(row("all".to_owned(), &all));
    let head = [
        "thread",
        "accepted",
        "per second",
        "requests",
        "per second",
        "in Mbit/s",
        "out Mbit/s",
        "reset",
        "refused",
        "dropped",
    ];
    let mut right = [true; 10];
    right[0] = false;
    let mut text = table(head, right, rows);
    let per_request = outcome.processor * 1e6 / all.requests as f64;
    let _ = write!(text, "\n{:.2} s, {:.2} s of processor time", outcome.seconds, outcome.processor);
    if all.requests > 0 {
        let _ = write!(text, ", {per_request:.1} us per request");
    }
    text + "\n"
}

fn name(thread: usize, outcome: &Outcome) -> String {
    if thread + 1 == outcome.threads.len() { "udp".to_owned() } else { thread.to_string() }
}

fn result(args: &Args, spec: &Spec, outcome: &Outcome, intervals: &[Interval]) -> ResultFile {
    let mut result = ResultFile::new("load-server");
    result
        .setting("listen", args.listen.to_string())
        .setting("threads", spec.threads)
        .setting("acceptors", if spec.acceptors == Acceptors::One { "one" } else { "each" })
        .setting("patience_s", spec.patience);
    let all = sum(&outcome.threads);
    let per_second = |count: u64| count as f64 / outcome.seconds;
    result
        .value("connections_per_second", per_second(all.accepted), "1/s")
        .value("requests_per_second", per_second(all.requests), "1/s")
        .value("received", per_second(all.received) * 8e-6, "Mbit/s")
        .value("sent", per_second(all.sent) * 8e-6, "Mbit/s")
        .value("cpu_per_request", outcome.processor * 1e6 / all.requests as f64, "us")
        .value("reset", all.reset as f64, "")
        .value("refused", all.refused as f64, "")
        .value("dropped", all.dropped as f64, "");
    let mut names = Vec::new();
    for thread in 0..spec.threads {
        let accepted = outcome.threads[thread].accepted;
        result.value(&format!("accepted/{thread}"), accepted as f64, "");
        let series = format!("accepted/{thread}");
        let points =
            intervals.iter().map(|interval| [interval.t, interval.threads[thread].accepted as f64 / interval.seconds]);
        result.series(Series::new(&series, "1/s", Axis::time()).group(&format!("thread {thread}")).points(points));
        names.push(series);
    }
    result.figure(Figure::lines("Connections accepted").y("connections per second").series(names));
    result
}

fn csv(intervals: &[Interval]) -> String {
    let mut text =
        "end_s,length_s,thread,accepted,closed,requests,received_bytes,sent_bytes,reset,refused,dropped\n".to_owned();
    for Interval { t, seconds, threads } in intervals {
        for (thread, served) in threads.iter().enumerate() {
            let Served { accepted, closed, requests, received, sent, reset, refused, dropped } = served;
            let _ = writeln!(
                text,
                "{t:.3},{seconds:.3},{thread},{accepted},{closed},{requests},{received},{sent},{reset},{refused},{dropped}"
            );
        }
    }
    text
}
