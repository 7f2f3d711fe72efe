//! Runs `fairlane doctor` to find what limits a node under load.

use std::{
    env, io,
    process::{Command, Stdio},
};

use fairlane_load::about;
use serde::{Deserialize, Serialize};

/// The doctor's program, in the agent's directory.
const PROGRAM: &str = "fairlane";

/// Parameters of the doctor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// How long to observe, in seconds.
    pub seconds: f64,
}

/// A cause that limits the node, as in the doctor's report; see its documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The cause's short name.
    pub cause: String,
    /// The confidence.
    pub sure: String,
    /// The estimated fraction of the work that it costs, 0 to 1.
    pub limits: f64,
    /// The evidence, with numbers.
    pub seen: String,
}

/// The part of the doctor's report that is passed on.
#[derive(Deserialize)]
struct Report {
    findings: Vec<Finding>,
}

/// Observes the node; returns the causes, the most limiting first.
///
/// # Errors
/// If the program is missing or fails, with its standard error.
pub fn run(spec: &Spec) -> io::Result<Vec<Finding>> {
    let program = env::current_exe()?.with_file_name(PROGRAM);
    let named = |error| about(program.display())(error);
    let mut doctor = Command::new(&program);
    doctor.args(["doctor", "--json", "--seconds", &spec.seconds.to_string()]).stdin(Stdio::null());
    let output = doctor.output().map_err(named)?;
    // Exit status 0 or 1: whether it found something.
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
    fn findings_are_read_from_the_report() {
        let text =
            r#"{"schema":1,"findings":[{"cause":"acceptor","sure":"likely","limits":0.5,"seen":"s","why":"w"}]}"#;
        let Report { findings } = serde_json::from_str(text).unwrap();
        let words = ["acceptor", "likely", "s"].map(str::to_owned);
        let read: Vec<_> = findings.into_iter().map(|one| (one.limits, [one.cause, one.sure, one.seen])).collect();
        assert_eq!(read, [(0.5, words)]);
    }

    #[test]
    fn an_error_names_the_missing_doctor() {
        let error = run(&Spec { seconds: 0.1 }).unwrap_err().to_string();
        assert!(error.contains("/fairlane: "), "{error}");
    }
}
