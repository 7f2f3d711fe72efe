//! `fairlane lab judge`: written results get the verdicts of the experiments as they are now.
#![forbid(unsafe_code)]

use fairlane_report::{ResultFile, Verdict, find};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn judge(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairlane")).args(["lab", "judge"]).args(arguments).output().unwrap()
}

/// The results that the documents link to, of experiments or not.
fn kept() -> Vec<PathBuf> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let mut files = find(std::slice::from_ref(&results)).unwrap_or_else(|errors| panic!("{errors:?}"));
    for numbered in ["receive-flood", "receive-shares", "receive-stall", "tenants"] {
        let entries = fs::read_dir(results.join(numbered)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files
}

/// After a change of claims, bounds or rules, `fairlane lab judge docs/results docs/results/*/*.json` mends this.
#[test]
fn kept_results_have_the_verdicts_of_the_experiments_as_they_are() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("judge-kept");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir(&home).unwrap();
    let copies: Vec<(PathBuf, PathBuf)> = kept()
        .into_iter()
        .enumerate()
        .map(|(number, file)| {
            let copy = home.join(format!("{number}.json"));
            fs::copy(&file, &copy).unwrap();
            (file, copy)
        })
        .collect();
    let done = judge(&copies.iter().map(|(_, copy)| copy.as_path()).collect::<Vec<_>>());
    assert!(done.stderr.is_empty(), "{done:?}");
    let stale = |(file, copy): &&(PathBuf, PathBuf)| fs::read(file).unwrap() != fs::read(copy).unwrap();
    let stale: Vec<_> = copies.iter().filter(stale).map(|(file, _)| file).collect();
    assert!(copies.len() > 60 && stale.is_empty(), "{stale:?}");
}

const EXPERIMENT: &str = r#"
name = "trial"
source = "s"
figure = "f"
machines = ["xen"]
[topology]
guests = [{ cpus = [0] }]
[procedure]
kind = "udp-share"
senders = [{ guest = 1 }]
seconds = 3
[[claim]]
about = "fairlane"
backend = "fairlane"
text = "It is fast"
metrics = ["guest1"]
at_least = BOUND
[[claim]]
backend = "kernel"
text = "It is slow"
metrics = ["guest1"]
at_most = 1
"#;

/// Verdicts follow the file's bounds; what was measured, and results of other experiments, stay as they were. Claims about another
/// backend are left out.
#[test]
fn a_result_is_judged_by_the_file_s_bounds() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("judge-trial");
    let _ = fs::remove_dir_all(&home);
    for name in ["trial", "other"] {
        let mut result = ResultFile::new(name);
        result.setting("case -", serde_json::json!({ "topology": { "backend": "fairlane" } }));
        result.metric("guest1", &[9.0, 10.0, 11.0], "Mbit/s");
        result.write(&home.join(name)).unwrap();
    }
    let file = home.join("trial.toml");
    for (bound, verdict, code) in
        [("5", Verdict::Holds, 0), ("10", Verdict::Undecided, 1), ("20", Verdict::DoesNotHold, 1)]
    {
        fs::write(&file, EXPERIMENT.replace("BOUND", bound)).unwrap();
        let done = judge(&[Path::new("--experiment"), &file, &home]);
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        let result = ResultFile::read(&home.join("trial")).unwrap();
        let [claim] = &result.claims[..] else { panic!("{:?}", result.claims) };
        assert_eq!((claim.verdict, claim.text.as_str()), (verdict, "It is fast"));
        assert_eq!(result.metrics["guest1"].samples, [9.0, 10.0, 11.0]);
        let page = fs::read_to_string(home.join("trial/report.html")).unwrap();
        assert!(page.contains("It is fast"), "the page has the new verdicts, too");
        assert!(ResultFile::read(&home.join("other")).unwrap().claims.is_empty());
    }
}
