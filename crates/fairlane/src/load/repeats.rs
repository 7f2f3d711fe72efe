//! How often to repeat a measurement: until its confidence interval is narrow enough, like netperf's `-I`.

use fairlane_report::stats;

/// Fewest repeats for a trustworthy interval.
const MIN_REPEATS: usize = 3;
/// Most repeats if the interval stays wide; netperf's limit.
const MAX_REPEATS: usize = 30;

/// When to stop repeating.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeats {
    /// Minimum number of repeats.
    pub min: usize,
    /// Target for half of the mean's 95% interval, in percent of the mean.
    pub within: Option<f64>,
}

impl Repeats {
    /// Whether another repeat is needed after these samples.
    pub(super) fn needs_more(&self, samples: &[f64]) -> bool {
        match self.within {
            None => samples.len() < self.min,
            Some(within) => {
                let least = self.min.max(MIN_REPEATS);
                samples.len() < least
                    || samples.len() < MAX_REPEATS.max(least) && half_percent(samples).is_none_or(|half| half > within)
            }
        }
    }

    /// The warning about samples whose interval stayed too wide.
    pub(super) fn warning(&self, samples: &[f64]) -> Option<String> {
        let within = self.within?;
        let half = half_percent(samples).filter(|half| *half > within)?;
        let times = samples.len();
        Some(format!("the 95% interval after {times} repeats is ±{half:.1}%, not within the requested ±{within}%"))
    }
}

/// [`stats::half_width`] in percent.
pub(super) fn half_percent(samples: &[f64]) -> Option<f64> {
    stats::half_width(samples).map(|half| half * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_go_on_until_the_interval_is_narrow() {
        let fixed = Repeats { min: 2, within: None };
        assert!(fixed.needs_more(&[1.0]) && !fixed.needs_more(&[1.0, 9.0]) && fixed.warning(&[1.0, 9.0]).is_none());
        let narrow = Repeats { min: 1, within: Some(5.0) };
        assert!(narrow.needs_more(&[100.0, 100.0]) && !narrow.needs_more(&[100.0, 101.0, 100.0]));
        assert!(narrow.needs_more(&[100.0, 150.0, 100.0]));
        let wild: Vec<f64> = (0..30).map(|nth| if nth % 2 == 0 { 1.0 } else { 100.0 }).collect();
        assert!(narrow.needs_more(&wild[..29]) && !narrow.needs_more(&wild));
        assert!(narrow.warning(&wild).unwrap().contains("30 repeats"));
    }
}
