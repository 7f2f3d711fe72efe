//! How guests that send datagrams share the host's link. Each sends from its own start to the common end.
//!
//! The external machine counts, with one clock for all. Throughput is that of the datagrams' payload, as iperf reports it.

use fairlane_agent::{Command, Event, Outcome};
use fairlane_load::{ReceiveSpec, disk, udp};
use fairlane_report::{At, Axis, Figure, Series, stats};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::due::{self, Bounds};
use super::flows::{Flows, mean, worst};
use super::{Finished, Procedure, passage, title};
use crate::images::GUEST_DISK;
use crate::{Error, GuestPlan, Machine, Node, Topology};

/// Seconds from a sender's start, or a disk's, until its effect is steady.
const SETTLE: f64 = 1.0;
/// Seconds that the receiver counts on after the senders' end.
const TAIL: f64 = 0.5;
/// Bytes of a datagram's Ethernet, IP and UDP headers.
const HEADERS: f64 = 42.0;
/// The share of the received bytes below which a guest counts as starved.
const STARVED: f64 = 0.05;
/// The share from which a guest dominates.
const DOMINANT: f64 = 0.8;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UdpShare {
    /// The senders.
    senders: Vec<Sender>,
    /// The common end, in seconds after the first start.
    seconds: f64,
    /// Payload of a datagram, in bytes.
    #[serde(default = "payload")]
    payload: usize,
    /// Seconds of an interval of the time series.
    #[serde(default = "interval")]
    interval: f64,
    /// A disk that is used for part of the time.
    #[serde(default)]
    disk: Option<Disk>,
}

/// A guest that sends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sender {
    guest: usize,
    /// Its start, in seconds.
    #[serde(default)]
    start: f64,
    /// The number of concurrent streams.
    #[serde(default = "one")]
    streams: usize,
    /// Payload of its datagrams, in bytes, if it differs from the procedure's.
    #[serde(default)]
    payload: Option<usize>,
    /// The offered rate of each stream, in bits per second of Ethernet frames; unlimited if not given.
    #[serde(default)]
    offer: Option<f64>,
}

/// A guest that writes to its disk from one time until another, in seconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Disk {
    guest: usize,
    from: f64,
    until: f64,
}

fn payload() -> usize {
    1472
}

fn interval() -> f64 {
    0.5
}

fn one() -> usize {
    1
}

/// Heavy writing as by fio: direct I/O in blocks of 64 KiB, four at once.
fn disk_load(seconds: f64, interval: f64) -> disk::Spec {
    let (path, operation) = (GUEST_DISK.into(), disk::Operation::Write);
    disk::Spec { path, operation, block: 64 << 10, span: 32 << 20, workers: 4, interval, seconds }
}

impl UdpShare {
    /// The time from which all senders are steady, in seconds.
    fn all_steady(&self) -> f64 {
        self.senders.iter().map(|sender| sender.start).fold(0.0, f64::max) + SETTLE
    }

    /// When the second sender starts, if the first one has sent alone for long enough to be measured.
    fn second_start(&self) -> Option<f64> {
        let others = self.senders.iter().skip(1).map(|sender| sender.start);
        let first = others.fold(f64::INFINITY, f64::min);
        (first.is_finite() && first >= self.senders.first()?.start + 2.0 * SETTLE).then_some(first)
    }

    /// The guest of a sender in the topology.
    fn plan_of<'a>(topology: &'a Topology, sender: &Sender) -> Option<&'a GuestPlan> {
        topology.guests.get(sender.guest.checked_sub(1)?)
    }

    fn rate(topology: &Topology, sender: &Sender) -> Option<f64> {
        Self::plan_of(topology, sender)?.rate
    }

    fn min_rate(topology: &Topology, sender: &Sender) -> Option<f64> {
        Self::plan_of(topology, sender)?.min_rate
    }

    fn payload(&self, sender: &Sender) -> usize {
        sender.payload.unwrap_or(self.payload)
    }

    /// Computes how two or more senders share the link while all of them send.
    fn read_division(&self, flows: &Flows, record: &mut Record) {
        let shares: Vec<Vec<f64>> =
            (0..self.senders.len()).map(|sender| flows.within(sender, self.all_steady(), self.seconds)).collect();
        let intervals = shares.iter().map(Vec::len).min().unwrap_or(0);
        let all = |index: usize| shares.iter().map(|rates| rates[index]).collect::<Vec<f64>>();
        let (mut indices, mut starved, mut longest, mut run) = (Vec::new(), 0, 0, (0, usize::MAX));
        for got in (0..intervals).map(all) {
            let total: f64 = got.iter().sum();
            indices.extend(stats::jain(&got));
            starved += usize::from(got.iter().any(|rate| *rate < STARVED * total));
            let dominant = got.iter().position(|rate| total > 0.0 && *rate >= DOMINANT * total);
            run = match dominant {
                Some(dominant) if dominant == run.1 => (run.0 + 1, dominant),
                Some(dominant) => (1, dominant),
                None => (0, usize::MAX),
            };
            longest = longest.max(run.0);
        }
        // In each second: the range of the guests' throughput, as a fraction of their mean.
        let second = ((1.0 / self.interval).round() as usize).max(1);
        let apart = (second..=intervals).map(|end| {
            let had: Vec<f64> = shares.iter().map(|rates| mean(&rates[end - second..end])).collect();
            let range = had.iter().copied().fold(0.0, f64::max) - had.iter().copied().fold(f64::INFINITY, f64::min);
            100.0 * range / mean(&had)
        });
        record.add("apart", Statistic::OfRepeats, "%", [worst(apart)]);
        let first = mean(&shares[0]);
        let last = shares.last().map_or(f64::NAN, |rates| mean(rates));
        record.add("jain", Statistic::OfRepeats, "", [mean(&indices)]);
        record.add("starved", Statistic::OfRepeats, "%", [100.0 * starved as f64 / intervals.max(1) as f64]);
        record.add("dominated", Statistic::OfRepeats, "s", [longest as f64 * self.interval]);
        record.add("ratio", Statistic::OfRepeats, "", [last / first]);
    }

    /// Computes how far the senders are from what they are due while all of them send, and what each tenant gets.
    fn read_shares(&self, topology: &Topology, flows: &Flows, record: &mut Record) {
        // The link carries frames, not payload.
        let frames = |(index, sender): (usize, &Sender)| {
            let payload = self.payload(sender) as f64;
            let rates = flows.within(index, self.all_steady(), self.seconds);
            rates.into_iter().map(|rate| rate * (payload + HEADERS) / payload).collect()
        };
        let rates: Vec<Vec<f64>> = self.senders.iter().enumerate().map(frames).collect();
        let guests: Vec<usize> = self.senders.iter().map(|sender| sender.guest).collect();
        let due = due::due(topology, &guests, topology.link.unwrap_or(f64::INFINITY), |plan| Bounds {
            least: plan.min_rate,
            most: plan.rate,
        });
        let second = ((1.0 / self.interval).round() as usize).max(1);
        record.add("off", Statistic::OfRepeats, "", [due::off(&rates, &due, second)]);
        let total: f64 = rates.iter().flatten().sum();
        for tenant in &topology.tenants {
            let is_its = |sender: &Sender| {
                Self::plan_of(topology, sender).is_some_and(|plan| plan.tenant.as_ref() == Some(&tenant.name))
            };
            let its = self.senders.iter().zip(&rates).filter(|(sender, _)| is_its(sender));
            let got: f64 = its.flat_map(|(_, rates)| rates).sum();
            record.add(&format!("tenant/{}", tenant.name), Statistic::OfRepeats, "", [got / total]);
        }
    }

    /// Computes the first sender's throughput before, during and after the disk's use.
    fn read_disk(&self, disk: &Disk, flows: &Flows, record: &mut Record) {
        let part = |from, until| mean(&flows.within(0, from, until));
        let before = part(self.senders[0].start + SETTLE, disk.from);
        let during = part(disk.from + SETTLE, disk.until);
        for (name, rate) in [("before", before), ("during", during), ("after", part(disk.until + SETTLE, self.seconds))]
        {
            record.add(name, Statistic::OfRepeats, "Mbit/s", [rate]);
        }
        record.add("drop", Statistic::OfRepeats, "%", [100.0 * (1.0 - during / before)]);
    }
}

impl Procedure for UdpShare {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults = Vec::new();
        limits(&mut faults, "seconds", self.seconds, 3.0, 3600.0);
        for payload in self.senders.iter().map(|sender| self.payload(sender)).chain([self.payload]) {
            limits(&mut faults, "payload", payload as f64, 8.0, 65_507.0);
        }
        limits(&mut faults, "interval", self.interval, 0.05, 10.0);
        if self.senders.is_empty() {
            faults.push(("senders", "senders must be one or more, such as [{ guest = 1 }]".to_owned()));
        }
        for sender in &self.senders {
            faults.extend(guest_fault("senders", sender.guest, topology));
            if !(0.0..self.seconds - 2.0).contains(&sender.start) {
                let latest = self.seconds - 2.0;
                faults.push((
                    "senders",
                    format!("start must be 0 to {latest}, 2 s before the end, not {}", sender.start),
                ));
            }
            if !(1..=64).contains(&sender.streams) {
                faults.push(("senders", format!("streams must be 1 to 64, not {}", sender.streams)));
            }
            if let Some(offer) = sender.offer.filter(|offer| !(offer.is_finite() && *offer >= 1e3)) {
                faults.push(("senders", format!("offer must be at least 1e3 bits per second, not {offer}")));
            }
        }
        if let Some(disk) = &self.disk {
            faults.extend(guest_fault("disk", disk.guest, topology));
            let plan = disk.guest.checked_sub(1).and_then(|index| topology.guests.get(index));
            if plan.is_some_and(|plan| !plan.disk) {
                faults.push(("disk", format!("guest {} has no disk: its plan needs disk = true", disk.guest)));
            }
            if !(2.0..disk.until).contains(&disk.from) || disk.until > self.seconds {
                faults
                    .push(("disk", format!("from and until must follow each other between 2 and {} s", self.seconds)));
            }
        }
        faults
    }

    fn metrics(&self, topology: &Topology) -> Vec<String> {
        let mut names: Vec<String> = ["total", "lost", passage::LOST, "spread"].map(str::to_owned).into();
        for sender in &self.senders {
            let guest = format!("guest{}", sender.guest);
            names.push(format!("{guest}/spread"));
            if Self::rate(topology, sender).is_some() {
                names.push(format!("{guest}/of_rate"));
            }
            if Self::min_rate(topology, sender).is_some() {
                names.push(format!("{guest}/of_min_rate"));
            }
            names.push(guest);
        }
        if self.second_start().is_some() {
            names.extend(["alone", "kept"].map(str::to_owned));
        }
        if self.senders.len() > 1 {
            names.extend(["apart", "jain", "starved", "dominated", "ratio", "off"].map(str::to_owned));
            names.extend(topology.tenants.iter().map(|tenant| format!("tenant/{}", tenant.name)));
        }
        if self.disk.is_some() {
            names.extend(["before", "during", "after", "drop", "disk"].map(str::to_owned));
        }
        names
    }

    fn seconds(&self) -> f64 {
        self.seconds + TAIL + passage::DRAIN
    }

    fn shorten(&mut self) {
        let factor = (8.0 / self.seconds).min(1.0);
        self.seconds *= factor;
        self.senders.iter_mut().for_each(|sender| sender.start *= factor);
        if let Some(disk) = &mut self.disk {
            (disk.from, disk.until) = (disk.from * factor, disk.until * factor);
        }
    }

    fn scale(&mut self, factor: f64) {
        self.senders.iter_mut().filter_map(|sender| sender.offer.as_mut()).for_each(|offer| *offer *= factor);
    }

    fn prepare(&self, topology: &Topology, machine: &dyn Machine, record: &mut Record) -> Result<(), Error> {
        passage::begin(topology, machine, record)
    }

    fn plan(&self, _: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        let spec = ReceiveSpec { port, interval: self.interval, seconds: self.seconds + TAIL };
        plan.serve(Node::External, Command::UdpReceive(spec));
        let to = (at(Node::External), port).into();
        for sender in &self.senders {
            for _ in 0..sender.streams {
                let seconds = self.seconds - sender.start;
                let spec = udp::SendSpec { to, size: self.payload(sender), rate: sender.offer, seconds };
                plan.start(Node::Guest(sender.guest), sender.start, Command::UdpSend(spec));
            }
        }
        if let Some(Disk { guest, from, until }) = &self.disk {
            plan.start(Node::Guest(*guest), *from, Command::Disk(disk_load(until - from, self.interval)));
        }
        plan
    }

    fn read(&self, topology: &Topology, at: Addresses, accounts: &[Account], record: &mut Record) {
        let Some(receiver) = accounts.first() else { return };
        let guests: Vec<Node> = self.senders.iter().map(|sender| Node::Guest(sender.guest)).collect();
        let flows = Flows::read(&guests, at, &receiver.events, self.interval, self.seconds);
        let mut total = 0.0;
        for (index, sender) in self.senders.iter().enumerate() {
            let guest = format!("guest{}", sender.guest);
            let about = format!("guest {}", sender.guest);
            record.series(Series::new(&guest, "Mbit/s", Axis::time()).group(&about).points(flows.points(index)));
            let got = mean(&flows.within(index, self.all_steady(), self.seconds));
            total += got;
            record.add(&guest, Statistic::OfRepeats, "Mbit/s", [got]);
            if let Some(rate) = Self::rate(topology, sender) {
                record.add(&format!("{guest}/of_rate"), Statistic::OfRepeats, "", [got * 1e6 / rate]);
            }
            if let Some(rate) = Self::min_rate(topology, sender) {
                let payload = self.payload(sender) as f64;
                let frames = got * 1e6 * (payload + HEADERS) / payload;
                record.add(&format!("{guest}/of_min_rate"), Statistic::OfRepeats, "", [frames / rate]);
            }
        }
        record.add("total", Statistic::OfRepeats, "Mbit/s", [total]);
        if let Some(second) = self.second_start() {
            let alone = mean(&flows.within(0, self.senders[0].start + SETTLE, second));
            let kept = mean(&flows.within(0, self.all_steady(), self.seconds)) / alone;
            record.add("alone", Statistic::OfRepeats, "Mbit/s", [alone]);
            record.add("kept", Statistic::OfRepeats, "", [kept]);
        }
        let samples =
            receiver.events.iter().filter_map(|event| if let Event::Sample(s) = event { Some(s) } else { None });
        let (lost, came) = samples.fold((0.0, 0.0), |(lost, came), sample| {
            (lost + sample.skipped as f64 - sample.late as f64, came + sample.datagrams as f64)
        });
        record.add("lost", Statistic::OfRepeats, "%", [100.0 * lost.max(0.0) / (lost.max(0.0) + came)]);
        if self.senders.len() > 1 {
            self.read_division(&flows, record);
            self.read_shares(topology, &flows, record);
        }
        if let Some(disk) = &self.disk {
            self.read_disk(disk, &flows, record);
        }
        if let Some(Outcome::Disk(done)) = accounts.last().map(|account| &account.outcome) {
            let bytes: u64 = done.samples.iter().map(|sample| sample.bytes).sum();
            record.add("disk", Statistic::OfRepeats, "MB/s", [bytes as f64 / 1e6 / done.seconds]);
        }
    }

    fn observe(
        &self,
        topology: &Topology,
        machine: &dyn Machine,
        _: &[Account],
        record: &mut Record,
    ) -> Result<(), Error> {
        passage::end(topology, machine, record)
    }

    /// `spread` is half the 95% confidence interval of one interval's throughput over the repeats, averaged over all intervals, in
    /// per cent of the mean throughput.
    fn conclude(&self, _: &Topology, record: &mut Record) {
        let mut spreads = Vec::new();
        for sender in &self.senders {
            let guest = format!("guest{}", sender.guest);
            let steady = |point: &&[f64; 2]| point[0] - self.interval >= self.all_steady() - 1e-6;
            let mut points: Vec<[f64; 2]> = record.points(&guest).iter().filter(steady).copied().collect();
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            let at_times = points.chunk_by(|a, b| a[0] == b[0]);
            let halves: Vec<f64> = at_times
                .filter_map(|same| stats::student(&same.iter().map(|point| point[1]).collect::<Vec<f64>>()))
                .map(|[low, high]| (high - low) / 2.0)
                .collect();
            let level = mean(&points.iter().map(|point| point[1]).collect::<Vec<f64>>());
            let spread = 100.0 * mean(&halves) / level;
            record.set(&format!("{guest}/spread"), "%", spread);
            spreads.push(spread);
        }
        record.set("spread", "%", mean(&spreads));
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let figure = |case: &Finished| {
            let names = self.senders.iter().map(|sender| format!("{}guest{}", case.prefix, sender.guest));
            let mut figure = Figure::means(&title("Throughput", case)).series(names).y("throughput");
            for guest in &case.topology.guests {
                let rate = guest.rate.map(|rate| rate / 1e6);
                let known = figure.marks.iter().any(|mark| Some(mark.at) == rate.map(At::Y));
                if let (Some(rate), false) = (rate, known) {
                    figure = figure.mark(At::Y(rate), "rate");
                }
            }
            if let Some(disk) = &self.disk {
                figure = figure.mark(At::X(disk.from), "t0: disk begins").mark(At::X(disk.until), "t1: disk ends");
            }
            figure
        };
        cases.iter().map(figure).collect()
    }
}
