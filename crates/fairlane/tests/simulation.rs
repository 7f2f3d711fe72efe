//! `fairlane sim`: the page of its errors says what it says now, and plans are simulated or refused.
#![forbid(unsafe_code)]

use fairlane_report::ResultFile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fairlane(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairlane")).args(arguments).current_dir(root()).output().unwrap()
}

#[test]
fn the_page_has_the_simulators_figures() {
    let page = fs::read_to_string(root().join("docs/results/simulation.md")).unwrap();
    let mut tables = 0;
    for part in page.split("```sh\nfairlane ").skip(1) {
        let (command, rest) = part.split_once("\n```\n\n").unwrap();
        let arguments: Vec<&str> = command.split_whitespace().filter(|word| *word != "\\").collect();
        let done = fairlane(&arguments);
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        let (said, printed) = (String::from_utf8(done.stdout).unwrap(), rest.split("\n\n").next().unwrap());
        assert!(said.lines().count() > 5 && said.trim_end() == printed.trim_end(), "{command} says now:\n{said}");
        tables += 1;
    }
    assert!(tables >= 8, "the page has {tables} tables");
}

#[test]
fn a_plan_gives_the_same_result_again_and_a_wrong_one_its_lines() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulation");
    let _ = fs::remove_dir_all(&home);
    let out = home.join("out");
    let arguments = ["sim", "experiments/plans/noisy-neighbour.toml", "--json", "--out", out.to_str().unwrap()];
    let result = || -> ResultFile {
        let done = fairlane(&arguments);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice(&done.stdout).unwrap()
    };
    let (first, second) = (result(), result());
    assert_eq!((&first.metrics, &first.series), (&second.metrics, &second.series));
    assert_eq!(first.metrics["guarantees_broken"].value, 0.0, "{:?}", first.warnings);
    assert!(out.join("report.html").exists() && ResultFile::read(&out.join("result.json")).is_ok());

    let wrong = home.join("wrong.toml");
    fs::write(&wrong, "seconds = 1\n[[host]]\nname = \"a\"\nvif = [{ name = \"x\", weigth = 1 }]\n").unwrap();
    let done = fairlane(&["sim", wrong.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{errors}");
    assert!(errors.contains("wrong.toml:4: unknown key `weigth`") && errors.contains("weight"), "{errors}");
    let done = fairlane(&["sim", "--experiment", "alltoall"]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("is not simulated"), "{done:?}");
}
