//! One performance of an act: the load runs, settings change on time, and the receiver's counts are kept.

use super::acts::Act;
use super::ledger::Ledger;
use super::stage::{PORT, RECEIVER_ADDRESS, Stage, sender_address};
use crate::interrupt::Interrupt;
use fairlane_lab::{Command, Event, Job, Outcome};
use fairlane_load::{ReceiveSpec, Sample, udp};
use indicatif::ProgressBar;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Intervals a second.
pub const INTERVALS: usize = 10;
/// Intervals between the receiver's start and the first step: the guests learn their neighbours' addresses, rings fill.
pub const LEAD: usize = 5;
/// Intervals between the last step and the receiver's end: what is in rings and queues arrives.
const TAIL: usize = 10;

/// Intervals that an act takes from first to last.
pub fn intervals(act: &Act) -> usize {
    LEAD + act.seconds() * INTERVALS + TAIL
}
/// Payload of a datagram: an Ethernet frame of [`FRAME`] bytes, the largest of a plain network.
const PAYLOAD: usize = 1472;
/// Bytes of a frame as the backend and the wire count it.
const FRAME: u64 = 1514;
/// How often an interrupt is looked for.
const GLANCE: Duration = Duration::from_millis(50);

/// What was measured.
pub struct Take {
    /// Bytes of frames that the receiver got, for each sender and for each interval from the first step's begin on.
    pub bytes: Vec<Vec<u64>>,
    /// How long after its time a step's settings were in force, in milliseconds.
    pub lateness: Vec<f64>,
    /// Frames and datagrams, counted at all places.
    pub ledger: Ledger,
}

impl Take {
    /// What a sender got in each whole second, in bits a second.
    pub fn rates(&self, sender: usize) -> Vec<f64> {
        let seconds = self.bytes[sender].chunks_exact(INTERVALS);
        seconds.map(|second| second.iter().sum::<u64>() as f64 * 8.0).collect()
    }

    /// The part a sender had of all that arrived in each whole second.
    pub fn shares(&self, sender: usize) -> Vec<f64> {
        let all: Vec<Vec<f64>> = (0..self.bytes.len()).map(|sender| self.rates(sender)).collect();
        let share = |(second, rate): (usize, &f64)| rate / all.iter().map(|rates| rates[second]).sum::<f64>();
        all[sender].iter().enumerate().map(share).collect()
    }
}

/// What a guest said while the act ran.
type Heard = Result<(Instant, Event), fairlane_lab::Error>;

/// Performs an act; each interval moves the progress on by one.
///
/// # Errors
/// A guest that ended or could not do its part, an interrupt.
pub fn perform(act: &Act, stage: &Stage, progress: &ProgressBar, interrupt: &Interrupt) -> anyhow::Result<Take> {
    for setting in &act.prelude {
        stage.set(setting)?;
    }
    let before = stage.snapshot()?;
    let (zero, heard) = begin(act, stage).map_err(|error| stage.explain(error))?;
    let bytes = vec![vec![0; act.seconds() * INTERVALS]; act.loads.len()];
    let mut under_way = UnderWay { act, zero, bytes, sent: 0, arrived: 0, shown: 0 };
    let starts =
        act.steps.iter().scan(LEAD, |start, step| Some(std::mem::replace(start, *start + step.seconds * INTERVALS)));
    let mut steps = act.steps.iter().zip(starts).peekable();
    let mut lateness = Vec::new();
    loop {
        interrupt.check()?;
        let due = steps.peek().map(|(_, start)| under_way.zero + Duration::from_secs_f64(seconds(*start)));
        let now = Instant::now();
        if let (Some(due), Some((step, _))) = (due.filter(|due| *due <= now), steps.peek()) {
            for setting in &step.settings {
                stage.set(setting)?;
            }
            lateness.push(due.elapsed().as_secs_f64() * 1e3);
            steps.next();
            continue;
        }
        let wait = due.map_or(GLANCE, |due| GLANCE.min(due - now));
        match heard.recv_timeout(wait) {
            Ok(heard) => {
                let (at, event) = heard.map_err(|error| stage.explain(error))?;
                under_way.hear(at, event, progress);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let UnderWay { bytes, sent, arrived, .. } = under_way;
    let ledger = Ledger::between(&before, &stage.snapshot()?, sent, arrived);
    Ok(Take { bytes, lateness, ledger })
}

/// Seconds of so many intervals.
fn seconds(intervals: usize) -> f64 {
    intervals as f64 / INTERVALS as f64
}

/// Starts the receiver and the loads; answers when the receiver's clock began, on ours, and what the guests say from then on.
fn begin(act: &Act, stage: &Stage) -> Result<(Instant, Receiver<Heard>), fairlane_lab::Error> {
    let active = LEAD + act.seconds() * INTERVALS;
    let order = ReceiveSpec { port: PORT, interval: seconds(1), seconds: seconds(active + TAIL) };
    let receiver = stage.receiver().start_job(Command::UdpReceive(order))?;
    let zero = receiver.started()?;
    let (said, heard) = channel();
    let hear = |job: Job| {
        let said = said.clone();
        job.pass_on(move |heard| said.send(heard).is_ok());
    };
    hear(receiver);
    for (sender, rate) in act.loads.iter().enumerate() {
        let to = SocketAddr::from((RECEIVER_ADDRESS, PORT));
        // One interval more than is measured, so that the last whole second is one of full load.
        let order = udp::SendSpec { to, size: PAYLOAD, rate: *rate, seconds: seconds(active + 1) };
        hear(stage.sender(sender).start_job(Command::UdpSend(order))?);
    }
    Ok((zero, heard))
}

/// What was heard so far.
struct UnderWay<'a> {
    act: &'a Act,
    /// Zero of the receiver's clock, on ours: what it says comes later than that, so the earliest is the best estimate.
    zero: Instant,
    bytes: Vec<Vec<u64>>,
    /// Datagrams.
    sent: u64,
    arrived: u64,
    /// The last interval that the progress shows.
    shown: usize,
}

impl UnderWay<'_> {
    fn hear(&mut self, at: Instant, event: Event, progress: &ProgressBar) {
        match event {
            Event::Sample(sample) => {
                self.zero = self.zero.min(at - Duration::from_secs_f64(sample.t));
                let interval = (sample.t * INTERVALS as f64).round() as usize;
                keep(&mut self.bytes, interval, &sample);
                if interval > self.shown {
                    progress.inc((interval - self.shown) as u64);
                    progress.set_message(message(self.act, &self.bytes, self.shown));
                    self.shown = interval;
                }
            }
            Event::Done(Outcome::Sent(account)) => self.sent += account.datagrams,
            Event::Done(Outcome::Received(account)) => {
                self.arrived += account.sources.iter().map(|source| source.datagrams).sum::<u64>();
            }
            _ => {}
        }
    }
}

/// Enters a sample where it belongs; `interval` counts from the receiver's start, from 1.
fn keep(bytes: &mut [Vec<u64>], interval: usize, sample: &Sample) {
    let sender = (0..bytes.len()).find(|sender| sample.source.ip() == IpAddr::V4(sender_address(*sender)));
    let cell = sender.zip(interval.checked_sub(LEAD + 1)).and_then(|(sender, place)| bytes[sender].get_mut(place));
    if let Some(cell) = cell {
        *cell += sample.datagrams * FRAME;
    }
}

/// What the progress shows of an interval.
fn message(act: &Act, bytes: &[Vec<u64>], interval: usize) -> String {
    let Some(place) = interval.checked_sub(LEAD + 1) else { return act.name.word().to_owned() };
    let rate = |cells: &Vec<u64>| cells.get(place).map(|bytes| *bytes as f64 * 8.0 * INTERVALS as f64 / 1e6);
    let rates: Option<Vec<String>> = bytes.iter().map(|cells| rate(cells).map(|rate| format!("{rate:5.1}"))).collect();
    let label = act.by_second().nth(place / INTERVALS).map_or("", |step| &step.label);
    rates.map_or(act.name.word().to_owned(), |rates| {
        format!("{} {label:>4} {} Mbit/s", act.name.word(), rates.join(" "))
    })
}
