//! The doctor's report, as text and as JSON.

use super::advice::Advice;
use super::finding::Finding;
use super::view::{Change, percent};
use serde::Serialize;
use std::fmt::Write;

/// The version of the JSON report.
const SCHEMA: u32 = 1;

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: u32,
    /// Seconds between the two readings.
    seconds: f64,
    /// Connections accepted per second.
    accepted_per_second: f64,
    /// Connections opened per second.
    opened_per_second: f64,
    /// Fraction of the processors' time that was not idle, 0 to 1. So are the next two, for interrupts and stolen time.
    busy: f64,
    interrupts: f64,
    steal: f64,
    /// How the user's command ended, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    /// The findings, the most limiting first.
    pub findings: Vec<Finding>,
    /// Commonly recommended settings, and whether they help.
    settings: Vec<Advice>,
}

impl Report {
    /// Combines the findings with the figures of the whole machine.
    pub(super) fn new(
        change: &Change,
        command: Option<String>,
        findings: Vec<Finding>,
        settings: Vec<Advice>,
    ) -> Report {
        let all = change.all_cpus();
        Report {
            schema: SCHEMA,
            seconds: change.seconds,
            accepted_per_second: change.rate(change.grown("Tcp", "PassiveOpens")),
            opened_per_second: change.rate(change.grown("Tcp", "ActiveOpens")),
            busy: all.busy,
            interrupts: all.interrupts,
            steal: all.steal,
            command,
            findings,
            settings,
        }
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{:.1} s: {:.0} connections accepted/s, {:.0} opened/s; processors {} busy ({} interrupts, {} stolen)\n",
            self.seconds,
            self.accepted_per_second,
            self.opened_per_second,
            percent(self.busy),
            percent(self.interrupts),
            percent(self.steal)
        );
        if let Some(command) = &self.command {
            let _ = writeln!(text, "WARNING: {command}");
        }
        if self.findings.is_empty() {
            text += "\nNo limit found.\n";
        }
        for (number, finding) in (1..).zip(&self.findings) {
            let _ = writeln!(text, "\n{number}. {} ({})", finding.cause, finding.confidence.name());
            let _ = writeln!(text, "   seen    {}", finding.seen);
            let _ = writeln!(text, "   why     {}", finding.why);
            for (index, remedy) in finding.change.iter().enumerate() {
                let _ = writeln!(text, "   {:<7} {}", if index == 0 { "change" } else { "" }, remedy.text);
            }
        }
        for advice in &self.settings {
            let set = advice.set.as_ref().map_or(String::new(), |set| format!(" (set in {set})"));
            let _ = write!(text, "\n{}{set} {}: {}\n", advice.setting, advice.verdict.text(), advice.why);
        }
        text
    }
}
