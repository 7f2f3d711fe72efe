use super::super::ClaimPlan;
use fairlane_report::{About, Metric, ResultFile, Verdict};
use proptest::prelude::*;

fn plan(metrics: &[&str], relative_to: Option<&str>, at_least: Option<f64>, at_most: Option<f64>) -> ClaimPlan {
    ClaimPlan {
        text: "t".to_owned(),
        metrics: metrics.iter().map(|name| (*name).to_owned()).collect(),
        relative_to: relative_to.map(str::to_owned),
        at_least,
        at_most,
        shown_in: None,
        backend: None,
        ours: None,
        about: About::Source,
    }
}

proptest! {
    /// Without intervals, a claim holds if and only if each value is within its bounds. If all values that there are lie within them,
    /// but some were not measured, it is open.
    #[test]
    fn a_claim_holds_within_its_bounds(values in prop::collection::vec(prop_oneof![-1e3..1e3, Just(f64::NAN)], 1..4),
                                       base in prop::option::of(prop_oneof![0.1..10.0, Just(0.0)]),
                                       least in prop::option::of(-1e3..1e3), most in prop::option::of(-1e3..1e3)) {
        let mut result = ResultFile::new("e");
        let names: Vec<String> = (0..values.len()).map(|index| format!("m{index}")).collect();
        for (name, value) in names.iter().zip(&values) {
            result.value(name, *value, "ms");
        }
        result.value("base", base.unwrap_or(1.0), "ms");
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let claim = plan(&names, base.map(|_| "base"), least, most).judge("s", &result);
        let judged = values.iter().map(|value| value / base.unwrap_or(1.0));
        let (known, unknown): (Vec<f64>, Vec<f64>) = judged.partition(|value| value.is_finite());
        let within =
            |value: &f64| least.is_none_or(|least| *value >= least) && most.is_none_or(|most| *value <= most);
        let expected = match (known.iter().all(within), unknown.is_empty()) {
            (false, _) => Verdict::DoesNotHold,
            (true, false) => Verdict::NotMeasured,
            (true, true) => Verdict::Holds,
        };
        prop_assert_eq!(claim.verdict, expected);
        prop_assert_eq!(claim.about, About::Source);
    }
}

#[test]
fn a_verdict_quotes_its_numbers() {
    let mut result = ResultFile::new("e");
    result.metric("a", &[3.0, 3.0, 3.0], "ms").value("b", 1.5, "ms");
    let claim = plan(&["a"], Some("b"), Some(1.5), None).judge("s", &result);
    assert_eq!(claim.verdict, Verdict::Holds);
    assert_eq!(claim.expected, "at least 1.5 times b");
    assert_eq!(claim.measured, "a 3 ms (3 to 3), 2 (2 to 2) times b 1.5 ms");
    let claim = plan(&["a", "b"], None, Some(1.0), Some(2.0)).judge("s", &result);
    assert_eq!(claim.verdict, Verdict::DoesNotHold);
    assert_eq!((claim.expected.as_str(), claim.measured.as_str()), ("1 to 2 ms", "a 3 ms (3 to 3); b 1.5 ms"));
    assert_eq!(plan(&["unknown"], None, Some(0.0), None).judge("s", &result).verdict, Verdict::NotMeasured);
}

/// A claim whose bound lies in the interval of the metric, or of the ratio, is neither supported nor refuted.
#[test]
fn a_bound_within_the_interval_decides_nothing() {
    let mut result = ResultFile::new("e");
    for (name, samples) in [("wide", [80.0, 100.0, 120.0]), ("base", [90.0, 100.0, 110.0])] {
        result.metrics.insert(name.to_owned(), Metric::mean_student(&samples, "1/s"));
    }
    let verdict = |relative_to, least| plan(&["wide"], relative_to, Some(least), None).judge("s", &result).verdict;
    assert_eq!(verdict(None, 40.0), Verdict::Holds);
    assert_eq!(verdict(None, 90.0), Verdict::Undecided);
    assert_eq!(verdict(None, 160.0), Verdict::DoesNotHold);
    assert_eq!(verdict(Some("base"), 0.4), Verdict::Holds);
    // 100 in 50 to 150 over 100 in 75 to 125: the ratio is in 0.46 to 1.6.
    assert_eq!(verdict(Some("base"), 0.9), Verdict::Undecided);
    assert_eq!(verdict(Some("base"), 1.7), Verdict::DoesNotHold);
    let claim = plan(&["wide"], Some("base"), Some(0.9), None).judge("s", &result);
    assert!(claim.measured.starts_with("wide 100 1/s (50.32 to 149.7), 1 (0.4"), "{}", claim.measured);
}

#[test]
fn a_claim_says_what_of_it_is_not_the_source_s() {
    let mut ours = plan(&["a"], None, Some(0.0), None);
    ours.ours = Some("the bound".to_owned());
    assert_eq!(ours.judge("s", &ResultFile::new("e")).ours.as_deref(), Some("the bound"));
    assert!(ours.faults(&["a".to_owned()]).is_empty());
    ours.about = About::Fairlane;
    let [(key, message)] = &ours.faults(&["a".to_owned()])[..] else { panic!("one fault") };
    assert_eq!((*key, message.as_str()), ("ours", "ours is for claims of a source: a claim about Fairlane is ours"));
}
