//! Executes commands.

use std::{fs, io, path::Path, process, sync::atomic::AtomicBool, time::Duration};

use fairlane_load::{
    Progress, about, busy, delay, digest, disk, ping, processors, tcp,
    traffic::{client, server},
    transfer, udp,
};
use nix::time::{ClockId, clock_gettime};

use crate::{Command, Counters, Event, Outcome, doctor, mark::mark, mpi, program, proxy, symbols};

/// Runs a command; `send` gets its events before the outcome.
///
/// # Errors
/// Those of the program that runs it, including invalid parameters.
pub(crate) fn run(command: Command, send: impl Fn(Event)) -> io::Result<Outcome> {
    let progress = |progress| match progress {
        Progress::Started(_) => send(Event::Started),
        Progress::Sample(sample) => send(Event::Sample(sample)),
    };
    let started = || send(Event::Started);
    match command {
        Command::Hello => hello(),
        Command::UdpSend(spec) => udp::send(&spec).map(Outcome::Sent),
        Command::UdpReceive(spec) => udp::receive(&spec, progress).map(Outcome::Received),
        Command::TcpSend(spec) => tcp::send(&spec).map(Outcome::Sent),
        Command::TcpReceive(spec) => tcp::receive(&spec, progress).map(Outcome::Received),
        Command::Ping(spec) => ping::run(&spec).map(Outcome::RoundTrips),
        Command::DelaySend(spec) => delay::send(&spec).map(Outcome::Delays),
        Command::DelayServe(spec) => served(delay::serve(&spec, |_| started())),
        Command::TransferSend(spec) => transfer::send(&spec).map(Outcome::Transfers),
        Command::TransferServe(spec) => served(transfer::serve(&spec, |_| started())),
        Command::DigestSend(spec) => digest::send(&spec).map(Outcome::Sent),
        Command::DigestServe(spec) => served(digest::serve(&spec, |_| started())),
        Command::RequestServe(spec) => served(answer_requests(&spec, started)),
        Command::RequestSend(spec) => make_requests(&spec),
        Command::Proxy(spec) => served(proxy::run(&spec, started)),
        Command::Processors(spec) => processors::run(&spec).map(Outcome::Processors),
        Command::Doctor(spec) => doctor::run(&spec).map(Outcome::Findings),
        Command::MpiRun(spec) => mpi::run(&spec).map(Outcome::Exchanged),
        Command::MpiServe(spec) => served(mpi::serve(&spec, started)),
        Command::Busy(spec) => busy::run(&spec).map(Outcome::Consumed),
        Command::Disk(spec) => disk::run(&spec, started).map(Outcome::Disk),
        Command::Counters => Counters::read().map(Outcome::Counters),
        Command::Run { argv } => program::run(&argv),
        Command::Await { argv, text, seconds } => program::run_until(&argv, &text, seconds),
        Command::Read { path } => fs::read_to_string(&path).map(Outcome::Text).map_err(about(path.display())),
        Command::Write { path, text } => write(&path, &text),
        Command::Mark => Counters::read().map(|counters| Outcome::Marked { number: mark(), counters }),
        Command::Symbols { table, addresses } => name(&table, &addresses),
        Command::Attach { .. } | Command::Spawn { .. } | Command::PowerOff => {
            unreachable!("handled where requests are read")
        }
    }
}

/// The kernel's release and clock, and the agent's process id.
pub(crate) fn hello() -> io::Result<Outcome> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim_end().to_owned();
    let clock = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(Outcome::Hello { kernel, clock: Duration::from(clock).as_secs_f64(), pid: process::id() })
}

/// The outcome of a server.
fn served(end: io::Result<()>) -> io::Result<Outcome> {
    end.map(|()| Outcome::Served)
}

fn answer_requests(spec: &server::Spec, started: impl Fn()) -> io::Result<()> {
    server::run(spec, &AtomicBool::new(false), |_| started(), |_| ()).map(drop)
}

fn make_requests(spec: &client::Spec) -> io::Result<Outcome> {
    let outcome = client::run(spec, &AtomicBool::new(false), |_| ())?;
    Ok(Outcome::Requests((&outcome).into()))
}

fn write(path: &Path, text: &str) -> io::Result<Outcome> {
    fs::write(path, text).map_err(about(path.display()))?;
    Ok(Outcome::Written)
}

fn name(table: &Path, addresses: &[u64]) -> io::Result<Outcome> {
    symbols::of(table, addresses).map(Outcome::Symbols).map_err(about(table.display()))
}
