//! The page and the text of a realistic result, and of a hostile one that tries to inject markup.
#![forbid(unsafe_code)]

mod sample;

use std::path::Path;

use fairlane_report::{About, Axis, Claim, Figure, ResultFile, Series, Verdict, html, text};

/// The JSON in a page.
fn data(page: &str) -> Vec<ResultFile> {
    let (_, rest) = page.split_once("<script id=\"results\" type=\"application/json\">").expect("the data block");
    let (json, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(json).expect("results")
}

#[test]
fn a_run_is_written_and_read_again() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo");
    let result = sample::demo();
    result.write(&dir).unwrap();
    result.write(&dir).unwrap();
    assert_eq!(ResultFile::read(&dir).unwrap(), result);
    let mut names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["report.html", "result.json"], "no temporary file is left");
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert_eq!(data(&page), [result]);
}

#[test]
fn the_page_shows_all_claims_and_figures() {
    let (one, mut two) = (sample::demo(), sample::demo());
    two.experiment = "again".to_owned();
    two.claims[1].verdict = Verdict::DoesNotHold;
    let alone = html::page(&[&one]);
    assert!(
        alone.contains("All 4 claims about Fairlane hold.") && alone.contains("1 of 2 claims about other work hold.")
    );
    let page = html::page(&[&one, &two]);
    assert!(
        page.contains("7 of 8 claims about Fairlane hold.") && page.contains("2 of 4 claims about other work hold.")
    );
    for claim in &one.claims {
        for part in [&claim.text, &claim.expected, &claim.measured, &claim.source] {
            assert!(page.contains(part.as_str()), "{part}");
        }
    }
    // Each claim has a chip in the table and one at its figure, and the overview has one more for their number. A claim about
    // Fairlane fails in the second result.
    assert_eq!(page.matches("✗ fails").count(), 3);
    assert_eq!(page.matches("≠ differs").count(), 6);
    assert_eq!(page.matches("<svg").count(), 2 * 2 * one.figures.len());
    for page in [alone, page] {
        for outside in ["src=", "url(", "@import", "http:", "https:"] {
            let used = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "").contains(outside);
            assert!(!used, "the page must be self-contained, but has {outside}");
        }
        assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count());
    }
}

/// The table rows of a page that contain a text.
fn rows<'a>(page: &'a str, text: &str) -> Vec<&'a str> {
    page.split("<tr").skip(1).map(|row| row.split("</tr>").next().unwrap()).filter(|row| row.contains(text)).collect()
}

#[test]
fn runs_of_an_experiment_are_shown_side_by_side() {
    let run = |machine: &str, measured: &str, holds| {
        let mut result = sample::demo();
        result.source("002, figure 7", "Who offers more gets more.").machine(machine);
        result.claims.truncate(1);
        result.claims[0].measured = measured.to_owned();
        result.claims[0].verdict = Verdict::from(holds);
        result
    };
    let (xen, kvm, mut again) = (run("xen", "75", true), run("kvm", "50", false), run("xen", "76", true));
    again.warn("the interval stayed too wide");
    let mut other = sample::demo();
    other.experiment = "bench".to_owned();
    other.claims.clear();
    let page = html::page(&[&xen, &kvm, &other, &again]);
    assert!(page.contains("2 experiments, 4 runs"));
    assert_eq!(page.matches("Who offers more gets more.</p>").count(), 1, "the source's figure, once an experiment");
    let [row] = rows(&page, &xen.claims[0].text)[..] else { panic!("a claim of several runs has one row") };
    let cells: Vec<_> = row.split("<td").skip(3).map(|cell| cell.split("</td>").next().unwrap()).collect();
    assert!(cells[0].contains("xen, run 1") && cells[0].contains("75") && cells[0].contains("✓ holds"));
    assert!(cells[1].contains("kvm") && cells[1].contains("50") && cells[1].contains("≠ differs"));
    assert!(cells[2].contains("xen, run 2") && cells[2].contains("76"));
    // Every link has a target.
    for link in page.split("href=\"#").skip(1) {
        let id = link.split('"').next().unwrap();
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
    assert!(page.contains("⚠ the interval stayed too wide") && page.contains("⚠ warnings 1"));
    assert!(text::summary(&again).contains("WARNING: the interval stayed too wide"));
    assert!(text::summary(&again).starts_with("demo on xen, "));
}

#[test]
fn the_page_of_no_results_shows_zero_runs() {
    assert!(html::page(&[]).contains("0 experiments, 0 runs"));
}

/// What is not decided is not called a finding or a failure, and does not count as held; a claim shows what of it is ours.
#[test]
fn open_claims_are_shown_as_open() {
    let mut result = sample::demo();
    result.claims[0].ours = Some("the bound".to_owned());
    result.claims[0].verdict = Verdict::NotMeasured;
    result.claims[1].verdict = Verdict::Undecided;
    assert!(!result.holds(), "an undecided claim about Fairlane does not hold");
    let (page, words) = (html::page(&[&result]), text::summary(&result));
    assert!(page.contains("3 of 4 claims about Fairlane hold, 1 undecided."));
    assert!(page.contains("0 of 2 claims about other work hold, 1 not measured."));
    assert!(page.contains("- not measured") && page.contains("? undecided") && !page.contains("✗ fails"));
    assert!(page.contains("; ours: the bound") && words.contains("(ours: the bound)"));
    assert!(words.contains("\nundecided ") && words.contains("\nnot measured ") && !words.contains("FAILS"));
    result.claims.truncate(1);
    assert!(html::page(&[&result]).contains("The claim about other work: not measured."));
}

#[test]
fn hostile_names_inject_no_markup() {
    let evil = "</script><img src=x onerror=alert(1)>\"'&]]>\u{1b}[2J\u{202e}";
    let mut result = ResultFile::new(evil);
    result.source(evil, evil).machine(evil).warn(evil);
    result.setting(evil, evil).setting("nested", serde_json::json!({ evil: [evil] }));
    result.series(Series::new(evil, evil, Axis::new(evil, evil)).group(evil).point(0.0, 1.0));
    for (figure, title) in [(Figure::lines as fn(&str) -> Figure, "1"), (Figure::bars, "2"), (Figure::cdf, "3")] {
        let figure = figure(&format!("{title}{evil}")).caption(evil).x(evil).y(evil).series([evil]).categories([evil]);
        result.figure(figure);
    }
    result.metric(evil, &[1.0, 2.0], evil);
    let own = || evil.to_owned();
    result.claim(Claim {
        about: About::Source,
        source: own(),
        text: own(),
        expected: own(),
        measured: own(),
        ours: Some(own()),
        verdict: Verdict::Undecided,
        figure: Some(format!("1{evil}")),
    });
    result.host.versions.insert(own(), own());
    let page = html::page(&[&result]);
    assert_eq!(page.matches("</script").count(), 1);
    assert!(!page.contains("<img"));
    assert!(!page.contains('\u{1b}') && !page.contains("onerror=alert(1)>"));
    assert_eq!(data(&page), [result.clone()]);
    let page = html::page(&[&result, &result]);
    assert_eq!(page.matches("</script").count(), 1);
    assert!(!page.contains("<img") && !page.contains('\u{1b}') && !page.contains("onerror=alert(1)>"));
    let text = text::summary(&result);
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
}

#[test]
fn the_text_is_aligned() {
    let text = text::summary(&sample::demo());
    let lines: Vec<_> = text.lines().collect();
    let column = lines[2].find("measured").unwrap();
    assert!(lines[3..9].iter().all(|line| line.as_bytes()[column - 1] == b' ' && line.as_bytes()[column] != b' '));
    assert!(lines[6].starts_with("differs") && lines[3].starts_with("ok"));
    assert!(text.ends_with("5 of 6 claims hold\n"));
}
