//! A result as plain text for a terminal.

use std::fmt::Write;

use crate::Verdict;
use crate::label::{clean, interval, quantity};
use crate::result::{About, ResultFile};

/// Warnings, claims with their verdicts, then metrics, in aligned columns.
pub fn summary(result: &ResultFile) -> String {
    let machine = result.machine.as_ref().map_or(String::new(), |machine| format!(" on {}", clean(machine)));
    let mut text = format!("{}{machine}, {}\n", clean(&result.experiment), result.started);
    for warning in &result.warnings {
        let _ = writeln!(text, "WARNING: {}", clean(warning));
    }
    let claims = result.claims.iter().map(|claim| {
        let verdict = match (claim.verdict, claim.about) {
            (Verdict::Holds, _) => "ok",
            (Verdict::DoesNotHold, About::Fairlane) => "FAILS",
            (Verdict::DoesNotHold, About::Source) => "differs",
            (Verdict::Undecided, _) => "undecided",
            (Verdict::NotMeasured, _) => "not measured",
        };
        let ours = claim.ours.as_ref().map_or(String::new(), |ours| format!(" (ours: {})", clean(ours)));
        let text = clean(&claim.text) + &ours;
        [verdict.to_owned(), text, clean(&claim.expected), clean(&claim.measured)]
    });
    let claims = table(["", "claim", "expected", "measured"], [false; 4], claims.collect());
    let metrics = result.metrics.iter().map(|(name, metric)| {
        let value = quantity(metric.value, &clean(&metric.unit));
        [clean(name), value, interval(metric.ci95), metric.n.to_string()]
    });
    let metrics = table(["metric", "value", "95% interval", "n"], [false, true, true, true], metrics.collect());
    for table in [claims, metrics].iter().filter(|table| !table.is_empty()) {
        let _ = write!(text, "\n{table}");
    }
    if !result.claims.is_empty() {
        let held = result.claims.iter().filter(|claim| claim.verdict == Verdict::Holds).count();
        let _ = writeln!(text, "\n{held} of {} claims hold", result.claims.len());
    }
    text
}

/// A table in aligned columns; empty if it has no rows. `right` tells which columns are aligned to the right.
pub fn table<const N: usize>(head: [&str; N], right: [bool; N], rows: Vec<[String; N]>) -> String {
    let mut text = String::new();
    if rows.is_empty() {
        return text;
    }
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let cells =
            row.iter().zip(widths).zip(right).map(|((cell, width), right)| {
                if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
