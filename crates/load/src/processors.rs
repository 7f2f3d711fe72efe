//! What a kernel's processors spend their time on meanwhile, as /proc/stat tells it (proc_stat(5)).

use std::{collections::BTreeMap, fs, io, ops::AddAssign, thread};

use serde::{Deserialize, Serialize};

use crate::{invalid, seconds};

/// Orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// How long to look, in seconds.
    pub seconds: f64,
}

/// What became of one processor's time, in ticks of a hundredth of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// All that was not idle, nor stolen.
    pub busy: u64,
    /// Of that, what interrupts and their soft halves took, where packets are received.
    pub interrupts: u64,
    /// Taken by a hypervisor for others.
    pub stolen: u64,
    /// All time there was.
    pub total: u64,
}

impl Use {
    /// What was spent since a reading before this one.
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

/// Looks on; answers a use each processor.
///
/// # Errors
/// Orders out of range, or a system without /proc/stat.
pub fn run(spec: &Spec) -> io::Result<Vec<Use>> {
    let duration = seconds("seconds", spec.seconds)?;
    let before = now()?;
    thread::sleep(duration);
    Ok(now()?.into_iter().filter_map(|(number, after)| Some(after.since(before.get(&number)?))).collect())
}

fn now() -> io::Result<BTreeMap<u32, Use>> {
    let uses = read(&fs::read_to_string("/proc/stat")?);
    if uses.is_empty() { Err(invalid("/proc/stat tells of no processor".to_owned())) } else { Ok(uses) }
}

/// The processors by number, of /proc/stat's text. It has lines
/// `cpuN user nice system idle iowait irq softirq steal guest guest_nice`; what guests take is in user's and nice's.
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
    fn the_table_is_read_by_processor() {
        let table =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 5 0\ncpu2 1 2\n";
        let (first, second) =
            (Use { busy: 19, interrupts: 13, stolen: 8, total: 72 }, Use { total: 100, ..Use::default() });
        assert_eq!(read(table), BTreeMap::from([(0, first), (1, second)]));
        assert_eq!(first.since(&second), Use { total: 0, ..first });
    }

    #[test]
    fn this_kernel_has_it() {
        let uses = run(&Spec { seconds: 0.2 }).unwrap();
        assert!(uses.iter().any(|used| used.total > 0) && uses.iter().all(|used| used.busy <= used.total), "{uses:?}");
        assert!(run(&Spec { seconds: -1.0 }).unwrap_err().to_string().contains("seconds"));
    }
}
