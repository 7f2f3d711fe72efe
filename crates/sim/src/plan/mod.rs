//! Plan files: a scenario as TOML.
//!
//! Everything about links, tenants and vifs has the keys of a policy, and is read by the policy's own parser ([`policy`]).

mod change;
mod file;
mod guarantee;
mod policy;
mod traffic;

use crate::scenario::{Costs, Cpu, Fabric, Guest, Host, Scenario, Work};
use fairlane_core::time::Nanos;
use fairlane_policy::problem::{Problem, Problems, unknown_name};
use fairlane_policy::{Policy, Uplink};
use file::{File, GuestKeys, HostKeys, Length, Trace, WorkKeys};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Rate of a host's card if neither it nor its link has one, in bits a second.
const CARD: u64 = 10_000_000_000;

/// Slots in a ring, as QEMU has them.
const RING: u32 = 256;

/// Most guests of a plan.
const GUESTS: usize = 1_000_000;

/// Most hosts of a plan.
const HOSTS: usize = 10_000;

impl Scenario {
    /// Parses the text of a plan file. Policies and traces that it names are read from its directory.
    ///
    /// # Errors
    /// What is wrong with it, by file and line.
    pub fn parse(path: &Path, text: &str) -> Result<Scenario, Vec<Problem>> {
        let name = path.display().to_string();
        let mut problems = Problems::new(&name, text);
        let file: File = match toml::from_str(text) {
            Ok(file) => file,
            Err(error) => {
                problems.add(error.span().unwrap_or(0..0), error.message());
                return Err(problems.sorted());
            }
        };
        let mut of_others = Vec::new();
        let scenario = read(file, path, &mut problems, &mut of_others);
        match scenario {
            Some(scenario) if problems.is_empty() && of_others.is_empty() => Ok(scenario),
            _ => Err(problems.sorted().into_iter().chain(of_others).collect()),
        }
    }
}

/// A vif's names, as other tables of the plan refer to it.
struct Place {
    host: String,
    /// The name of its host's table, and that of its own.
    host_template: String,
    template: String,
    vif: String,
}

impl Place {
    /// Whether it is meant by `VIF`, or by `HOST/VIF`: either may be one, or the table of many.
    fn is_meant(&self, words: &str) -> bool {
        let (host, vif) = words.split_once('/').map_or((None, words), |(host, vif)| (Some(host), vif));
        (vif == self.vif || vif == self.template)
            && host.is_none_or(|host| host == self.host || host == self.host_template)
    }
}

fn read(file: File, path: &Path, problems: &mut Problems, of_others: &mut Vec<Problem>) -> Option<Scenario> {
    let seconds = *file.seconds.get_ref();
    if !(0.001..=1e6).contains(&seconds) {
        problems.add(file.seconds.span(), format!("seconds must be 0.001 to 1000000, not {seconds}"));
        return None;
    }
    let end = Nanos((seconds * 1e9) as u64);
    let settle = file.settle.as_ref().map_or(Nanos(end.0 / 10), |settle| settle.get_ref().0);
    if let Some(key) = file.settle.as_ref().filter(|_| settle >= end) {
        problems.add(key.span(), "settle must be before the end, as frames count from then on");
    }
    let interval = file.interval.map_or(Nanos((end.0 / 100).max(1)), |interval| interval.0);
    if interval.0 == 0 || end.0 / interval.0.max(1) > 100_000 {
        problems.add(file.seconds.span(), "interval must be at least 1/100000 of the seconds");
        return None;
    }
    let default = Fabric::default();
    let fabric = file.fabric.map_or(default, |fabric| Fabric {
        delay: fabric.delay.map_or(default.delay, |delay| delay.0),
        capacity: fabric.capacity.map(|rate| rate.0),
        buffer: fabric.buffer.map_or(default.buffer, |size| size.0),
    });
    let (mut hosts, mut places) = (Vec::new(), Vec::new());
    for keys in &file.host {
        read_host(keys, path, problems, of_others, &mut hosts, &mut places);
    }
    if file.host.is_empty() {
        problems.add(0..0, "a plan needs a [[host]]");
    }
    let changes = change::read(&file.change, &hosts, &places, end, problems);
    let mut guests: Vec<Guest> = places.iter().map(|(host, place)| guest(*host, place)).collect();
    let places: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
    let seed = file.seed.unwrap_or(1);
    let mut random = StdRng::seed_from_u64(seed);
    for keys in &file.guest {
        let Some(meant) = find(&keys.vif, &places, problems) else { continue };
        apply(keys, path, &mut guests, &meant, &mut random, problems);
    }
    let traffic = file.traffic.iter().filter_map(|keys| traffic::read(keys, &places, end, problems)).collect();
    if file.traffic.is_empty() {
        problems.add(0..0, "a plan needs [[traffic]]");
    }
    let guarantees = file.guarantee.iter().filter_map(|keys| guarantee::read(keys, &file.guarantee, &hosts, problems));
    let guarantees = guarantees.collect();
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    Some(Scenario { name, seed, seconds, settle, interval, fabric, hosts, guests, traffic, guarantees, changes })
}

fn guest(host: usize, place: &Place) -> Guest {
    let vif = place.vif.clone();
    let (wake, none) = (Nanos::from_micros(20), Work::default());
    Guest { host, vif, cpu: Cpu::Always, ring: RING as usize, wake, work: none, rx_work: none }
}

/// Reads what work takes: `frame_ns` and `byte_ns` under a key.
fn work(
    key: &str,
    (frame, byte): (Option<f64>, Option<f64>),
    default: Work,
    at: &Range<usize>,
    problems: &mut Problems,
) -> Work {
    let work = Work { frame: frame.unwrap_or(default.frame), byte: byte.unwrap_or(default.byte) };
    if !(0.0..=1e9).contains(&work.frame) || !(0.0..=1e6).contains(&work.byte) {
        problems.add(at.clone(), format!("{key} takes nanoseconds: frame_ns 0 to 1e9, byte_ns 0 to 1e6"));
    }
    work
}

/// Reads a table of hosts. Each link of their policy is a host of its own.
fn read_host(
    keys: &Spanned<HostKeys>,
    path: &Path,
    problems: &mut Problems,
    of_others: &mut Vec<Problem>,
    hosts: &mut Vec<Host>,
    places: &mut Vec<(usize, Place)>,
) {
    let (span, keys) = (keys.span(), keys.get_ref());
    let Some((policy, templates)) = policy::read(span.clone(), keys, path, problems, of_others) else { return };
    let count = keys.count.as_ref().map_or(1, |count| *count.get_ref());
    let counted = keys.count.as_ref().map_or(span.clone(), Spanned::span);
    if !(1..=HOSTS).contains(&count) || hosts.len() + count * policy.links.len() > HOSTS {
        return problems.add(counted, format!("count must be 1 or more, and all hosts of a plan {HOSTS} at most"));
    }
    if places.len() + count * policy.vifs.len() > GUESTS {
        return problems.add(counted, format!("all hosts of a plan have {GUESTS} guests at most"));
    }
    if hosts.iter().any(|host| host.name == keys.name.get_ref().as_str()) {
        return problems.add(keys.name.span(), format!("there is another host `{}`", keys.name.get_ref()));
    }
    let default = Costs::default();
    let costs = keys.costs.as_ref().map_or(default, |costs| Costs {
        work: work("costs", (costs.frame_ns, costs.byte_ns), default.work, &span, problems),
        wake: costs.wake.map_or(default.wake, |wake| wake.0),
    });
    for number in 1..=count {
        let base = if count == 1 { keys.name.get_ref().clone() } else { format!("{}-{number}", keys.name.get_ref()) };
        for link in &policy.links {
            let name = if policy.links.len() == 1 { base.clone() } else { format!("{base}/{}", link.name) };
            for vif in policy.vifs.iter().filter(|vif| vif.link == link.name) {
                let template = templates.get(&vif.name).cloned().unwrap_or_else(|| vif.name.clone());
                let (host, host_template) = (base.clone(), keys.name.get_ref().clone());
                places.push((hosts.len(), Place { host, host_template, template, vif: vif.name.clone() }));
            }
            let card = keys.card.map(|rate| rate.0).or(link.rate).unwrap_or(CARD);
            hosts.push(Host { name, policy: of_link(&policy, &link.name), link: link.clone(), card, costs });
        }
    }
}

/// The part of a policy that is about one link.
fn of_link(policy: &Policy, link: &str) -> Policy {
    let vifs = policy.vifs.iter().filter(|vif| vif.link == link).cloned().collect();
    Policy { vifs, ..policy.clone() }
}

/// Whether a link is one that can be simulated.
fn is_simulated(uplink: &Uplink) -> bool {
    !matches!(uplink, Uplink::Wire { .. })
}

/// The guests that words mean.
fn find(words: &Spanned<String>, places: &[Place], problems: &mut Problems) -> Option<Vec<usize>> {
    let meant: Vec<usize> = places
        .iter()
        .enumerate()
        .filter(|(_, place)| place.is_meant(words.get_ref()))
        .map(|(index, _)| index)
        .collect();
    if meant.is_empty() {
        let mut known: Vec<&str> = places.iter().map(|place| place.template.as_str()).collect();
        known.dedup();
        problems.add(words.span(), unknown_name("vif", words.get_ref(), known.into_iter()));
        return None;
    }
    Some(meant)
}

/// Applies a table of guests.
fn apply(
    keys: &GuestKeys,
    path: &Path,
    guests: &mut [Guest],
    meant: &[usize],
    random: &mut StdRng,
    problems: &mut Problems,
) {
    let lengths = match (&keys.runs, &keys.waits, &keys.trace) {
        (None, None, None) => None,
        (Some(runs), Some(waits), None) => Some(vec![runs.get_ref().0, waits.get_ref().0]),
        (None, None, Some(trace)) => match read_trace(trace.get_ref(), path) {
            Ok(lengths) => Some(lengths),
            Err(wrong) => return problems.add(trace.span(), wrong),
        },
        _ => {
            let wrong = "a guest has runs and waits, such as \"30ms\" and \"60ms\", or a trace, or none of them";
            return problems.add(keys.vif.span(), wrong);
        }
    };
    if let Some(ring) = keys.ring.as_ref().filter(|ring| !(2..=32_768).contains(ring.get_ref())) {
        return problems.add(ring.span(), format!("ring must be 2 to 32768 slots, not {}", ring.get_ref()));
    }
    let mut read = |key, keys: &Option<Spanned<WorkKeys>>| {
        let keys = keys.as_ref()?;
        let WorkKeys { frame_ns, byte_ns } = keys.get_ref();
        Some(work(key, (*frame_ns, *byte_ns), Work::default(), &keys.span(), problems))
    };
    let (tx, rx) = (read("work", &keys.work), read("rx_work", &keys.rx_work));
    for index in meant {
        let guest = &mut guests[*index];
        (guest.work, guest.rx_work) = (tx.unwrap_or(guest.work), rx.unwrap_or(guest.rx_work));
        guest.ring = keys.ring.as_ref().map_or(guest.ring, |ring| *ring.get_ref() as usize);
        guest.wake = keys.wake.map_or(guest.wake, |wake| wake.0);
        let Some(lengths) = &lengths else { continue };
        let period = lengths.iter().fold(0u64, |sum, length| sum.saturating_add(length.0));
        let phase = match keys.phase {
            None => Nanos((random.random::<f64>() * period as f64) as u64),
            Some(phase) => phase.0,
        };
        match Cpu::turns(lengths, phase) {
            Some(cpu) => guest.cpu = cpu,
            None => return problems.add(keys.vif.span(), "a guest must run now and then: its turns come to nothing"),
        }
    }
}

/// The turns of a trace: in the plan, or one a line in a file.
fn read_trace(trace: &Trace, path: &Path) -> Result<Vec<Nanos>, String> {
    match trace {
        Trace::Here(lengths) => Ok(lengths.iter().map(|Length(length)| *length).collect()),
        Trace::File(name) => {
            let file = path.with_file_name(name);
            let text =
                std::fs::read_to_string(&file).map_err(|why| format!("cannot read {}: {why}", file.display()))?;
            let lines = text.lines().enumerate().map(|(line, text)| (line + 1, text.trim()));
            let turns = lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
            let turn = |(line, text): (usize, &str)| {
                let length = fairlane_policy::units::parse_duration(text);
                length.map_err(|wrong| format!("{}:{line}: a turn {wrong}", file.display()))
            };
            turns.map(turn).collect()
        }
    }
}
