//! A short demo with real guests. On a machine without User-Mode Linux or the built agent, it is ignored with a message; with
//! `FAIRLANE_GUESTS=required` in the environment it fails instead.

mod missing;

use fairlane_report::{About, ResultFile, Verdict};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let tests = vec![Trial::ignorable_test("two_acts_are_measured_and_every_frame_accounted_for", two_acts)];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Asserts that no frame is lost. Shares are not asserted, since the acts are short and the machine may be busy.
fn two_acts() -> Result<Completion, Failed> {
    let out = tempfile::tempdir()?;
    // The demo must leave nothing in its directory for temporary files.
    let scratch = tempfile::tempdir()?;
    let demo = Command::new(env!("CARGO_BIN_EXE_fairlane"))
        .args(["demo", "--acts", "fair,min-rate", "--seconds", "2", "--json", "--out"])
        .arg(out.path())
        .env("TMPDIR", scratch.path())
        .output()?;
    let errors = String::from_utf8_lossy(&demo.stderr).into_owned();
    let json = String::from_utf8(demo.stdout)?;
    if json.is_empty() {
        return missing::skip_or_fail(errors);
    }
    let result = ResultFile::from_json(&json, "standard output")?;
    assert_eq!(result, ResultFile::read(out.path())?);
    assert!(out.path().join("report.html").is_file());
    assert_eq!(demo.status.success(), result.holds(), "{errors}");

    for (act, guests) in [("fair", &["a", "b"][..]), ("min-rate", &["a", "b", "c"])] {
        for guest in guests {
            let series = result.find(&format!("{act}/{guest}")).expect("each guest has a series");
            assert_eq!(series.points.len(), 20);
            assert!(series.values().iter().sum::<f64>() > 0.0, "{act}/{guest}");
        }
    }
    let ours: Vec<_> = result.claims.iter().filter(|claim| claim.about == About::Fairlane).collect();
    assert_eq!(ours.len(), 6);
    for claim in ours.iter().filter(|claim| claim.text.starts_with("Nothing") || claim.text.starts_with("Every frame"))
    {
        assert_eq!(claim.verdict, Verdict::Holds, "{claim:?}");
    }
    assert_eq!(scratch.path().read_dir()?.count(), 0, "temporary files are left behind");
    Ok(Completion::Completed)
}
