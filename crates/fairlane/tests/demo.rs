//! The demo with real guests, in short. A machine without User-Mode Linux or the built agent skips this, says why, and
//! counts it as ignored; with `FAIRLANE_GUESTS=required` in the environment it fails instead.

use fairlane_report::{About, ResultFile};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::env;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let tests = vec![Trial::ignorable_test("two_acts_are_measured_judged_and_accounted_for", two_acts)];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Shares in a short act on a busy machine are measured, not asserted; that nothing is lost is asserted.
fn two_acts() -> Result<Completion, Failed> {
    let out = tempfile::tempdir()?;
    // All that the demo leaves in the directory for temporary files is seen at the end.
    let scratch = tempfile::tempdir()?;
    let demo = Command::new(env!("CARGO_BIN_EXE_fairlane"))
        .args(["demo", "--acts", "fair,min-rate", "--seconds", "2", "--json", "--out"])
        .arg(out.path())
        .env("TMPDIR", scratch.path())
        .output()?;
    let errors = String::from_utf8_lossy(&demo.stderr).into_owned();
    let json = String::from_utf8(demo.stdout)?;
    if json.is_empty() {
        let missing = ["is not installed", "is not built", "is not there"].iter().any(|words| errors.contains(words));
        if missing && env::var_os("FAIRLANE_GUESTS").is_none_or(|value| value != "required") {
            eprintln!("SKIPPED: {errors}");
            return Ok(Completion::ignored_with(errors.trim()));
        }
        return Err(errors.into());
    }
    let result = ResultFile::from_json(&json, "standard output")?;
    assert_eq!(result, ResultFile::read(out.path())?);
    assert!(out.path().join("report.html").is_file());
    assert_eq!(demo.status.success(), result.holds(), "{errors}");

    for (act, guests) in [("fair", &["a", "b"][..]), ("min-rate", &["a", "b", "c"])] {
        for guest in guests {
            let series = result.find(&format!("{act}/{guest}")).expect("each guest has its series");
            assert_eq!(series.points.len(), 20);
            assert!(series.values().iter().sum::<f64>() > 0.0, "{act}/{guest}");
        }
    }
    let ours: Vec<_> = result.claims.iter().filter(|claim| claim.about == About::Fairlane).collect();
    assert_eq!(ours.len(), 6);
    for claim in ours.iter().filter(|claim| claim.text.starts_with("Nothing") || claim.text.starts_with("Every frame"))
    {
        assert!(claim.holds, "{claim:?}");
    }
    assert_eq!(scratch.path().read_dir()?.count(), 0, "something is left behind");
    Ok(Completion::Completed)
}
