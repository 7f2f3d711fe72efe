//! How often a point is run.

use fairlane_report::stats;
use serde::Deserialize;

/// A number of repeats, or repeats until an interval is narrow enough. Each has a seed of its own, and all points have the same seeds, so
/// that two points differ by their settings and not by their luck.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Repeats {
    Fixed(u32),
    Until(Until),
}

/// Repeats until half the 95% interval (Student's) of a metric's mean is within a part of the mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Until {
    metric: String,
    within: f64,
    #[serde(default = "three")]
    least: u32,
    most: u32,
}

fn three() -> u32 {
    3
}

impl Default for Repeats {
    fn default() -> Self {
        Repeats::Fixed(1)
    }
}

impl Repeats {
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Repeats::Fixed(1..) => Ok(()),
            Repeats::Fixed(0) => Err("repeats must be 1 or more".to_owned()),
            Repeats::Until(until) if until.within > 0.0 && until.least >= 2 && until.most >= until.least => Ok(()),
            Repeats::Until(_) => {
                Err("repeats need within above 0, least of 2 or more, and most of least or more".to_owned())
            }
        }
    }

    /// The metric that decides, if one does.
    pub(crate) fn metric(&self) -> Option<&str> {
        match self {
            Repeats::Fixed(_) => None,
            Repeats::Until(until) => Some(&until.metric),
        }
    }

    /// Whether these values of the metric are enough; there are as many as repeats.
    pub(crate) fn are_enough(&self, values: &[f64]) -> bool {
        match self {
            Repeats::Fixed(repeats) => values.len() >= *repeats as usize,
            Repeats::Until(until) => {
                let width = stats::half_width(values);
                // Equal values have an interval of no width, whatever their mean.
                let equal = values.windows(2).all(|pair| pair[0] == pair[1]);
                let narrow = equal || width.is_some_and(|width| width <= until.within);
                values.len() >= until.most as usize || (values.len() >= until.least as usize && narrow)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_end_when_the_interval_is_narrow() {
        let until = Until { metric: String::new(), within: 0.1, least: 3, most: 5 };
        let repeats = Repeats::Until(until);
        assert!(!repeats.are_enough(&[1.0, 1.0]));
        assert!(repeats.are_enough(&[1.0, 1.0, 1.0]) && repeats.are_enough(&[0.0; 3]));
        assert!(!repeats.are_enough(&[1.0, 2.0, 3.0, 4.0]));
        assert!(repeats.are_enough(&[1.0, 2.0, 3.0, 4.0, 5.0]));
        assert!(!Repeats::Fixed(2).are_enough(&[1.0]) && Repeats::Fixed(2).are_enough(&[1.0; 2]));
    }
}
