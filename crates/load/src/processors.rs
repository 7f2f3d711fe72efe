//! What a kernel's processors spend their time on meanwhile, as /proc/stat tells it (proc_stat(5)).

use std::{fs, io, thread};

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
    /// All that was not idle, nor taken by a hypervisor.
    pub busy: u64,
    /// Of that, what interrupts and their soft halves took, where packets are received.
    pub interrupts: u64,
    /// All time there was.
    pub total: u64,
}

/// Looks on; answers a use each processor.
///
/// # Errors
/// Orders out of range, or a system without /proc/stat.
pub fn run(spec: &Spec) -> io::Result<Vec<Use>> {
    let duration = seconds("seconds", spec.seconds)?;
    let before = now()?;
    thread::sleep(duration);
    let spent = |(after, before): (Use, Use)| Use {
        busy: after.busy.saturating_sub(before.busy),
        interrupts: after.interrupts.saturating_sub(before.interrupts),
        total: after.total.saturating_sub(before.total),
    };
    Ok(now()?.into_iter().zip(before).map(spent).collect())
}

fn now() -> io::Result<Vec<Use>> {
    let uses = read(&fs::read_to_string("/proc/stat")?);
    if uses.is_empty() { Err(invalid("/proc/stat tells of no processor".to_owned())) } else { Ok(uses) }
}

/// Lines `cpuN user nice system idle iowait irq softirq steal guest guest_nice`; those of guests are in user's and nice's.
fn read(table: &str) -> Vec<Use> {
    let one = |line: &str| {
        let (name, numbers) = line.split_once(' ')?;
        name.strip_prefix("cpu")?.parse::<u32>().ok()?;
        let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, steal, ..] = &numbers[..] else { return None };
        let busy = user + nice + system + irq + softirq;
        Some(Use { busy, interrupts: irq + softirq, total: busy + idle + iowait + steal })
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
        let first = Use { busy: 19, interrupts: 13, total: 72 };
        assert_eq!(read(table), [first, Use { total: 100, ..Use::default() }]);
    }

    #[test]
    fn this_kernel_has_it() {
        let uses = run(&Spec { seconds: 0.2 }).unwrap();
        assert!(uses.iter().any(|used| used.total > 0) && uses.iter().all(|used| used.busy <= used.total), "{uses:?}");
        assert!(run(&Spec { seconds: -1.0 }).unwrap_err().to_string().contains("seconds"));
    }
}
