//! What limits a machine while others work on it, in the words of `fairlane doctor`.

use std::{
    env, io,
    process::{Command, Stdio},
};

use fairlane_load::about;
use serde::{Deserialize, Serialize};

/// The doctor's program, which lies beside the agent.
const PROGRAM: &str = "fairlane";

/// Orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// How long to look, in seconds.
    pub seconds: f64,
}

/// A cause that limits the machine: the doctor's own words, of which its documentation tells more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The cause's short name.
    pub cause: String,
    /// How sure that is.
    pub sure: String,
    /// The part of the work, 0 to 1, that it is thought to cost.
    pub limits: f64,
    /// What was seen, with figures.
    pub seen: String,
}

/// The doctor's report, as far as it is passed on.
#[derive(Deserialize)]
struct Report {
    findings: Vec<Finding>,
}

/// Looks on; answers what limits, the most limiting first.
///
/// # Errors
/// Where the program is not there, or cannot look: its own words.
pub fn run(spec: &Spec) -> io::Result<Vec<Finding>> {
    let program = env::current_exe()?.with_file_name(PROGRAM);
    let named = |error| about(program.display())(error);
    let mut doctor = Command::new(&program);
    doctor.args(["doctor", "--json", "--seconds", &spec.seconds.to_string()]).stdin(Stdio::null());
    let output = doctor.output().map_err(named)?;
    // It tells by its status whether it found something.
    if !matches!(output.status.code(), Some(0 | 1)) {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(named(io::Error::other(format!("{}: {words}", output.status))));
    }
    let report: Report = serde_json::from_slice(&output.stdout).map_err(io::Error::from).map_err(named)?;
    Ok(report.findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_is_in_the_report() {
        let text =
            r#"{"schema":1,"findings":[{"cause":"acceptor","sure":"likely","limits":0.5,"seen":"s","why":"w"}]}"#;
        let Report { findings } = serde_json::from_str(text).unwrap();
        let words = ["acceptor", "likely", "s"].map(str::to_owned);
        let told: Vec<_> = findings.into_iter().map(|one| (one.limits, [one.cause, one.sure, one.seen])).collect();
        assert_eq!(told, [(0.5, words)]);
    }

    #[test]
    fn a_doctor_that_is_not_there_is_named() {
        let error = run(&Spec { seconds: 0.1 }).unwrap_err().to_string();
        assert!(error.contains("/fairlane: "), "{error}");
    }
}
