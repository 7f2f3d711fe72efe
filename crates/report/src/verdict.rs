//! Verdicts on claims: bounds against the 95% interval of what was measured.

use serde::{Deserialize, Serialize};

use crate::label::{number, quantity};
use crate::result::Metric;
use crate::stats;

/// A claim's verdict. In a file it is `holds`, and `open` if `holds` is false only because nothing is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub enum Verdict {
    /// The value is within the bounds, with all of its interval.
    Holds,
    /// The value is outside the bounds, with all of its interval.
    DoesNotHold,
    /// A bound lies in the interval: the samples are too few, or differ too much, to decide.
    Undecided,
    /// There is no value.
    NotMeasured,
}

/// A verdict as a file has it, so that a reader that knows `holds` only is right.
#[derive(Serialize, Deserialize)]
struct Written {
    holds: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    open: Option<Open>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Open {
    Undecided,
    NotMeasured,
}

impl From<Written> for Verdict {
    fn from(written: Written) -> Verdict {
        match (written.holds, written.open) {
            (true, _) => Verdict::Holds,
            (false, None) => Verdict::DoesNotHold,
            (false, Some(Open::Undecided)) => Verdict::Undecided,
            (false, Some(Open::NotMeasured)) => Verdict::NotMeasured,
        }
    }
}

impl From<Verdict> for Written {
    fn from(verdict: Verdict) -> Written {
        let open = match verdict {
            Verdict::Holds | Verdict::DoesNotHold => None,
            Verdict::Undecided => Some(Open::Undecided),
            Verdict::NotMeasured => Some(Open::NotMeasured),
        };
        Written { holds: verdict == Verdict::Holds, open }
    }
}

impl From<bool> for Verdict {
    /// The verdict on something that was counted, not estimated.
    fn from(holds: bool) -> Verdict {
        if holds { Verdict::Holds } else { Verdict::DoesNotHold }
    }
}

impl Verdict {
    /// The verdict on a claim that consists of several: one that does not hold refutes it; else one that is open leaves it open.
    /// Nothing at all was not measured.
    pub fn of_all(parts: impl IntoIterator<Item = Verdict>) -> Verdict {
        const BY_WEIGHT: [Verdict; 4] =
            [Verdict::DoesNotHold, Verdict::NotMeasured, Verdict::Undecided, Verdict::Holds];
        let weight = |verdict: &Verdict| BY_WEIGHT.iter().position(|known| known == verdict);
        parts.into_iter().min_by_key(weight).unwrap_or(Verdict::NotMeasured)
    }
}

/// The bounds of a claim, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// The lower bound.
    pub at_least: Option<f64>,
    /// The upper bound.
    pub at_most: Option<f64>,
}

impl Bounds {
    /// The verdict on a value with its 95% interval. A value without an interval is judged alone.
    pub fn judge(&self, value: f64, ci95: Option<[f64; 2]>) -> Verdict {
        if !value.is_finite() {
            return Verdict::NotMeasured;
        }
        let [low, high] = ci95.unwrap_or([value; 2]);
        let (least, most) = (self.at_least.unwrap_or(f64::NEG_INFINITY), self.at_most.unwrap_or(f64::INFINITY));
        if least <= low && high <= most {
            Verdict::Holds
        } else if high < least || most < low {
            Verdict::DoesNotHold
        } else {
            Verdict::Undecided
        }
    }

    /// The bounds in words.
    pub fn words(&self, unit: &str) -> String {
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), quantity(most, unit)),
            (Some(least), None) => format!("at least {}", quantity(least, unit)),
            (None, Some(most)) => format!("at most {}", quantity(most, unit)),
            (None, None) => String::new(),
        }
    }
}

impl Metric {
    /// Its ratio to another metric, with the ratio's 95% interval unless neither has one. A metric without an interval counts as
    /// exact.
    pub fn ratio_to(&self, base: &Metric) -> (f64, Option<[f64; 2]>) {
        let ends = |metric: &Metric| metric.ci95.unwrap_or([metric.value; 2]);
        let known = self.ci95.is_some() || base.ci95.is_some();
        let interval = known.then(|| stats::ratio_interval((self.value, ends(self)), (base.value, ends(base))));
        (self.value / base.value, interval.flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_decides() {
        let bounds = |at_least, at_most| Bounds { at_least, at_most };
        let (least, most) = (bounds(Some(1.0), None), bounds(None, Some(1.0)));
        assert_eq!(least.judge(1.5, Some([1.0, 2.0])), Verdict::Holds);
        assert_eq!(least.judge(1.5, Some([0.9, 2.1])), Verdict::Undecided);
        assert_eq!(least.judge(0.8, Some([0.5, 1.1])), Verdict::Undecided);
        assert_eq!(least.judge(0.8, Some([0.7, 0.9])), Verdict::DoesNotHold);
        assert_eq!(most.judge(1.5, Some([1.1, 1.9])), Verdict::DoesNotHold);
        assert_eq!(bounds(Some(1.0), Some(2.0)).judge(1.5, Some([0.0, 9.0])), Verdict::Undecided);
        assert_eq!((least.judge(1.0, None), least.judge(0.9, None)), (Verdict::Holds, Verdict::DoesNotHold));
        assert_eq!(most.judge(f64::NAN, None), Verdict::NotMeasured);
        assert_eq!(most.judge(f64::INFINITY, None), Verdict::NotMeasured);
    }

    #[test]
    fn parts_make_a_whole() {
        use Verdict::{DoesNotHold, Holds, NotMeasured, Undecided};
        assert_eq!(Verdict::of_all([Holds, Holds]), Holds);
        assert_eq!(Verdict::of_all([Holds, Undecided]), Undecided);
        assert_eq!(Verdict::of_all([Undecided, NotMeasured, Holds]), NotMeasured);
        assert_eq!(Verdict::of_all([NotMeasured, DoesNotHold, Undecided]), DoesNotHold);
        assert_eq!(Verdict::of_all([]), NotMeasured);
    }

    /// A reader of the first version knows `holds` only; files of the first version have `holds` only.
    #[test]
    fn a_file_has_holds_and_what_is_open() {
        for (verdict, text) in [
            (Verdict::Holds, r#"{"holds":true}"#),
            (Verdict::DoesNotHold, r#"{"holds":false}"#),
            (Verdict::Undecided, r#"{"holds":false,"open":"undecided"}"#),
            (Verdict::NotMeasured, r#"{"holds":false,"open":"not_measured"}"#),
        ] {
            assert_eq!(serde_json::to_string(&verdict).unwrap(), text);
            assert_eq!(serde_json::from_str::<Verdict>(text).unwrap(), verdict);
        }
    }

    #[test]
    fn a_ratio_of_metrics_has_an_interval_if_one_of_them_has() {
        let (samples, exact) = (Metric::mean_student(&[9.0, 10.0, 11.0], ""), Metric::given(5.0, ""));
        let (ratio, Some([low, high])) = samples.ratio_to(&exact) else { panic!("no interval") };
        let [own_low, own_high] = samples.ci95.unwrap();
        assert_eq!(ratio, 2.0);
        assert!((low - own_low / 5.0).abs() < 1e-9 && (high - own_high / 5.0).abs() < 1e-9, "{low} {high}");
        assert_eq!(exact.ratio_to(&exact), (1.0, None));
    }
}
