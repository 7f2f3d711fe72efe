//! The client: makes requests on many connections and counts the responses.

mod datagrams;
mod schedule;
mod slot;
mod stop;
mod stream;
mod worker;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub use stop::{Failure, Stop};

use super::{Arrived, HEADER, Interval, Pattern, Tally, sockets};
use crate::{invalid, seconds, within};

/// Parameters of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The server.
    pub to: SocketAddr,
    /// The traffic pattern.
    pub pattern: Pattern,
    /// Threads, 1 to 256. Streams and UDP always have one thread per connection.
    pub threads: usize,
    /// Concurrent connections over all threads: at least one per thread, at most 100,000; at most 1000 for streams and UDP.
    pub connections: usize,
    /// Requests per second over all connections (open loop); none: closed loop. For UDP, bits per second of Ethernet frames over
    /// all sockets; none: a flood. Streams have no rate.
    pub rate: Option<f64>,
    /// The duration, in seconds.
    pub seconds: f64,
    /// The length of an interval, in seconds.
    pub interval: f64,
    /// Seconds after which a request without an answer has failed.
    pub timeout: f64,
    /// How the client closes connections.
    pub close: Close,
    /// Local addresses that connections come from, in turn. Empty: the kernel's choice.
    pub sources: Vec<IpAddr>,
}

/// How a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Close {
    /// With FIN from both sides: the side that closes first keeps the port in TIME_WAIT for a minute.
    Graceful,
    /// With RST: the port is free at once (SO_LINGER of zero, socket(7)).
    Reset,
}

/// A client's result.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The duration, in seconds.
    pub seconds: f64,
    /// All counts.
    pub total: Tally,
    /// UDP: the server's report of what arrived.
    pub arrived: Option<Arrived>,
    /// CPU time of this process, in seconds.
    pub processor: f64,
    /// Why it stopped early; `total` has the counts up to then.
    pub stopped: Option<Stop>,
}

/// A summary of a client's result, for the agent's protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The duration, in seconds.
    pub seconds: f64,
    /// Completely answered requests.
    pub requests: u64,
    /// Failed requests.
    pub failed: u64,
    /// Bytes received from the server.
    pub received: u64,
    /// The median latency, in seconds.
    pub median: f64,
    /// The longest latency, in seconds.
    pub longest: f64,
    /// Why it stopped early.
    pub stopped: Option<String>,
}

impl From<&Outcome> for Account {
    fn from(outcome: &Outcome) -> Account {
        let Outcome { seconds, total, stopped, .. } = outcome;
        Account {
            seconds: *seconds,
            requests: total.requests,
            failed: total.failures.total(),
            received: total.received,
            median: total.latency.value_at_quantile(0.5) as f64 / 1e9,
            longest: total.latency.max() as f64 / 1e9,
            stopped: stopped.as_ref().map(Stop::to_string),
        }
    }
}

/// The result of a thread.
type Ended = Result<Option<Arrived>, Stop>;

/// Runs the traffic and passes each interval to `sink` when it is over. Stops when `over` is set.
///
/// # Errors
/// If a parameter is out of range. Errors of the traffic are in [`Outcome::stopped`], with the counts so far.
pub fn run(spec: &Spec, over: &AtomicBool, mut sink: impl FnMut(&Interval)) -> io::Result<Outcome> {
    let spec = &checked(spec)?;
    sockets::raise_descriptors();
    let run = &Run { spec, over, failed: AtomicBool::new(false), start: Instant::now() };
    let processor = sockets::processor_time();
    let threads = match spec.pattern {
        Pattern::Stream | Pattern::Maerts | Pattern::Udp { .. } => spec.connections,
        _ => spec.threads,
    };
    let mut total = Tally::new();
    let ended = thread::scope(|scope| {
        let (report, reports) = mpsc::channel();
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let report = report.clone();
                scope.spawn(move || {
                    let ended = run.thread(thread, threads, &report);
                    if ended.is_err() {
                        run.failed.store(true, Ordering::Relaxed);
                    }
                    ended
                })
            })
            .collect();
        drop(report);
        collect(run, threads, &reports, &mut |interval| {
            total.add(&interval.tally);
            sink(interval);
        });
        workers.into_iter().map(|worker| worker.join().expect("a client's thread")).collect::<Vec<Ended>>()
    });
    let elapsed = run.start.elapsed().as_secs_f64();
    let interrupted = over.load(Ordering::Relaxed).then_some(Stop::Interrupted);
    let mut stopped = None;
    let mut arrived: Option<Arrived> = None;
    for end in ended {
        match end {
            Ok(None) => (),
            Ok(Some(more)) => arrived = Some(arrived.unwrap_or_default() + more),
            Err(why) => stopped = stopped.or(Some(why)),
        }
    }
    let answered = match spec.pattern {
        Pattern::Maerts => total.received > 0,
        // Confirmed by the server, or else an error of the thread.
        Pattern::Stream | Pattern::Udp { .. } => true,
        _ => total.requests > 0,
    };
    let silent = (!answered).then_some(Stop::Silent { to: spec.to, seconds: elapsed });
    let stopped = stopped.or(interrupted).or(silent);
    Ok(Outcome { seconds: elapsed, total, arrived, processor: sockets::processor_time() - processor, stopped })
}

/// The shared state of a run's threads.
struct Run<'a> {
    spec: &'a Spec,
    /// Set to stop the run.
    over: &'a AtomicBool,
    /// Set when a thread has failed, which stops all.
    failed: AtomicBool,
    start: Instant,
}

/// The number of an interval, and a thread's counts in it.
type Report = (u64, Tally);

impl Run<'_> {
    fn thread(&self, thread: usize, threads: usize, report: &mpsc::Sender<Report>) -> Ended {
        let (length, end) = (nanos(self.spec.interval), self.end());
        let counted = IntervalCounter { report, number: 0, tally: Tally::new(), length, end };
        match self.spec.pattern {
            Pattern::Stream | Pattern::Maerts => stream::run(self, thread, counted).map(|()| None),
            Pattern::Udp { size } => datagrams::run(self, thread, size, counted).map(Some),
            _ => worker::run(self, thread, threads, counted).map(|()| None),
        }
    }

    /// Nanoseconds since the start.
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn end(&self) -> u64 {
        nanos(self.spec.seconds)
    }

    fn stopped(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }

    /// The source address of connection `number`.
    fn source(&self, number: usize) -> Option<IpAddr> {
        let sources = &self.spec.sources;
        (!sources.is_empty()).then(|| sources[number % sources.len()])
    }
}

/// Divides a thread's counts into intervals.
struct IntervalCounter<'a> {
    report: &'a mpsc::Sender<Report>,
    number: u64,
    tally: Tally,
    length: u64,
    /// The nominal end of the last interval: it includes requests that end a little later.
    end: u64,
}

impl IntervalCounter<'_> {
    /// The end of the current interval.
    fn boundary(&self) -> u64 {
        (self.number + 1) * self.length
    }

    /// Reports every interval that ended by `now`, except the last.
    fn advance(&mut self, now: u64) {
        while now >= self.boundary() && self.boundary() < self.end {
            self.close();
        }
    }

    /// Reports the current interval.
    fn close(&mut self) {
        // The receiver is gone if the run was aborted.
        let _ = self.report.send((self.number, std::mem::take(&mut self.tally)));
        self.number += 1;
    }
}

/// Sums the threads' reports of each interval, and passes the sum to `sink` when all threads have reported.
fn collect(run: &Run, threads: usize, reports: &mpsc::Receiver<Report>, sink: &mut impl FnMut(&Interval)) {
    let mut open: BTreeMap<u64, (usize, Tally)> = BTreeMap::new();
    let length = run.spec.interval;
    let mut emit = |number: u64, tally: Tally| {
        let begin = number as f64 * length;
        let t = (begin + length).min(run.start.elapsed().as_secs_f64()).max(begin);
        sink(&Interval { t, seconds: t - begin, tally });
    };
    while let Ok((number, tally)) = reports.recv() {
        let (count, sum) = open.entry(number).or_insert_with(|| (0, Tally::new()));
        *count += 1;
        sum.add(&tally);
        while let Some(whole) = open.first_entry().filter(|first| first.get().0 == threads) {
            let (number, (_, tally)) = whole.remove_entry();
            emit(number, tally);
        }
    }
    // Intervals that threads which failed have not reported.
    for (number, (_, tally)) in open {
        emit(number, tally);
    }
}

/// Nanoseconds of a checked number of seconds.
fn nanos(seconds: f64) -> u64 {
    Duration::from_secs_f64(seconds).as_nanos() as u64
}

/// Checks the parameters; limits the number of threads to that of connections.
fn checked(spec: &Spec) -> io::Result<Spec> {
    seconds("seconds", spec.seconds)?;
    seconds("interval", spec.interval)?;
    seconds("timeout", spec.timeout)?;
    within("intervals (seconds by interval)", spec.seconds / spec.interval, 0.0, 100_000.0)?;
    within("threads", spec.threads, 1, 256)?;
    let streams = matches!(spec.pattern, Pattern::Stream | Pattern::Maerts);
    let by_thread = streams || matches!(spec.pattern, Pattern::Udp { .. });
    within("connections", spec.connections, 1, if by_thread { 1000 } else { 100_000 })?;
    if let Some(rate) = spec.rate {
        if streams {
            return Err(invalid(format!("rate is {rate}: a stream has none, it is as fast as possible")));
        }
        within("rate", rate, 0.001, 1e12)?;
    }
    match &spec.pattern {
        Pattern::Crr(sizes) | Pattern::Rr(sizes) => {
            within("request", sizes.request, HEADER as u32, 64 << 20)?;
            within("response", sizes.response, 1, 1 << 30)?;
        }
        Pattern::Http { host, path, .. } => {
            let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
            if !path.starts_with('/') || !plain(path) || !plain(host) || path.len() + host.len() > 2000 {
                return Err(invalid(format!("path is {path:?}: / and up to 2000 visible characters are needed")));
            }
        }
        Pattern::Stream | Pattern::Maerts | Pattern::Udp { .. } => (),
    }
    if let Some(source) = spec.sources.iter().find(|source| source.is_ipv4() != spec.to.is_ipv4()) {
        return Err(invalid(format!("source {source} cannot reach {}: their address families differ", spec.to)));
    }
    Ok(Spec { threads: spec.threads.min(spec.connections), ..spec.clone() })
}
