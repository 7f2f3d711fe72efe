//! Scales and ticks.

use std::ops::RangeInclusive;

/// Larger magnitudes are drawn as this one, so that differences do not overflow.
const LIMIT: f64 = 1e300;

/// A linear map from values to pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Maps `low..=high` to pixels `from..=to`.
    pub(super) fn new(range: RangeInclusive<f64>, from: f64, to: f64) -> Self {
        Self { low: *range.start(), high: *range.end(), from, to }
    }

    /// The pixel of a value; values outside the range are clamped to it.
    pub(super) fn px(&self, value: f64) -> f64 {
        let part = (value.clamp(-LIMIT, LIMIT) - self.low) / (self.high - self.low);
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values in the range, about `want` of them, with their text.
    pub(super) fn ticks(&self, want: f64) -> Vec<(f64, String)> {
        let step = step(self.high - self.low, want);
        // A tolerance of 1e-9 keeps a tick that rounding moved outside the range.
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        let largest = self.low.abs().max(self.high.abs());
        (first..=last).take(64).map(|k| k as f64 * step).map(|value| (value, tick(value, step, largest))).collect()
    }
}

/// The range of all values, including zero if `with_zero`; `0..=1` if there are none. Never empty.
pub(super) fn range(values: impl Iterator<Item = f64>, with_zero: bool) -> RangeInclusive<f64> {
    let zero = with_zero.then_some(0.0);
    let values = values.filter(|value| value.is_finite()).map(|value| value.clamp(-LIMIT, LIMIT)).chain(zero);
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), value| (l.min(value), h.max(value)));
    if low > high {
        return 0.0..=1.0;
    }
    let largest = low.abs().max(high.abs());
    if high - low > (largest * 1e-9).max(1e-290) {
        return low..=high;
    }
    let half = if largest > 1e-290 { largest / 2.0 } else { 1.0 };
    if with_zero { low..=high + half } else { low - half..=high + half }
}

/// The range of a horizontal axis. It starts at zero if the least value is close to zero, as the first sample of a run is.
pub(super) fn range_across(values: impl Iterator<Item = f64>) -> RangeInclusive<f64> {
    let range = range(values, false);
    let close = *range.start() >= 0.0 && *range.start() <= 0.15 * range.end();
    if close { 0.0..=*range.end() } else { range }
}

/// The range widened to ticks of [`Scale::ticks`] at both ends.
pub(super) fn rounded(range: RangeInclusive<f64>, want: f64) -> RangeInclusive<f64> {
    let step_of = |range: &RangeInclusive<f64>| step(range.end() - range.start(), want);
    let step = step_of(&range);
    let wider = (range.start() / step + 1e-9).floor() * step..=(range.end() / step - 1e-9).ceil() * step;
    // A wider range may need wider steps.
    if step_of(&wider) > 1.5 * step { rounded(wider, want) } else { wider }
}

/// The least of 1, 2 or 5 times a power of ten that divides `span` into at most `want` steps.
fn step(span: f64, want: f64) -> f64 {
    let rough = span / want;
    let power = 10f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * power >= rough * (1.0 - 1e-9)).unwrap_or(10.0);
    times * power
}

/// A tick's text: with as many decimal places as the step needs, and k, M, G or T for long numbers.
fn tick(value: f64, step: f64, largest: f64) -> String {
    let value = if value.abs() < step / 2.0 { 0.0 } else { value };
    if !(1e-4..1e15).contains(&largest) {
        return if value == 0.0 { "0".to_owned() } else { crate::number(value) };
    }
    let scales = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"), (0.0, "")];
    let (_, suffix) = scales.into_iter().find(|(from, _)| largest >= *from).unwrap_or_default();
    let unit = match suffix {
        "T" => 1e12,
        "G" => 1e9,
        "M" => 1e6,
        "k" => 1e3,
        _ => 1.0,
    };
    let digits = step / unit;
    let places = (0..12).find(|places| {
        let shifted = digits * 10f64.powi(*places);
        (shifted - shifted.round()).abs() < 1e-6 * shifted
    });
    let text = format!("{:.*}", places.unwrap_or(12) as usize, value / unit);
    if value == 0.0 { "0".to_owned() } else { text + suffix }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(range: RangeInclusive<f64>, want: f64) -> Vec<String> {
        Scale::new(range, 0.0, 1.0).ticks(want).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(texts(0.0..=100.0, 5.0), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(texts(0.0..=1.0, 5.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(0.0..=30_000.0, 3.0), ["0", "10k", "20k", "30k"]);
        assert_eq!(texts(-1.5..=1.5, 3.0), ["-1", "0", "1"]);
        assert_eq!(rounded(0.0..=87.0, 5.0), 0.0..=100.0);
        assert_eq!(rounded(-9.0..=1.0, 5.0), -10.0..=5.0);
    }

    proptest! {
        #[test]
        fn any_values_get_a_scale(values in prop::collection::vec(any::<f64>(), 0..6), with_zero: bool) {
            let scale = Scale::new(rounded(range(values.iter().copied(), with_zero), 5.0), 10.0, 110.0);
            for value in values.iter().filter(|value| value.is_finite()) {
                prop_assert!((10.0..=110.0).contains(&scale.px(*value)));
            }
            let ticks = scale.ticks(5.0);
            prop_assert!((2..=16).contains(&ticks.len()), "{ticks:?}");
            prop_assert!(ticks.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1), "{ticks:?}");
        }
    }
}
