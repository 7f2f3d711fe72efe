//! The text of snapshots as numbers, shared by the rules. Text that cannot be parsed counts as absent, never as an error.

use super::snapshot::{LISTENERS, Snapshot, THREADS};
use fairlane_load::processors::{self, Use};
use std::collections::{BTreeMap, BTreeSet};

/// Two snapshots and the time between them.
pub(super) struct Change<'a> {
    /// The first.
    pub before: &'a Snapshot,
    /// The second.
    pub after: &'a Snapshot,
    /// Seconds from the first to the second, above zero.
    pub seconds: f64,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listener {
    /// Address and port, as ss writes them.
    pub local: String,
    /// Connections that wait to be accepted.
    pub queue: u64,
    /// Longest queue: the smaller of the backlog that the program passed to listen() and somaxconn.
    pub backlog: u64,
    /// The processes that hold it; empty without the permission to see them.
    pub processes: BTreeSet<u32>,
}

/// What a thread did between two snapshots.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Thread {
    /// Its process.
    pub process: u32,
    /// Its name.
    pub name: String,
    /// The processor it ran on last.
    pub cpu: u32,
    /// Fraction of the time that it ran, 0 to 1.
    pub running: f64,
    /// Fraction of the time that it was runnable and waited for a processor, 0 to 1.
    pub waiting: f64,
    /// Mean wait before each time slice, in seconds.
    pub wait: f64,
}

/// What a processor did between two snapshots: fractions of its time, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cpu {
    /// Anything but idle.
    pub busy: f64,
    /// Interrupts and soft interrupts: most of the network stack.
    pub interrupts: f64,
    /// Given to other guests by the hypervisor.
    pub steal: f64,
}

impl From<&Use> for Cpu {
    fn from(used: &Use) -> Cpu {
        let fraction = |ticks: u64| ticks as f64 / used.total.max(1) as f64;
        let busy = fraction(used.busy.saturating_add(used.stolen));
        Cpu { busy, interrupts: fraction(used.interrupts), steal: fraction(used.stolen) }
    }
}

impl Snapshot {
    /// The number in a file.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).trim().parse().ok()
    }

    /// A counter of /proc/net/netstat or /proc/net/snmp, which have a line of names and a line of numbers per protocol.
    pub(super) fn counter(&self, protocol: &str, name: &str) -> Option<u64> {
        ["/proc/net/netstat", "/proc/net/snmp"].iter().find_map(|file| {
            let mut lines = self.text(file).lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
            let (names, values) = (lines.next()?, lines.next()?);
            let index = names.split_whitespace().position(|each| each == name)?;
            values.split_whitespace().nth(index)?.parse().ok()
        })
    }

    /// The value after `name` in the line that begins with `line:` (`sockets: used 15`), as in /proc/net/sockstat.
    pub(super) fn field(&self, file: &str, line: &str, name: &str) -> Option<u64> {
        let line = self.text(file).lines().find_map(|each| each.strip_prefix(line)?.strip_prefix(':'))?;
        line.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
    }

    /// The value of a `name : value` line.
    pub(super) fn value(&self, file: &str, name: &str) -> Option<&str> {
        let lines = self.text(file).lines().filter_map(|line| line.split_once(':'));
        lines.map(|(each, value)| (each.trim(), value.trim())).find(|(each, _)| *each == name).map(|(_, value)| value)
    }

    /// The network devices.
    pub(super) fn devices(&self) -> Vec<String> {
        self.text("/proc/net/dev")
            .lines()
            .skip(2)
            .filter_map(|line| Some(line.split_once(':')?.0.trim().into()))
            .collect()
    }

    /// Packets a device has received and sent.
    pub(super) fn packets(&self, device: &str) -> u64 {
        let count = || {
            let words: Vec<_> = self.value("/proc/net/dev", device)?.split_whitespace().collect();
            let count = |index: usize| words.get(index)?.parse::<u64>().ok();
            Some(count(1)?.saturating_add(count(9)?))
        };
        count().unwrap_or(0)
    }

    /// The listening sockets.
    pub(super) fn listeners(&self) -> Vec<Listener> {
        let listener = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [_, queue, backlog, local, ..] = words.as_slice() else { return None };
            let processes = line
                .split("pid=")
                .skip(1)
                .filter_map(|rest| rest.split(|byte: char| !byte.is_ascii_digit()).next()?.parse().ok());
            let processes = processes.collect();
            let (queue, backlog) = (queue.parse().ok()?, backlog.parse().ok()?);
            Some(Listener { local: (*local).to_owned(), queue, backlog, processes })
        };
        self.text(LISTENERS).lines().filter_map(listener).collect()
    }

    /// Whether this machine runs on a hypervisor.
    pub(super) fn is_guest(&self) -> bool {
        let flags = self.value("/proc/cpuinfo", "flags").unwrap_or_default();
        flags.split_whitespace().any(|flag| flag == "hypervisor") || !self.text("/sys/hypervisor/type").is_empty()
    }
}

impl Change<'_> {
    /// How much a counter grew.
    pub(super) fn grown(&self, protocol: &str, name: &str) -> u64 {
        let of = |snapshot: &Snapshot| snapshot.counter(protocol, name).unwrap_or(0);
        of(self.after).saturating_sub(of(self.before))
    }

    /// How much the only number of a file grew.
    pub(super) fn number_grown(&self, file: &str) -> u64 {
        self.after.number(file).unwrap_or(0).saturating_sub(self.before.number(file).unwrap_or(0))
    }

    /// A count divided by the seconds between the snapshots.
    pub(super) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    /// What each processor did.
    pub(super) fn cpus(&self) -> Vec<Cpu> {
        self.uses().iter().map(Cpu::from).collect()
    }

    /// What all processors did together.
    pub(super) fn all_cpus(&self) -> Cpu {
        let mut all = Use::default();
        self.uses().iter().for_each(|used| all += used);
        Cpu::from(&all)
    }

    fn uses(&self) -> Vec<Use> {
        let before = processors::read(self.before.text("/proc/stat"));
        let after = processors::read(self.after.text("/proc/stat"));
        after.iter().map(|(number, after)| after.since(before.get(number).unwrap_or(&Use::default()))).collect()
    }

    /// The threads that are in both snapshots.
    pub(super) fn threads(&self) -> Vec<Thread> {
        let read = |snapshot: &Snapshot| -> BTreeMap<(u32, u32), ([u64; 4], String)> {
            let line = |line: &str| {
                let words: Vec<_> = line.split_whitespace().collect();
                let [process, thread, cpu, run, wait, slices, name] = words.as_slice() else { return None };
                let times = [cpu, run, wait, slices].map(|word| word.parse().ok());
                let [Some(cpu), Some(run), Some(wait), Some(slices)] = times else { return None };
                Some(((process.parse().ok()?, thread.parse().ok()?), ([cpu, run, wait, slices], (*name).to_owned())))
            };
            snapshot.text(THREADS).lines().filter_map(line).collect()
        };
        let before = read(self.before);
        let thread = |((process, thread), (after, name)): ((u32, u32), ([u64; 4], String))| {
            let (earlier, _) = before.get(&(process, thread))?;
            let [_, run, wait, slices] = std::array::from_fn(|index| after[index].saturating_sub(earlier[index]));
            let fraction = |nanos: u64| nanos as f64 / 1e9 / self.seconds;
            let each = wait as f64 / 1e9 / slices.max(1) as f64;
            let cpu = u32::try_from(after[0]).unwrap_or(u32::MAX);
            Some(Thread { process, name, cpu, running: fraction(run), waiting: fraction(wait), wait: each })
        };
        read(self.after).into_iter().filter_map(thread).collect()
    }
}

/// The fraction of the clients' time that dropped SYNs cost: each is retransmitted after a second (RFC 6298 section 2), and an
/// accepted connection is assumed to last a hundredth of that.
pub(super) fn lost_to_drops(drops: u64, served: u64) -> f64 {
    let lost = 100.0 * drops as f64;
    lost / (lost + served as f64).max(1.0)
}

/// The numbers in a text.
pub(super) fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map_while(|word| word.parse().ok()).collect()
}

/// Formats a fraction as a percentage: `12%`, `0.3%`.
pub(super) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if percent > 0.0 && percent < 10.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}
