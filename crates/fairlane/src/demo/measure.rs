//! Runs an act: starts the load, changes settings on time, and records what the receiver counts.

use super::acts::Act;
use super::ledger::Ledger;
use super::stage::{PORT, RECEIVER_ADDRESS, Stage, sender_address};
use fairlane_lab::{Command, Event, Job, Outcome, interrupt};
use fairlane_load::{ReceiveSpec, Sample, udp};
use indicatif::ProgressBar;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Intervals per second.
pub(super) const INTERVALS: usize = 10;
/// Intervals between the receiver's start and the first step, in which neighbours are resolved and rings fill.
pub(super) const LEAD: usize = 5;
/// Intervals between the last step and the receiver's end, in which frames in rings and queues arrive.
pub(super) const TAIL: usize = 10;

/// All intervals of an act, with lead and tail.
pub(super) fn intervals(act: &Act) -> usize {
    LEAD + act.seconds() * INTERVALS + TAIL
}
/// Payload of a datagram, which fills an Ethernet frame of [`FRAME`] bytes.
const PAYLOAD: usize = 1472;
/// Bytes of a frame as backend and wire count them.
pub(super) const FRAME: u64 = 1514;
/// How often to check for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The measurements of an act.
pub(super) struct Measurement {
    /// Bytes of received frames, by sender and by interval since the first step began.
    pub bytes: Vec<Vec<u64>>,
    /// How late each step's settings were applied, in milliseconds.
    pub lateness: Vec<f64>,
    /// Frames and datagrams, counted at each point of their path; none in a simulation.
    pub ledger: Option<Ledger>,
}

impl Measurement {
    /// A sender's rate in each whole second, in bits per second.
    pub(super) fn rates(&self, sender: usize) -> Vec<f64> {
        let seconds = self.bytes[sender].chunks_exact(INTERVALS);
        seconds.map(|second| second.iter().sum::<u64>() as f64 * 8.0).collect()
    }

    /// A sender's share of all received bytes in each whole second.
    pub(super) fn shares(&self, sender: usize) -> Vec<f64> {
        let all: Vec<Vec<f64>> = (0..self.bytes.len()).map(|sender| self.rates(sender)).collect();
        let share = |(second, rate): (usize, &f64)| rate / all.iter().map(|rates| rates[second]).sum::<f64>();
        all[sender].iter().enumerate().map(share).collect()
    }
}

/// An event of a guest's agent, with the time it arrived.
type AgentEvent = Result<(Instant, Event), fairlane_lab::Error>;

/// Runs an act. Each interval advances the progress by one.
///
/// # Errors
/// A guest ended or failed, or an interrupt arrived.
pub(super) fn run(act: &Act, stage: &Stage, progress: &ProgressBar) -> anyhow::Result<Measurement> {
    for setting in &act.prelude {
        stage.set(setting)?;
    }
    let before = stage.snapshot()?;
    let (zero, events) = start(act, stage).map_err(|error| stage.explain(error))?;
    let bytes = vec![vec![0; act.seconds() * INTERVALS]; act.loads.len()];
    let mut recording = Recording { act, zero, bytes, sent: 0, received: 0, shown: 0 };
    let starts =
        act.steps.iter().scan(LEAD, |start, step| Some(std::mem::replace(start, *start + step.seconds * INTERVALS)));
    let mut steps = act.steps.iter().zip(starts).peekable();
    let mut lateness = Vec::new();
    loop {
        interrupt::check()?;
        let due = steps.peek().map(|(_, start)| recording.zero + Duration::from_secs_f64(seconds(*start)));
        let now = Instant::now();
        if let (Some(due), Some((step, _))) = (due.filter(|due| *due <= now), steps.peek()) {
            for setting in &step.settings {
                stage.set(setting)?;
            }
            lateness.push(due.elapsed().as_secs_f64() * 1e3);
            steps.next();
            continue;
        }
        let wait = due.map_or(POLL_INTERVAL, |due| POLL_INTERVAL.min(due - now));
        match events.recv_timeout(wait) {
            Ok(event) => {
                let (at, event) = event.map_err(|error| stage.explain(error))?;
                recording.add(at, event, progress);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let Recording { bytes, sent, received, .. } = recording;
    let ledger = Ledger::between(&before, &stage.snapshot()?, sent, received);
    Ok(Measurement { bytes, lateness, ledger: Some(ledger) })
}

/// The length of a number of intervals, in seconds.
pub(super) fn seconds(intervals: usize) -> f64 {
    intervals as f64 / INTERVALS as f64
}

/// Starts the receiver and the loads. Returns when the receiver's clock started, on this process's clock, and the guests' events.
fn start(act: &Act, stage: &Stage) -> Result<(Instant, Receiver<AgentEvent>), fairlane_lab::Error> {
    let active = LEAD + act.seconds() * INTERVALS;
    let spec = ReceiveSpec { port: PORT, interval: seconds(1), seconds: seconds(active + TAIL) };
    let receiver = stage.receiver().start_job(Command::UdpReceive(spec))?;
    let zero = receiver.started()?;
    let (sender, events) = channel();
    let forward = |job: Job| {
        let sender = sender.clone();
        job.pass_on(move |event| sender.send(event).is_ok());
    };
    forward(receiver);
    for (index, rate) in act.loads.iter().enumerate() {
        let to = SocketAddr::from((RECEIVER_ADDRESS, PORT));
        // One interval longer than is measured, so that the last second has full load.
        let spec = udp::SendSpec { to, size: PAYLOAD, rate: *rate, seconds: seconds(active + 1) };
        forward(stage.sender(index).start_job(Command::UdpSend(spec))?);
    }
    Ok((zero, events))
}

/// The counts so far.
struct Recording<'a> {
    act: &'a Act,
    /// When the receiver's clock started, on this process's clock. Events arrive late, so the earliest estimate is the best.
    zero: Instant,
    bytes: Vec<Vec<u64>>,
    /// Datagrams sent.
    sent: u64,
    /// Datagrams received.
    received: u64,
    /// The last interval shown by the progress bar.
    shown: usize,
}

impl Recording<'_> {
    fn add(&mut self, at: Instant, event: Event, progress: &ProgressBar) {
        match event {
            Event::Sample(sample) => {
                self.zero = self.zero.min(at - Duration::from_secs_f64(sample.t));
                let interval = (sample.t * INTERVALS as f64).round() as usize;
                add_sample(&mut self.bytes, interval, &sample);
                if interval > self.shown {
                    progress.inc((interval - self.shown) as u64);
                    progress.set_message(message(self.act, &self.bytes, self.shown));
                    self.shown = interval;
                }
            }
            Event::Done(Outcome::Sent(account)) => self.sent += account.datagrams,
            Event::Done(Outcome::Received(account)) => {
                self.received += account.sources.iter().map(|source| source.datagrams).sum::<u64>();
            }
            _ => {}
        }
    }
}

/// Adds a sample to its sender and interval. `interval` counts from 1 at the receiver's start.
fn add_sample(bytes: &mut [Vec<u64>], interval: usize, sample: &Sample) {
    let sender = (0..bytes.len()).find(|sender| sample.source.ip() == IpAddr::V4(sender_address(*sender)));
    let cell = sender.zip(interval.checked_sub(LEAD + 1)).and_then(|(sender, index)| bytes[sender].get_mut(index));
    if let Some(cell) = cell {
        *cell += sample.datagrams * FRAME;
    }
}

/// The message of the progress bar for an interval.
fn message(act: &Act, bytes: &[Vec<u64>], interval: usize) -> String {
    let Some(index) = interval.checked_sub(LEAD + 1) else { return act.name.as_str().to_owned() };
    let rate = |cells: &Vec<u64>| cells.get(index).map(|bytes| *bytes as f64 * 8.0 * INTERVALS as f64 / 1e6);
    let rates: Option<Vec<String>> = bytes.iter().map(|cells| rate(cells).map(|rate| format!("{rate:5.1}"))).collect();
    let label = act.by_second().nth(index / INTERVALS).map_or("", |step| &step.label);
    rates.map_or(act.name.as_str().to_owned(), |rates| {
        format!("{} {label:>4} {} Mbit/s", act.name.as_str(), rates.join(" "))
    })
}
