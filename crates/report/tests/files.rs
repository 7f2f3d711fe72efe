//! Result files are written and read again; invalid ones are refused with the place of the error.
#![forbid(unsafe_code)]

mod sample;

use std::fs;
use std::path::Path;

use fairlane_report::{
    About, At, Axis, Claim, Error, Figure, Metric, ResultFile, Series, Verdict, find, html, text, write_figures,
    write_page,
};
use proptest::prelude::*;

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>().prop_filter("null has one form", |value| value.is_finite()), Just(f64::NAN)]
}

fn finite() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("finite", |value| value.is_finite())
}

prop_compose! {
    fn results()(
        experiment in ".+",
        series in prop::collection::vec((any::<String>(), ".*", prop::collection::vec((finite(), number()), 0..8), any::<bool>()), 0..5),
        metrics in prop::collection::btree_map(".*", (prop::collection::vec(number(), 0..8), ".*", 0..4u8), 0..4),
        claims in prop::collection::vec((".*", ".*", any::<bool>(), 0..4usize), 0..4),
        settings in prop::collection::btree_map(".*", ".*", 0..4),
        (source, machine, warnings) in (prop::option::of(".*"), prop::option::of(".*"), prop::collection::vec(".*", 0..3)),
        (upright, at) in (any::<bool>(), finite()),
    ) -> ResultFile {
        let mut result = ResultFile::new(&experiment);
        for (index, (group, unit, points, expected)) in series.into_iter().enumerate() {
            let name = index.to_string();
            let series = Series::new(&name, &unit, Axis::time()).group(&group).points(points.into_iter().map(|(x, y)| [x, y]));
            result.series(if expected { series.expected() } else { series });
            let mark = if upright { At::X(at) } else { At::Y(at) };
            result.figure([Figure::lines, Figure::bars, Figure::cdf][index % 3](&name).series([&name]).mark(mark, &unit));
        }
        for (name, (samples, unit, how)) in metrics {
            let metric = match how {
                0 => Metric::median(&samples, &unit),
                1 => Metric::mean(&samples, &unit),
                2 => Metric::mean_student(&samples, &unit),
                _ => Metric::given(samples.first().copied().unwrap_or(1.0), &unit),
            };
            result.metrics.insert(name, metric);
        }
        for (text, figures, ours, verdict) in claims {
            let figure = result.figures.first().map(|figure| figure.title.clone());
            let about = if ours { About::Fairlane } else { About::Source };
            let (expected, measured) = (figures.clone(), figures);
            let verdict = [Verdict::Holds, Verdict::DoesNotHold, Verdict::Undecided, Verdict::NotMeasured][verdict];
            let ours = (!ours).then(|| text.clone());
            result.claim(Claim { about, source: text.clone(), text, expected, measured, ours, verdict, figure });
        }
        if let Some(source) = source {
            result.source(&source, &source);
        }
        result.machine = machine;
        result.warnings = warnings;
        for (name, value) in settings {
            result.setting(&name, value);
        }
        result
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_written_result_is_read_again(result in results()) {
        let json = result.to_json();
        let again = ResultFile::from_json(&json, "result.json").unwrap();
        // Compared as text, as NaN is not equal to itself.
        prop_assert_eq!(again.to_json(), json);
        prop_assert_eq!(format!("{again:?}"), format!("{result:?}"));
        prop_assert!(html::page(&[&result]).ends_with("</html>"));
        prop_assert!(html::page(&[&result, &again]).ends_with("</html>"));
        prop_assert!(text::summary(&result).lines().count() >= result.claims.len() + result.metrics.len());
    }
}

/// The error message for a changed sample.
fn refused(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut json = serde_json::from_str(&sample::demo().to_json()).unwrap();
    change(&mut json);
    ResultFile::from_json(&json.to_string(), "old/result.json").unwrap_err().to_string()
}

#[test]
fn another_schema_is_refused_whatever_its_fields() {
    let error = ResultFile::from_json(r#"{"experiment": 7, "schema": "fairlane-result/2"}"#, "r.json").unwrap_err();
    assert!(matches!(error, Error::Schema { .. }));
    assert_eq!(error.to_string(), "r.json: schema is `fairlane-result/2`; this version knows `fairlane-result/1`");
    let error = ResultFile::from_json("{}", "r.json").unwrap_err().to_string();
    assert!(error.starts_with("r.json: schema: missing field `schema`"), "{error}");
    let error = ResultFile::from_json("{\"schema\": ", "r.json").unwrap_err().to_string();
    assert_eq!(error, "r.json: not JSON: EOF while parsing a value at line 1 column 11");
}

#[test]
fn errors_name_the_place() {
    let cases: [(&str, String); 10] = [
        ("series[2].points[7]", refused(|json| json["series"][2]["points"][7] = "fast".into())),
        ("series[0].points[1][0]: is no number", refused(|json| json["series"][0]["points"][1][0] = ().into())),
        (
            "series[1].name: `before/guest a` is taken",
            refused(|json| json["series"][1]["name"] = "before/guest a".into()),
        ),
        ("figures[1].series[0]: there is no series `x`", refused(|json| json["figures"][1]["series"][0] = "x".into())),
        ("figures[4].series[0]: x = 2 has no name", refused(|json| json["series"][18]["points"][0][0] = 2.into())),
        ("figures[0].series[1]: `before/guest b` has other", refused(|json| json["series"][2]["unit"] = "s".into())),
        (
            "metrics.fair_guest_a.ci95",
            refused(|json| json["metrics"]["fair_guest_a"]["ci95"] = [2, 1].as_slice().into()),
        ),
        (
            "metrics.fair_guest_a.n: is 3, but there are 40",
            refused(|json| json["metrics"]["fair_guest_a"]["n"] = 3.into()),
        ),
        ("claims[0].figure: no figure has the title `9`", refused(|json| json["claims"][0]["figure"] = "9".into())),
        ("started", refused(|json| json["started"] = "yesterday".into())),
    ];
    for (place, error) in cases {
        assert!(error.starts_with(&format!("old/result.json: {place}")), "{place}: {error}");
    }
}

#[test]
fn unknown_keys_are_ignored() {
    let mut json: serde_json::Value = serde_json::from_str(&sample::demo().to_json()).unwrap();
    json["later"] = 1.into();
    json["claims"][0]["later"] = 1.into();
    ResultFile::from_json(&json.to_string(), "r.json").unwrap();
}

#[test]
fn an_inconsistent_result_is_not_written() {
    let mut result = ResultFile::new("bad");
    result.figure(Figure::lines("a").series(["missing"]));
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("never");
    assert!(matches!(result.write(&dir), Err(Error::Invalid { .. })));
    assert!(!dir.exists());
}

#[test]
fn a_file_error_names_the_path() {
    let error = sample::demo().write("/dev/null/out".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("cannot create /dev/null/out: "), "{error}");
    let error = ResultFile::read("/nowhere/result.json".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("cannot read /nowhere/result.json: "), "{error}");
}

#[test]
fn each_series_is_one_line_of_the_file() {
    let result = sample::demo();
    let json = result.to_json();
    assert_eq!(json.lines().filter(|line| line.starts_with("    {\"name\": ")).count(), result.series.len());
    assert!(json.starts_with("{\n  \"schema\": \"fairlane-result/1\",\n") && json.ends_with("\n}\n"));
}

#[test]
fn results_are_found_in_subdirectories_and_joined() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("found");
    let _ = fs::remove_dir_all(&home);
    for run in ["b", "a/deep", "a"] {
        sample::demo().write(&home.join(run)).unwrap();
    }
    fs::create_dir(home.join("empty")).unwrap();
    std::os::unix::fs::symlink(&home, home.join("a/round")).unwrap();
    let own = |run: &str| home.join(run).join("result.json");
    let found = find(&[home.join("b"), home.clone(), own("a")]).unwrap();
    assert_eq!(found, [own("b"), own("a/deep"), own("a")], "each once, in order, without following the link");
    let results: Vec<_> = found.iter().map(|file| ResultFile::read(file).unwrap()).collect();
    let page = home.join("new/report.html");
    write_page(&page, &results.iter().collect::<Vec<_>>()).unwrap();
    assert!(fs::read_to_string(page).unwrap().contains("1 experiment, 3 runs"));

    let errors = find(&[home.join("empty"), home.join("b"), home.join("new")]).unwrap_err();
    let messages: Vec<_> = errors.iter().map(Error::to_string).collect();
    assert_eq!(messages.len(), 2);
    assert!(messages[0].contains("found/empty: holds no result.json") && messages[0].contains("--out"), "{messages:?}");
    // A missing file is an error when it is read, with its name.
    let absent = find(&[home.join("none")]).unwrap();
    assert!(ResultFile::read(&absent[0]).unwrap_err().to_string().contains("found/none"));
}

#[test]
fn each_figure_is_written_to_its_own_file() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures");
    let _ = fs::remove_dir_all(&dir);
    let mut named = ResultFile::new("HTTP sizes");
    for title in ["loss, %", "Loss (%)", "rate/../x"] {
        named.series(Series::new(title, "%", Axis::time()).point(0.0, 1.0));
        named.figure(Figure::lines(title).series([title]));
    }
    assert_eq!(write_figures(&dir, &[&named, &sample::demo()]).unwrap(), 3 + sample::demo().figures.len());
    for name in ["http-sizes-loss", "http-sizes-loss-2", "http-sizes-rate-x"] {
        let svg = fs::read_to_string(dir.join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg xmlns=") && svg.contains("--paper: #ffffff"), "{name}");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 3 + sample::demo().figures.len());
}
