//! The text and tables of a page: verdicts, claims, metrics, settings, host.

use maud::{Markup, html};
use serde_json::Value;

use crate::Verdict;
use crate::label::{clean, interval, quantity};
use crate::result::{About, Claim, ResultFile};

/// A claim's verdict as a word, and its CSS class.
fn outcome(claim: &Claim) -> (&'static str, &'static str) {
    match (claim.verdict, claim.about) {
        (Verdict::Holds, _) => ("✓ holds", "good"),
        (Verdict::DoesNotHold, About::Fairlane) => ("✗ fails", "bad"),
        (Verdict::DoesNotHold, About::Source) => ("≠ differs", "found"),
        (Verdict::Undecided, _) => ("? undecided", "found"),
        (Verdict::NotMeasured, _) => ("- not measured", "found"),
    }
}

pub(super) fn chip(claim: &Claim) -> Markup {
    let (word, class) = outcome(claim);
    html! { span.chip.(class) title=(clean(&claim.text)) { (word) } }
}

/// The number of a result's claims for each verdict, and the number of its warnings.
pub(super) fn tally(result: &ResultFile) -> Markup {
    let mut outcomes: Vec<((&str, &str), usize)> = Vec::new();
    for claim in &result.claims {
        match outcomes.iter_mut().find(|(known, _)| *known == outcome(claim)) {
            Some((_, count)) => *count += 1,
            None => outcomes.push((outcome(claim), 1)),
        }
    }
    outcomes.sort_by_key(|((_, class), _)| ["good", "found", "bad"].iter().position(|known| known == class));
    html! {
        @for ((word, class), count) in &outcomes { span.chip.(class) { (word) " " (count) } " " }
        @if outcomes.is_empty() { "no claims" }
        @if !result.warnings.is_empty() {
            span.chip.found title=(clean(&result.warnings.join("\n"))) { "⚠ warnings " (result.warnings.len()) }
        }
    }
}

/// The verdict on all results, in words.
pub(super) fn verdict(results: &[&ResultFile]) -> Markup {
    let count = |about| {
        let all = results.iter().flat_map(|result| &result.claims);
        let claims: Vec<_> = all.filter(|claim| claim.about == about).collect();
        let number = |verdict| claims.iter().filter(|claim| claim.verdict == verdict).count();
        let open = [(Verdict::Undecided, "undecided"), (Verdict::NotMeasured, "not measured")];
        let open: Vec<_> = open.into_iter().map(|(verdict, word)| (number(verdict), word)).collect();
        (number(Verdict::Holds), claims.len(), open)
    };
    let ((ours, of_ours, our_open), (theirs, of_theirs, their_open)) = (count(About::Fairlane), count(About::Source));
    let hold = |n: usize, of: usize, open: &[(usize, &str)], about: &str| {
        let open: Vec<_> = open.iter().filter(|(count, _)| *count > 0).collect();
        match (n, of, &open[..]) {
            (1, 1, _) => format!("The claim about {about} holds"),
            (0, 1, []) => format!("The claim about {about} does not hold"),
            (0, 1, [(_, word), ..]) => format!("The claim about {about}: {word}"),
            (n, of, _) if n == of => format!("All {of} claims about {about} hold"),
            (n, of, open) => {
                let open: String = open.iter().map(|(count, word)| format!(", {count} {word}")).collect();
                format!("{n} of {of} claims about {about} hold{open}")
            }
        }
    };
    html! {
        @if of_ours > 0 {
            p.verdict.(if ours == of_ours { "good" } else { "bad" }) { (hold(ours, of_ours, &our_open, "Fairlane")) "." }
        }
        @if of_theirs > 0 {
            p.verdict.(if theirs == of_theirs { "good" } else { "found" }) {
                (hold(theirs, of_theirs, &their_open, "other work")) "."
            }
        }
        @if of_ours + of_theirs == 0 { p.verdict { "No claims are made." } }
    }
}

/// A claim in words, with its source and what of it is ours.
pub(super) fn text(claim: &Claim) -> Markup {
    html! {
        (clean(&claim.text))
        span.source { (clean(&claim.source)) @if let Some(ours) = &claim.ours { "; ours: " (clean(ours)) } }
    }
}

pub(super) fn claims(claims: &[Claim]) -> Markup {
    html! {
        table {
            thead { tr { th { "Claim" } th { "Expected" } th { "Measured" } th { "Verdict" } } }
            tbody {
                @for claim in claims {
                    tr {
                        td data-head="Claim" { (text(claim)) }
                        td data-head="Expected" { (clean(&claim.expected)) }
                        td data-head="Measured" { (clean(&claim.measured)) }
                        td data-head="Verdict" { (chip(claim)) }
                    }
                }
            }
        }
    }
}

pub(super) fn metrics(result: &ResultFile) -> Markup {
    html! {
        table {
            thead { tr { th { "Metric" } th.n { "Value" } th.n { "95% interval" } th.n { "Samples" } } }
            tbody {
                @for (name, metric) in &result.metrics {
                    tr {
                        td { code { (clean(name)) } }
                        td.n data-head="Value" { (quantity(metric.value, &clean(&metric.unit))) }
                        td.n data-head="95% interval" { (interval(metric.ci95)) }
                        td.n data-head="Samples" { (metric.n) }
                    }
                }
            }
        }
    }
}

pub(super) fn settings(result: &ResultFile) -> Markup {
    html! {
        dl {
            @for (name, value) in &result.settings {
                dt { (clean(name)) }
                dd { @match value {
                    Value::String(text) => (clean(text)),
                    Value::Array(_) | Value::Object(_) => pre { (format!("{value:#}")) },
                    plain => (plain),
                } }
            }
        }
    }
}

pub(super) fn host(result: &ResultFile) -> Markup {
    let host = &result.host;
    html! {
        dl {
            dt { "processor" } dd { (clean(&host.cpu)) }
            dt { "cores" } dd { (host.cores) }
            dt { "memory" } dd { (quantity(host.memory as f64 / f64::from(1 << 30), "GiB")) }
            dt { "kernel" } dd { (clean(&host.kernel)) }
            @for (name, version) in &host.versions { dt { (clean(name)) } dd { (clean(version)) } }
        }
    }
}
