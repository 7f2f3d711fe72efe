//! Measured figures, rounded for people. (Values of a policy are written exactly, by `fairlane_policy::units`.)

use fairlane_engine::snapshot::VifState;

/// Formats a measured rate, in bits per second: `99.8Mbit/s`.
pub(crate) fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// Formats a share of a link, 0 to 1: `0.750`.
pub(crate) fn share(share: f64) -> String {
    format!("{share:.3}")
}

/// Formats a number of bytes: `1.5GiB`.
pub(crate) fn size(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Formats a time in nanoseconds: `131.1us`.
pub(crate) fn time(nanos: u64) -> String {
    scaled(nanos as f64, 1000.0, &["ns", "us", "ms", "s"])
}

/// For how long a vif is not served: `not served for 3.2s`.
pub(crate) fn not_served(vif: &VifState) -> Option<String> {
    vif.not_served().map(|nanos| format!("not served for {}", time(nanos)))
}

/// Formats a vif's state: `up`, or `up, not served for 3.2s`.
pub(crate) fn state(vif: &VifState) -> String {
    let parts = [Some(vif.port.state.name().to_owned()), not_served(vif)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Formats a number of things: `1 vif`, `2 vifs`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Formats a number with one decimal in the largest unit it reaches; without decimals in the smallest unit.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut scaled = value;
    for (index, unit) in units.iter().enumerate() {
        let decimals = usize::from(index > 0);
        // A value that would round up to `step` is shown in the next unit.
        if scaled + 0.5 / 10f64.powi(decimals as i32) < step || index + 1 == units.len() {
            return format!("{scaled:.decimals$}{unit}");
        }
        scaled /= step;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_one_decimal_and_the_largest_unit() {
        let rates = [0.0, 999.4, 999.6, 1000.0, 99_812_345.0, 999_960_000.0, 2.5e15].map(rate);
        let expected = ["0bit/s", "999bit/s", "1.0kbit/s", "1.0kbit/s", "99.8Mbit/s", "1.0Gbit/s", "2500.0Tbit/s"];
        assert_eq!(rates, expected);
        assert_eq!([0, 1023, 1536, 64 << 10].map(size), ["0B", "1023B", "1.5KiB", "64.0KiB"]);
        assert_eq!([1, 1 << 17, 1 << 34].map(time), ["1ns", "131.1us", "17.2s"]);
    }
}
