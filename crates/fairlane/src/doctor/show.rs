//! The doctor's report: for people, and as JSON.

use super::advice::Advice;
use super::finding::Finding;
use super::view::{Change, percent};
use serde::Serialize;
use std::fmt::Write;

/// The version of the JSON report.
const SCHEMA: u32 = 1;

/// All that the doctor says.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    /// Seconds between the two readings.
    seconds: f64,
    /// Connections this machine accepted, a second.
    accepted_per_second: f64,
    /// Connections it opened, a second.
    opened_per_second: f64,
    /// Parts of the processors' time, 0 to 1.
    busy: f64,
    softirq: f64,
    steal: f64,
    /// How the user's command ended, if not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    /// What limits, the most limiting first.
    pub findings: Vec<Finding>,
    /// Settings that are passed on, and what they are worth.
    settings: Vec<Advice>,
}

impl Report {
    /// What was found, with the figures to read it by.
    pub fn new(change: &Change, command: Option<String>, findings: Vec<Finding>, settings: Vec<Advice>) -> Report {
        let all = change.cpus(true).first().copied().unwrap_or_default();
        Report {
            schema: SCHEMA,
            seconds: change.seconds,
            accepted_per_second: change.rate(change.grown("Tcp", "PassiveOpens")),
            opened_per_second: change.rate(change.grown("Tcp", "ActiveOpens")),
            busy: all.busy,
            softirq: all.softirq,
            steal: all.steal,
            command,
            findings,
            settings,
        }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:.1} s: {:.0} connections accepted/s, {:.0} opened/s; processors {} busy ({} soft interrupts, {} stolen)\n",
            self.seconds,
            self.accepted_per_second,
            self.opened_per_second,
            percent(self.busy),
            percent(self.softirq),
            percent(self.steal)
        );
        if let Some(command) = &self.command {
            let _ = writeln!(text, "WARNING: {command}");
        }
        if self.findings.is_empty() {
            text += "\nNothing found that limits.\n";
        }
        for (number, finding) in (1..).zip(&self.findings) {
            let _ = writeln!(text, "\n{number}. {} ({})", finding.cause, finding.sure.name());
            let _ = writeln!(text, "   seen    {}", finding.seen);
            let _ = writeln!(text, "   why     {}", finding.why);
            for (place, remedy) in finding.change.iter().enumerate() {
                let _ = writeln!(text, "   {:<7} {}", if place == 0 { "change" } else { "" }, remedy.text);
            }
        }
        for advice in &self.settings {
            let set = advice.set.as_ref().map_or(String::new(), |set| format!(" (set in {set})"));
            let _ = write!(text, "\n{}{set} {}: {}\n", advice.setting, advice.verdict.words(), advice.why);
        }
        text
    }
}
