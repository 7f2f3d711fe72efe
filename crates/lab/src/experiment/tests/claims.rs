use super::super::ClaimPlan;
use fairlane_report::{About, ResultFile};
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
        about: About::Source,
    }
}

proptest! {
    /// A claim holds if and only if each value is within its bounds; a value that was not measured never is.
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
        let within = |value: f64| {
            let judged = value / base.unwrap_or(1.0);
            judged.is_finite() && least.is_none_or(|least| judged >= least) && most.is_none_or(|most| judged <= most)
        };
        prop_assert_eq!(claim.holds, values.iter().all(|value| within(*value)));
        prop_assert_eq!(claim.about, About::Source);
    }
}

#[test]
fn a_verdict_quotes_its_numbers() {
    let mut result = ResultFile::new("e");
    result.metric("a", &[3.0, 3.0, 3.0], "ms").value("b", 1.5, "ms");
    let claim = plan(&["a"], Some("b"), Some(1.5), None).judge("s", &result);
    assert!(claim.holds);
    assert_eq!(claim.expected, "at least 1.5 times b");
    assert_eq!(claim.measured, "a 3 ms (3 to 3), 2 times b 1.5 ms");
    let claim = plan(&["a", "b"], None, Some(1.0), Some(2.0)).judge("s", &result);
    assert!(!claim.holds);
    assert_eq!((claim.expected.as_str(), claim.measured.as_str()), ("1 to 2 ms", "a 3 ms (3 to 3); b 1.5 ms"));
    assert!(!plan(&["unknown"], None, Some(0.0), None).judge("s", &result).holds);
}
