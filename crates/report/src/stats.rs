//! The statistics of results.
//!
//! A sample that is not finite counts as not measured and is left out; `None` means that too few samples are left.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The number of bootstrap resamples.
const RESAMPLES: usize = 2000;
/// The bootstrap's seed, fixed so that the same samples give the same interval.
const SEED: u64 = 0x0fa1_71a9;

fn finite(samples: &[f64]) -> Vec<f64> {
    samples.iter().copied().filter(|sample| sample.is_finite()).collect()
}

/// The arithmetic mean.
pub fn mean(samples: &[f64]) -> Option<f64> {
    let samples = finite(samples);
    let n = samples.len() as f64;
    let sum: f64 = samples.iter().sum();
    match samples.len() {
        0 => None,
        _ if sum.is_finite() => Some(sum / n),
        // The sum overflows, but the mean does not.
        _ => Some(samples.iter().map(|sample| sample / n).sum()),
    }
}

/// The median: [`quantile`] at one half.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The quantile at `p`, by linear interpolation between the samples next to index `(n - 1) p`, counted from zero in ascending
/// order (definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996). `p` is clamped to 0 to 1; `None` if
/// it is NaN.
pub fn quantile(samples: &[f64], p: f64) -> Option<f64> {
    let mut samples = finite(samples);
    if samples.is_empty() || p.is_nan() {
        return None;
    }
    let place = (samples.len() - 1) as f64 * p.clamp(0.0, 1.0);
    let (index, part) = (place.floor() as usize, place.fract());
    let (_, &mut low, above) = samples.select_nth_unstable_by(index, f64::total_cmp);
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    // Clamped, as rounding may move the result outside the two samples.
    Some((low * (1.0 - part) + high * part).clamp(low, high))
}

/// Jain's fairness index of shares: 1 if all are equal, 1/n if one has everything (Jain, Chiu and Hawe, "A Quantitative Measure of
/// Fairness", DEC-TR-301, 1984). `None` if all shares are zero, or one is negative.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let shares = finite(shares);
    let largest = shares.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 || shares.iter().any(|share| *share < 0.0) {
        return None;
    }
    // The index does not depend on the scale; the division prevents an overflow of the squares.
    let (sum, squares) = shares.iter().map(|share| share / largest).fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    Some(sum * sum / (shares.len() as f64 * squares))
}

/// The loss against a base in per cent, by the [`ratio`] to the base; negative for a gain.
pub fn loss_percent(ratio: f64) -> f64 {
    100.0 * (1.0 - ratio)
}

/// Half the 95% interval of the mean ([`student`]), as a fraction of the mean. `None` below two samples, or with a mean of zero.
pub fn half_width(samples: &[f64]) -> Option<f64> {
    let [low, high] = student(samples)?;
    let width = (high - low) / 2.0 / mean(samples)?.abs();
    width.is_finite().then_some(width)
}

/// The 95% confidence interval of a statistic by the percentile bootstrap, with 2,000 resamples and a fixed seed
/// (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3). Its time is proportional to 2,000 times the
/// number of samples. `None` below two samples.
///
/// Of few samples it is too narrow: a median's of three is their range, which holds the true median three times of four.
pub fn bootstrap(samples: &[f64], statistic: fn(&[f64]) -> Option<f64>) -> Option<[f64; 2]> {
    let samples = finite(samples);
    if samples.len() < 2 {
        return None;
    }
    let mut random = StdRng::seed_from_u64(SEED);
    let mut resample = vec![0.0; samples.len()];
    let estimates: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            resample.fill_with(|| samples[random.random_range(0..samples.len())]);
            statistic(&resample)
        })
        .collect();
    Some([quantile(&estimates, 0.025)?, quantile(&estimates, 0.975)?])
}

/// The 95% confidence interval of the ratio of two independent estimates, each given with its own 95% interval, by the method of
/// variance estimates recovery (Newcombe, "MOVER-R confidence intervals for ratios and products of two independently estimated
/// quantities", 2016). The interval has no upper end (infinity) if that of the base reaches zero. `None` unless all numbers are
/// finite and the base is not zero.
pub fn ratio_interval(value: (f64, [f64; 2]), base: (f64, [f64; 2])) -> Option<[f64; 2]> {
    let negative = |(value, [low, high]): (f64, [f64; 2])| (-value, [-high, -low]);
    let ((a, [a_low, a_high]), (b, [b_low, b_high])) = (value, base);
    if ![a, a_low, a_high, b, b_low, b_high].iter().all(|number| number.is_finite()) || b == 0.0 {
        return None;
    }
    if a_low == a_high && b_low == b_high {
        return Some([a / b; 2]);
    }
    if b < 0.0 {
        return ratio_interval(negative(value), negative(base));
    }
    if a < 0.0 {
        return ratio_interval(negative(value), base).map(|[low, high]| [-high, -low]);
    }
    // The ends are the ratios r at which the interval of a - r b has an end at zero.
    let (below, above) = (a_low * (2.0 * a - a_low), a_high * (2.0 * a - a_high));
    let (near, far) = (b_low * (2.0 * b - b_low), b_high * (2.0 * b - b_high));
    let root = |value: f64, base: f64| ((a * b).powi(2) - value * base).max(0.0).sqrt();
    let of_low = if below < 0.0 { near } else { far };
    let low = below / (a * b + root(below, of_low));
    let high = if b_low > 0.0 { (a * b + root(above, near)) / near } else { f64::INFINITY };
    // An end at zero stays there; the quotient may be zero over zero.
    Some([if below == 0.0 { 0.0 } else { low }, high])
}

/// The 95% confidence interval of the mean by Student's t, for few samples that are nearly normally distributed. `None` below two
/// samples.
pub fn student(samples: &[f64]) -> Option<[f64; 2]> {
    let samples = finite(samples);
    let mean = mean(&samples)?;
    let freedom = samples.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
    let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / freedom as f64;
    let half = t975(freedom) * (variance / samples.len() as f64).sqrt();
    let interval = [mean - half, mean + half];
    interval.iter().all(|end| end.is_finite()).then_some(interval)
}

/// The 0.975 quantile of Student's t: from the usual table up to 30 degrees of freedom, beyond that by two terms of its expansion
/// about the normal quantile (Abramowitz and Stegun, 26.7.5), which are accurate to four decimal places there.
fn t975(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604,
        2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518,
        2.0484, 2.0452, 2.0423,
    ];
    let z: f64 = 1.959_964;
    let v = freedom as f64;
    TABLE.get(freedom - 1).copied().unwrap_or_else(|| {
        z + (z.powi(3) + z) / (4.0 * v) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * v * v)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(prop_oneof![-1e6..1e6, any::<f64>()], 0..40)
    }

    proptest! {
        #[test]
        fn mean_and_quantiles_lie_within_the_samples(samples in samples(), p in 0.0..=1.0) {
            let kept = finite(&samples);
            let low = kept.iter().copied().fold(f64::INFINITY, f64::min);
            let high = kept.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            match (mean(&samples), quantile(&samples, p)) {
                (Some(mean), Some(quantile)) => {
                    let slack = 1e-12 * low.abs().max(high.abs());
                    prop_assert!(low - slack <= mean && mean <= high + slack);
                    prop_assert!(low <= quantile && quantile <= high);
                }
                (None, None) => prop_assert!(kept.is_empty()),
                _ => prop_assert!(false, "one is defined, the other is not"),
            }
        }

        #[test]
        fn a_quantile_rises_with_p(samples in samples(), p in 0.0..=1.0, q in 0.0..=1.0) {
            let (low, high) = (f64::min(p, q), f64::max(p, q));
            prop_assert!(quantile(&samples, low) <= quantile(&samples, high));
        }

        #[test]
        fn jain_lies_between_one_nth_and_one(shares in prop::collection::vec(0.0..1e300, 1..30), scale in 1e-3..1e3) {
            if let Some(index) = jain(&shares) {
                prop_assert!(index >= 1.0 / shares.len() as f64 - 1e-12 && index <= 1.0 + 1e-12);
                let scaled: Vec<f64> = shares.iter().map(|share| share * scale).collect();
                prop_assert!((jain(&scaled).unwrap() - index).abs() < 1e-9);
            }
        }

        #[test]
        fn intervals_are_ordered_and_repeatable(samples in prop::collection::vec(-1e6..1e6, 2..20)) {
            let [low, high] = bootstrap(&samples, median).unwrap();
            prop_assert!(low <= high && bootstrap(&samples, median) == Some([low, high]));
            let [low, high] = student(&samples).unwrap();
            let mean = mean(&samples).unwrap();
            prop_assert!(low <= mean && mean <= high);
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.25), Some(1.75));
        assert_eq!(mean(&[f64::MAX, f64::MAX]), Some(f64::MAX));
        assert_eq!(mean(&[1.0, f64::NAN, 3.0]), Some(2.0));
        assert_eq!((loss_percent(0.25), loss_percent(1.5)), (75.0, -50.0));
        assert_eq!((half_width(&[5.0, 5.0]), half_width(&[0.0, 0.0]), half_width(&[5.0])), (Some(0.0), None, None));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[7.0, 7.0]), Some(1.0));
        assert_eq!((jain(&[]), jain(&[0.0]), jain(&[1.0, -1.0])), (None, None, None));
        assert_eq!((bootstrap(&[1.0], mean), student(&[1.0]), student(&[])), (None, None, None));
    }

    #[test]
    fn a_ratio_s_interval_follows_from_two_intervals() {
        let close = |interval: Option<[f64; 2]>, [low, high]: [f64; 2]| {
            let [l, h] = interval.unwrap();
            assert!((l - low).abs() < 1e-3 && ((h - high).abs() < 1e-3 || h == high), "{l} {h}");
        };
        // An exact base scales the interval; an exact value inverts it.
        close(ratio_interval((10.0, [8.0, 13.0]), (2.0, [2.0, 2.0])), [4.0, 6.5]);
        close(ratio_interval((2.0, [2.0, 2.0]), (10.0, [8.0, 16.0])), [2.0 / 16.0, 2.0 / 8.0]);
        // Of narrow intervals the relative widths are added in quadrature: 3% and 4% make 5%.
        close(ratio_interval((100.0, [97.0, 103.0]), (100.0, [96.0, 104.0])), [0.951, 1.052]);
        close(ratio_interval((-100.0, [-103.0, -97.0]), (100.0, [96.0, 104.0])), [-1.052, -0.951]);
        close(ratio_interval((100.0, [97.0, 103.0]), (-100.0, [-104.0, -96.0])), [-1.052, -0.951]);
        // A base whose interval reaches zero bounds nothing above.
        close(ratio_interval((10.0, [9.0, 11.0]), (1.0, [0.0, 2.0])), [4.95, f64::INFINITY]);
        // The value's interval may reach below zero; so does the ratio's.
        let [low, high] = ratio_interval((1.0, [-1.0, 3.0]), (10.0, [9.0, 11.0])).unwrap();
        assert!((-0.11..-0.1).contains(&low) && (0.3..0.31).contains(&high), "{low} {high}");
        assert_eq!(ratio_interval((0.0, [0.0, 0.0]), (1.0, [0.5, 1.5])), Some([0.0, 0.0]));
        assert_eq!(ratio_interval((0.3, [0.3, 0.3]), (0.1, [0.1, 0.1])), Some([0.3 / 0.1; 2]));
        assert_eq!(ratio_interval((1.0, [1.0, 1.0]), (0.0, [0.0, 0.0])), None);
        assert_eq!(ratio_interval((f64::NAN, [1.0, 1.0]), (1.0, [1.0, 1.0])), None);
    }

    #[test]
    fn student_agrees_with_published_values() {
        // 3 +- 2.776 x sqrt(2.5) / sqrt(5).
        let [low, high] = student(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((low - 1.0368).abs() < 1e-3 && (high - 4.9632).abs() < 1e-3);
        assert!((t975(40) - 2.0211).abs() < 1e-4 && (t975(120) - 1.9799).abs() < 1e-4);
    }

    /// The package in `python/` has the same random numbers, and a test of its own with these.
    #[test]
    fn a_bootstrap_interval_is_the_same_everywhere() {
        let samples = [3.1, 2.7, 8.25, 1.0, 4.5, 9.75, 6.0];
        let [low, high] = bootstrap(&samples, mean).unwrap();
        assert!((low - 3.027_857_142_857_142_6).abs() < 1e-12 && (high - 7.393_214_285_714_284).abs() < 1e-12);
        assert_eq!(bootstrap(&samples, median), Some([2.7, 8.25]));
        assert_eq!(bootstrap(&samples[..3], median), Some([2.7, 8.25]), "the range of these three");
    }

    /// The interval covers the true mean of a known distribution in about 95 of 100 repeats.
    #[test]
    fn a_bootstrap_interval_covers_the_true_mean() {
        let mut random = StdRng::seed_from_u64(1);
        let covered = (0..200)
            .filter(|_| {
                let samples: Vec<f64> = (0..40).map(|_| random.random_range(0.0..1.0)).collect();
                bootstrap(&samples, mean).is_some_and(|[low, high]| low <= 0.5 && 0.5 <= high)
            })
            .count();
        assert!((176..=198).contains(&covered), "covered {covered} of 200");
    }
}
