//! How often to repeat a measurement: until its interval is narrow, as netperf's `-I` does.

use fairlane_report::stats;

/// Repeats that an interval can be trusted with, at least.
const LEAST: usize = 3;
/// Repeats at most, when the interval will not narrow: netperf's number.
const MOST: usize = 30;

/// When it is enough.
#[derive(Clone, Copy, Debug)]
pub struct Repeats {
    /// So often at least.
    pub least: usize,
    /// The half of the mean's 95% interval, in per cent of the mean, that is aimed at.
    pub within: Option<f64>,
}

impl Repeats {
    /// Whether another is needed after these samples.
    pub fn go_on(&self, samples: &[f64]) -> bool {
        match self.within {
            None => samples.len() < self.least,
            Some(within) => {
                let least = self.least.max(LEAST);
                samples.len() < least
                    || samples.len() < MOST.max(least) && half_percent(samples).is_none_or(|half| half > within)
            }
        }
    }

    /// What must be said of samples whose interval stayed too wide.
    pub fn warning(&self, samples: &[f64]) -> Option<String> {
        let within = self.within?;
        let half = half_percent(samples).filter(|half| *half > within)?;
        let times = samples.len();
        Some(format!("the 95% interval after {times} repeats is ±{half:.1}%, not within the ±{within}% asked for"))
    }
}

/// [`stats::half_width`] in per cent.
pub fn half_percent(samples: &[f64]) -> Option<f64> {
    stats::half_width(samples).map(|half| half * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_go_on_until_the_interval_is_narrow() {
        let fixed = Repeats { least: 2, within: None };
        assert!(fixed.go_on(&[1.0]) && !fixed.go_on(&[1.0, 9.0]) && fixed.warning(&[1.0, 9.0]).is_none());
        let narrow = Repeats { least: 1, within: Some(5.0) };
        assert!(narrow.go_on(&[100.0, 100.0]) && !narrow.go_on(&[100.0, 101.0, 100.0]));
        assert!(narrow.go_on(&[100.0, 150.0, 100.0]));
        let wild: Vec<f64> = (0..30).map(|nth| if nth % 2 == 0 { 1.0 } else { 100.0 }).collect();
        assert!(narrow.go_on(&wild[..29]) && !narrow.go_on(&wild));
        assert!(narrow.warning(&wild).unwrap().contains("30 repeats"));
    }
}
