//! The use of the CPUs, from /proc/stat (proc_stat(5)).

use std::{collections::BTreeMap, fs, io, ops::AddAssign, thread};

use serde::{Deserialize, Serialize};

use crate::{invalid, seconds};

/// Parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// How long to observe, in seconds.
    pub seconds: f64,
}

/// The use of one CPU, in ticks of a hundredth of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Time neither idle nor stolen.
    pub busy: u64,
    /// The part of it spent in hard and soft interrupts, which receive packets.
    pub interrupts: u64,
    /// Time that the hypervisor gave to others.
    pub stolen: u64,
    /// Total time.
    pub total: u64,
}

impl Use {
    /// The use since an earlier reading.
    pub fn since(&self, before: &Use) -> Use {
        Use {
            busy: self.busy.saturating_sub(before.busy),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            stolen: self.stolen.saturating_sub(before.stolen),
            total: self.total.saturating_sub(before.total),
        }
    }
}

impl AddAssign<&Use> for Use {
    fn add_assign(&mut self, other: &Use) {
        self.busy = self.busy.saturating_add(other.busy);
        self.interrupts = self.interrupts.saturating_add(other.interrupts);
        self.stolen = self.stolen.saturating_add(other.stolen);
        self.total = self.total.saturating_add(other.total);
    }
}

/// Observes the CPUs; returns the use of each.
///
/// # Errors
/// If a parameter is out of range, or /proc/stat cannot be read.
pub fn run(spec: &Spec) -> io::Result<Vec<Use>> {
    let duration = seconds("seconds", spec.seconds)?;
    let before = now()?;
    thread::sleep(duration);
    Ok(now()?.into_iter().filter_map(|(number, after)| Some(after.since(before.get(&number)?))).collect())
}

fn now() -> io::Result<BTreeMap<u32, Use>> {
    let uses = read(&fs::read_to_string("/proc/stat")?);
    if uses.is_empty() { Err(invalid("/proc/stat has no CPU".to_owned())) } else { Ok(uses) }
}

/// Parses the CPUs in /proc/stat's text, by number. It has lines
/// `cpuN user nice system idle iowait irq softirq steal guest guest_nice`; user and nice include the guests' time.
pub fn read(table: &str) -> BTreeMap<u32, Use> {
    let one = |line: &str| {
        let (name, numbers) = line.split_once(' ')?;
        let number = name.strip_prefix("cpu")?.parse().ok()?;
        let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, steal, ..] = &numbers[..] else { return None };
        let sum = |parts: &[u64]| parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        let interrupts = sum(&[irq, softirq]);
        let busy = sum(&[user, nice, system, interrupts]);
        Some((number, Use { busy, interrupts, stolen: steal, total: sum(&[busy, idle, iowait, steal]) }))
    };
    table.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_parsed_by_cpu() {
        let table =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 5 0\ncpu2 1 2\n";
        let (first, second) =
            (Use { busy: 19, interrupts: 13, stolen: 8, total: 72 }, Use { total: 100, ..Use::default() });
        assert_eq!(read(table), BTreeMap::from([(0, first), (1, second)]));
        assert_eq!(first.since(&second), Use { total: 0, ..first });
    }

    #[test]
    fn this_kernel_has_the_table() {
        let uses = run(&Spec { seconds: 0.2 }).unwrap();
        assert!(uses.iter().any(|used| used.total > 0) && uses.iter().all(|used| used.busy <= used.total), "{uses:?}");
        assert!(run(&Spec { seconds: -1.0 }).unwrap_err().to_string().contains("seconds"));
    }
}
