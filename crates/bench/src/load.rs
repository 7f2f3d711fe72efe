//! Part load: `fairlane load client` beside other load generators, all against `fairlane load server`, with one core each for the
//! server and the generator.

use crate::machine;
use crate::rounds::{Contestant, settle};
use crate::testpmd::BACKEND;
use crate::{Run, at_least, process};
use anyhow::{Context, Result, bail, ensure};
use fairlane_load::traffic::Pattern;
use fairlane_load::traffic::client::{self, Close};
use fairlane_load::traffic::server::{self, Acceptors};
use fairlane_report::Figure;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

/// The core of the generators; the server is on the one of backends.
const GENERATORS: usize = 1;

/// Concurrent connections.
const CONNECTIONS: usize = 10;

/// Seconds that a generator runs in a round: the least that all of them take.
const SECONDS: u32 = 1;

/// Bytes of an answer.
const SIZE: u32 = 1024;

/// Seconds after which a request has failed.
const TIMEOUT: f64 = 5.0;

const TITLE: &str = "Requests of load generators";

/// Whether each request has a connection of its own: the name of its metrics, and the peer with that ability besides wrk.
const CASES: [(bool, &str, Peer); 2] = [(true, "crr", Peer::Ab), (false, "keep", Peer::H2load)];

/// Another load generator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Wrk,
    Ab,
    H2load,
}

impl Peer {
    /// Its program and Debian package.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Peer::Wrk => ("wrk", "wrk"),
            Peer::Ab => ("ab", "apache2-utils"),
            Peer::H2load => ("h2load", "nghttp2-client"),
        }
    }

    /// The words that make it request `url` for some seconds, on one thread.
    fn words(self, url: &str, alone: bool, seconds: u32) -> Vec<String> {
        let (program, connections) = (self.program().0, CONNECTIONS);
        let line = match self {
            Peer::Wrk => format!("-t1 -c{connections} -d{seconds}s {url}"),
            // Its number of requests would otherwise end it early.
            Peer::Ab => format!("-q -c {connections} -t {seconds} -n 100000000 {url}"),
            Peer::H2load => format!("--h1 -t1 -c{connections} -D{seconds} {url}"),
        };
        let pinned = ["taskset".to_owned(), "-c".to_owned(), GENERATORS.to_string(), program.to_owned()];
        // Without the space, wrk ignores the header.
        let close = if self == Peer::Wrk && alone { &["-H", "Connection: close"][..] } else { &[] };
        pinned.into_iter().chain(close.iter().copied().chain(line.split(' ')).map(str::to_owned)).collect()
    }

    /// The requests a second that it reports.
    fn rate(self, output: &str) -> Option<f64> {
        let after = |mark: &str| output.split_once(mark).map(|(_, rest)| rest.trim_start());
        let figure = match self {
            Peer::Wrk => after("Requests/sec:")?,
            Peer::Ab => after("Requests per second:")?,
            Peer::H2load => after("finished in ")?.split_once(", ")?.1,
        };
        figure.split_whitespace().next()?.parse().ok()
    }
}

/// Measures all and adds the results.
///
/// # Errors
/// Missing programs, or generators that fail.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    run.machine.two_cores()?;
    machine::find("taskset", "util-linux")?;
    for peer in [Peer::Wrk, Peer::Ab, Peer::H2load] {
        let (program, package) = peer.program();
        machine::find(program, package)?;
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (sender, addresses) = channel();
        let server = scope.spawn(|| {
            pin(BACKEND)?;
            let at = (Ipv4Addr::LOCALHOST, 0).into();
            let spec = server::Spec {
                at,
                threads: 1,
                acceptors: Acceptors::Each,
                seconds: None,
                interval: 60.0,
                patience: 30.0,
            };
            // The receiver is gone if the measurement failed.
            server::run(&spec, &over, move |at| _ = sender.send(at), |_| {})?;
            anyhow::Ok(())
        });
        let measured = match addresses.recv() {
            Ok(at) => compare(run, at),
            // It did not start, for the reason that it returns.
            Err(_) => Ok(()),
        };
        over.store(true, Ordering::Relaxed);
        match server.join() {
            Ok(served) => served.context("the server").and(measured),
            Err(_) => bail!("the server's thread panicked"),
        }
    })
}

fn compare(run: &mut Run, at: SocketAddr) -> Result<()> {
    let url = format!("http://{at}/?s={SIZE}");
    for (case, (alone, name, other)) in CASES.into_iter().enumerate() {
        let by = |peer: Peer| {
            let url = &url;
            Contestant::new(peer.program().0, move || {
                let output = process::output(&peer.words(url, alone, SECONDS))?;
                peer.rate(&output).with_context(|| format!("no rate in {output:?}"))
            })
        };
        let contestants = vec![Contestant::new("fairlane", move || ours(at, alone)), by(Peer::Wrk), by(other)];
        let peers = [Peer::Wrk, other].map(|peer| peer.program().0);
        let ratios = peers.map(|peer| ("fairlane", peer));
        let figures = settle(run, &format!("load, {name}"), &ratios, contestants)?;
        figures.add_to(run, "load", case, "1/s", |generator| format!("load_{name}_{generator}"));
        for peer in peers {
            run.result.metric(&format!("load_{name}_vs_{peer}"), &figures.ratios(peer), "");
        }
    }
    run.result.setting("load", format!("{CONNECTIONS} connections, one thread, answers of {SIZE} bytes, loopback"));
    run.result.figure(
        Figure::bars(TITLE)
            .caption("HTTP against `fairlane load server` on the other core; one connection for each request, and connections that stay open.")
            .y("requests")
            .categories(["a connection each", "kept connections"])
            .series(["fairlane", "wrk", "ab", "h2load"].map(|name| format!("load/{name}"))),
    );
    let text = "The load client makes at least as many connections as wrk";
    run.claim("load_crr_vs_wrk", text, at_least(1.0), TITLE);
    Ok(())
}

/// Requests a second of Fairlane's client.
fn ours(at: SocketAddr, alone: bool) -> Result<f64> {
    let spec = client::Spec {
        to: at,
        pattern: Pattern::Http { host: at.to_string(), path: format!("/?s={SIZE}"), keep_alive: !alone },
        threads: 1,
        connections: CONNECTIONS,
        rate: None,
        seconds: SECONDS.into(),
        interval: SECONDS.into(),
        timeout: TIMEOUT,
        close: Close::Graceful,
        sources: Vec::new(),
    };
    // Its threads inherit the core of the one that starts them.
    let outcome = thread::scope(|scope| {
        let client = scope.spawn(|| {
            pin(GENERATORS)?;
            anyhow::Ok(client::run(&spec, &AtomicBool::new(false), |_| {})?)
        });
        client.join().unwrap_or_else(|_| bail!("the client's thread panicked"))
    })?;
    if let Some(stop) = outcome.stopped {
        bail!("the client stopped: {stop}");
    }
    ensure!(outcome.total.failures.total() == 0, "{} requests failed", outcome.total.failures.total());
    Ok(outcome.total.requests as f64 / outcome.seconds)
}

/// Pins this thread, and those that it starts, to a core.
fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &cores).with_context(|| format!("pin to core {core}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_of_other_generators_are_read() {
        let wrk = "Running 2s test @ http://127.0.0.1:8000/?s=1024\n  1 threads and 10 connections\n  \
                   Thread Stats   Avg      Stdev     Max   +/- Stdev\n  42000 requests in 2.00s, 45.1MB read\n\
                   Requests/sec:  21000.50\nTransfer/sec:     22.55MB\n";
        let ab = "Concurrency Level:      10\nTime taken for tests:   2.000 seconds\nComplete requests:      42200\n\
                  Requests per second:    21100.25 [#/sec] (mean)\nTime per request:       0.474 [ms] (mean)\n";
        let h2load = "starting benchmark...\nspawning thread #0: 10 total client(s). Timing-based test with 0s of warm-up\n\n\
                      finished in 2.00s, 116000.50 req/s, 124.00MB/s\nrequests: 232001 total\n";
        assert_eq!(Peer::Wrk.rate(wrk), Some(21_000.5));
        assert_eq!(Peer::Ab.rate(ab), Some(21_100.25));
        assert_eq!(Peer::H2load.rate(h2load), Some(116_000.5));
        assert_eq!(Peer::Wrk.rate(ab), None);
    }

    /// wrk does not refuse a header without the space, but keeps its connections.
    #[test]
    fn wrk_closes_connections_only_if_told_to() {
        let words = |alone| Peer::Wrk.words("http://127.0.0.1:8000/?s=1024", alone, 2);
        assert!(words(true).windows(2).any(|pair| pair == ["-H", "Connection: close"]), "{:?}", words(true));
        assert!(!words(false).iter().any(|word| word.contains("close")), "{:?}", words(false));
    }
}
