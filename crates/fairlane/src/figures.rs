//! Measured figures as people read them. (What a policy says is written exactly, by `fairlane_policy::units`.)

use fairlane_engine::Waiting;

/// A measured rate, in bits a second: `99.8Mbit/s`.
pub fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// A count of bytes: `1.5GiB`.
pub fn size(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// A time in nanoseconds: `131.1us`.
pub fn time(nanos: u64) -> String {
    scaled(nanos as f64, 1000.0, &["ns", "us", "ms", "s"])
}

/// A number of things: `1 vif`, `2 vifs`.
pub fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A number with one decimal in the largest unit it reaches; whole in the smallest unit.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut scaled = value;
    for (place, unit) in units.iter().enumerate() {
        let decimals = usize::from(place > 0);
        // What would round up to a step is one of the next unit.
        if scaled + 0.5 / 10f64.powi(decimals as i32) < step || place + 1 == units.len() {
            return format!("{scaled:.decimals$}{unit}");
        }
        scaled /= step;
    }
    String::new()
}

/// The time, in nanoseconds, that this part (0 to 1) of the waits stayed below; none if there were no waits.
/// It is a bucket's bound: the true quantile is up to half of it lower. Waits of the last bucket count as its lower end.
pub fn waited(waiting: &Waiting, part: f64) -> Option<u64> {
    let all: u64 = waiting.buckets.iter().sum();
    let last = waiting.buckets.len().checked_sub(2)?;
    let needed = (all as f64 * part).ceil().max(1.0);
    let mut below = 0;
    let bucket = waiting.buckets.iter().position(|count| {
        below += count;
        below as f64 >= needed
    })?;
    Some(1 << bucket.min(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::time::Nanos;
    use proptest::prelude::*;

    #[test]
    fn figures_read_well() {
        let rates = [0.0, 999.4, 999.6, 1000.0, 99_812_345.0, 999_960_000.0, 2.5e15].map(rate);
        let expected = ["0bit/s", "999bit/s", "1.0kbit/s", "1.0kbit/s", "99.8Mbit/s", "1.0Gbit/s", "2500.0Tbit/s"];
        assert_eq!(rates, expected);
        assert_eq!([0, 1023, 1536, 64 << 10].map(size), ["0B", "1023B", "1.5KiB", "64.0KiB"]);
        assert_eq!([1, 1 << 17, 1 << 34].map(time), ["1ns", "131.1us", "17.2s"]);
    }

    #[test]
    fn nothing_waited_is_no_time() {
        assert_eq!(waited(&Waiting::default(), 0.5), None);
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_twice_the_true_one(
            mut waits in prop::collection::vec(0u64..1 << 34, 1..50),
            part in 0.0..=1.0f64,
        ) {
            let mut waiting = Waiting::default();
            waits.iter().for_each(|wait| waiting.record(Nanos(*wait)));
            waits.sort_unstable();
            let rank = ((waits.len() as f64 * part).ceil() as usize).max(1);
            let (exact, bound) = (waits[rank - 1], waited(&waiting, part).unwrap());
            prop_assert!(exact < bound && bound <= (2 * exact).max(1), "{exact} {bound}");
        }
    }
}
