//! `fairlane report`: combines results into one page, and reports invalid ones.
#![forbid(unsafe_code)]

use fairlane_report::ResultFile;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn report(home: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairlane")).arg("report").args(arguments).current_dir(home).output().unwrap()
}

#[test]
fn results_are_combined_and_invalid_ones_reported() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    let _ = fs::remove_dir_all(&home);
    for (run, machine) in [("out/a", "xen"), ("out/b", "kvm")] {
        let mut result = ResultFile::new("delay");
        result.machine(machine).value("median", 1.0, "ms");
        result.write(&home.join(run)).unwrap();
    }
    let done = report(&home, &["out"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "report.html: 2 results\n");
    assert!(fs::read_to_string(home.join("report.html")).unwrap().contains("1 experiment, 2 runs"));

    fs::write(home.join("out/b/result.json"), r#"{"schema": "fairlane-result/9"}"#).unwrap();
    fs::create_dir(home.join("empty")).unwrap();
    let done = report(&home, &["out", "absent", "--out", "other.html"]);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1));
    assert!(errors.contains("out/b/result.json: schema is `fairlane-result/9`"), "{errors}");
    assert!(errors.contains("cannot read absent"), "{errors}");
    assert!(!home.join("other.html").exists());
    let done = report(&home, &["empty"]);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(errors.contains("empty: holds no result.json"), "{errors}");
}
