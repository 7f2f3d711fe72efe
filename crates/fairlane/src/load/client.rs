//! The client: runs a pattern against a server, size by size and repeat by repeat.

use super::files;
use super::record::{self, Measure};
use super::repeats::Repeats;
use super::run::{Row, Run};
use super::target::{self, Target, parse_bytes, parse_percent, parse_source};
use super::{UsageError, print_status, run_error, show};
use crate::out;
use anyhow::Context;
use clap::ValueEnum;
use fairlane_lab::interrupt;
use fairlane_load::traffic::client::{self, Close, Spec, Stop};
use fairlane_load::traffic::{Pattern, Sizes};
use fairlane_policy::units::parse_rate;
use fairlane_report::ResultFile;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Generate requests, streams or datagrams, and measure them
///
/// The server is `fairlane load server`, or for http any HTTP server. Latency counts from the start of a request or, with
/// --rate, from its scheduled start (corrected for coordinated omission).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The traffic pattern
    pattern: Name,
    /// The server: HOST, HOST:PORT (8000 if none is given) or http://HOST:PORT/PATH
    #[arg(value_name = "SERVER")]
    server: String,
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Concurrent connections, over all threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// Open loop: requests per second; for udp the rate of Ethernet frames, such as 100Mbit/s [default: as fast as possible]
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Seconds per run
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// Bytes of the response (crr, rr), object (http) or datagram (udp): 16k, or several: 0,1k,64k
    /// [default: 1024; http: the URL's; udp: 1470]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_bytes)]
    size: Vec<u64>,
    /// Bytes of the request (crr, rr), at least 12
    #[arg(long, value_name = "SIZE", default_value = "32", value_parser = parse_bytes)]
    request: u64,
    /// Use HTTP/1.1 with persistent connections, instead of HTTP/1.0 with one connection per request
    #[arg(long)]
    keep_alive: bool,
    /// How the client closes connections
    #[arg(long, value_name = "HOW", default_value = "graceful")]
    close: Closing,
    /// Source addresses of this machine to use in turn, such as 10.0.0.1-10.0.0.9; each has its own ports
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',', value_parser = parse_source)]
    source: Vec<Vec<IpAddr>>,
    /// Runs of each size
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeats: u8,
    /// Repeat 3 to 30 times, until the 95% interval is within this percentage of the mean, such as 5%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    within: Option<f64>,
    /// Seconds per interval
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    interval: f64,
    /// Seconds to wait for an answer
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    timeout: f64,
    /// Write result.json, report.html, intervals.csv and histograms
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The patterns.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Name {
    /// Connect, request, response, close
    Crr,
    /// Requests and responses on persistent connections
    Rr,
    /// HTTP requests, with one connection each or --keep-alive
    Http,
    /// Bytes to the server
    Stream,
    /// Bytes from the server
    Maerts,
    /// Datagrams to the server
    Udp,
}

#[derive(Clone, Copy, ValueEnum)]
enum Closing {
    /// With FIN
    Graceful,
    /// With RST, which leaves no socket in TIME_WAIT
    Reset,
}

/// Runs all sizes and repeats. Shows and writes the measurements, even if they are incomplete.
///
/// # Errors
/// Invalid arguments, or results that cannot be written.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let target = target::parse(&args.server)?;
    let sizes = if args.size.is_empty() { vec![default_size(args.pattern)] } else { args.size.clone() };
    let specs = sizes.into_iter().map(|size| Ok((size, spec(&args, &target, size)?)));
    let specs = specs.collect::<anyhow::Result<Vec<_>>>()?;
    let first = &specs[0].1;
    interrupt::watch().context("cannot block signals")?;
    let measures = record::measures(&first.pattern, args.rate.is_some());
    let mut result = ResultFile::new(&format!("load-{}", first.pattern.name()));
    if !args.json {
        print_status(&show::title(first));
    }
    let (runs, stopped) = measure(&args, &specs, &measures, &mut result)?;
    add_settings(&mut result, &args, first, stopped.is_none());
    add_warnings(&mut result, &runs);
    let incomplete = stopped.map(|why| incomplete(&why.to_string(), &measures, &runs));
    if let Some(text) = &incomplete {
        result.warnings.insert(0, text.clone());
    }
    record::add(&mut result, &first.pattern, &measures, &runs);
    if let Some(dir) = &args.out {
        result.write(dir)?;
        files::write(dir, &runs)?;
    }
    if args.json {
        out::print(&result.to_json())?;
    } else {
        let warnings: String = result.warnings.iter().map(|warning| format!("WARNING: {warning}\n")).collect();
        let page =
            args.out.map_or(String::new(), |dir| format!("\nThe plots: {}\n", dir.join("report.html").display()));
        out::print(&format!("{}\n{warnings}{page}", show::summary(first, &measures, &runs)))?;
    }
    let Some(text) = incomplete else { return Ok(ExitCode::SUCCESS) };
    print_status(&text);
    Ok(if interrupt::check().is_err() { ExitCode::from(130) } else { ExitCode::FAILURE })
}

/// Runs all sizes, each as often as requested, and shows intervals as they end. Returns the runs, and why the last one ended early,
/// if it did.
fn measure(
    args: &Args,
    specs: &[(u64, Spec)],
    measures: &[Measure],
    result: &mut ResultFile,
) -> anyhow::Result<(Vec<Run>, Option<Stop>)> {
    let repeats = Repeats { min: args.repeats.max(1).into(), within: args.within };
    let mut runs: Vec<Run> = Vec::new();
    for (size, spec) in specs {
        while repeats.needs_more(&record::samples(&measures[0], &runs, *size)) {
            let mut rows = Vec::new();
            let outcome = client::run(spec, interrupt::flag(), |interval| {
                let row = Row::from(interval);
                if !args.json {
                    print_status(&row.line());
                }
                rows.push(row);
            });
            let outcome = outcome.map_err(run_error)?;
            let stopped = outcome.stopped.clone();
            runs.push(Run { size: *size, outcome, rows });
            if stopped.is_some() {
                return Ok((runs, stopped));
            }
        }
        if let Some(warning) = repeats.warning(&record::samples(&measures[0], &runs, *size)) {
            result.warn(format!("at size {size}: {warning}"));
        }
    }
    Ok((runs, None))
}

/// The message about a run that ended early, with the figure up to then.
fn incomplete(why: &str, measures: &[Measure], runs: &[Run]) -> String {
    let figure = runs.last().map_or(String::new(), |run| {
        let (total, seconds) = (&run.outcome.total, run.outcome.seconds);
        let failed = total.failures.total();
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let Measure { name, unit, value } = &measures[0];
        let value = fairlane_report::quantity(value(run), if *unit == "1/s" { "" } else { unit });
        format!(
            " So far: {} of {value} in {seconds:.2} s ({} requests{failed}).",
            name.replace('_', " "),
            total.requests
        )
    });
    let stop = if why.ends_with('?') { "" } else { "." };
    format!("incomplete: {why}{stop}{figure}")
}

fn default_size(pattern: Name) -> u64 {
    match pattern {
        Name::Crr | Name::Rr => 1024,
        Name::Udp => 1470,
        Name::Http | Name::Stream | Name::Maerts => 0,
    }
}

fn spec(args: &Args, target: &Target, size: u64) -> anyhow::Result<Spec> {
    let to_u32 = |name: &str, bytes: u64| {
        u32::try_from(bytes).map_err(|_| UsageError(format!("--{name} is {bytes}: it must be below 4 GiB")))
    };
    let sizes =
        || Ok::<_, UsageError>(Sizes { request: to_u32("request", args.request)?, response: to_u32("size", size)? });
    let pattern = match args.pattern {
        Name::Crr => Pattern::Crr(sizes()?),
        Name::Rr => Pattern::Rr(sizes()?),
        Name::Stream => Pattern::Stream,
        Name::Maerts => Pattern::Maerts,
        Name::Udp => Pattern::Udp { size: to_u32("size", size)? as usize },
        Name::Http => {
            let path = target.path.clone().filter(|_| args.size.is_empty());
            let path = path.unwrap_or_else(|| format!("/?s={size}"));
            Pattern::Http { host: target.host.clone(), path, keep_alive: args.keep_alive }
        }
    };
    let rate =
        match &args.rate {
            None => None,
            Some(text) if args.pattern == Name::Udp => {
                Some(parse_rate(text).map_err(|problem| UsageError(format!("--rate {problem}")))? as f64)
            }
            Some(text) => {
                let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0);
                Some(rate.ok_or_else(|| {
                    UsageError(format!("--rate must be requests per second, such as 5000, not `{text}`"))
                })?)
            }
        };
    Ok(Spec {
        to: target.address,
        pattern,
        threads: args.threads,
        connections: args.connections,
        rate,
        seconds: args.seconds,
        interval: args.interval.min(args.seconds),
        timeout: args.timeout,
        close: match args.close {
            Closing::Graceful => Close::Graceful,
            Closing::Reset => Close::Reset,
        },
        sources: args.source.concat(),
    })
}

/// Adds what is needed to repeat the run, and this machine's settings that affect the figures.
fn add_settings(result: &mut ResultFile, args: &Args, spec: &Spec, complete: bool) {
    result
        .setting("server", args.server.as_str())
        .setting("pattern", spec.pattern.name())
        .setting("threads", spec.threads)
        .setting("connections", spec.connections)
        .setting("rate", args.rate.as_deref().unwrap_or("as fast as possible"))
        .setting("loop", if spec.rate.is_some() { "open" } else { "closed" })
        .setting("seconds", spec.seconds)
        .setting("close", if spec.close == Close::Reset { "reset" } else { "graceful" })
        .setting("sources", spec.sources.iter().map(ToString::to_string).collect::<Vec<_>>())
        .setting("keep_alive", args.keep_alive)
        .setting("request_bytes", args.request)
        .setting("repeats", args.repeats)
        .setting("within_percent", args.within.map_or(serde_json::Value::Null, Into::into))
        .setting("complete", complete);
    for name in [
        "core/somaxconn",
        "core/netdev_max_backlog",
        "ipv4/ip_local_port_range",
        "ipv4/tcp_congestion_control",
        "ipv4/tcp_max_syn_backlog",
        "ipv4/tcp_tw_reuse",
    ] {
        if let Ok(value) = std::fs::read_to_string(format!("/proc/sys/net/{name}")) {
            result.setting(
                &format!("net.{}", name.replace('/', ".")),
                value.split_whitespace().collect::<Vec<_>>().join(" "),
            );
        }
    }
}

/// Adds warnings about requests that failed or were not answered.
fn add_warnings(result: &mut ResultFile, runs: &[Run]) {
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    let kinds = [
        (sum(|run| run.outcome.total.failures.reset), "reset"),
        (sum(|run| run.outcome.total.failures.closed), "closed before the response"),
        (sum(|run| run.outcome.total.failures.timed_out), "without an answer in time"),
        (sum(|run| run.outcome.total.failures.status), "answered with an HTTP status other than 2xx and 3xx"),
    ];
    let failed: Vec<String> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if !failed.is_empty() {
        result.warn(format!("failed requests are included in no rate or latency: {}", failed.join(", ")));
    }
    let unanswered = sum(|run| run.outcome.total.unanswered);
    if unanswered > 0 {
        result.warn(format!(
            "{unanswered} requests were due but not answered at the end; the latency includes them with the time they had waited"
        ));
    }
}
