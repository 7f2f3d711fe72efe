//! Results as one HTML page that needs nothing but itself: styles, plots and the data are all inside.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::json;
use crate::label::{clean, interval, quantity};
use crate::plot::{self, Size};
use crate::result::{About, Claim, ResultFile};

const STYLE: &str = include_str!("style.css");

/// The page of one or several results. Its `script#results` holds them as a JSON array.
pub fn page(results: &[&ResultFile]) -> String {
    let names: Vec<_> = results.iter().map(|result| clean(&result.experiment)).collect();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Fairlane: " (names.join(", ")) }
                style { (PreEscaped(plot::THEME)) (PreEscaped(plot::STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                main { @for result in results { (article(result)) } }
                footer {
                    "Made by Fairlane " (env!("CARGO_PKG_VERSION"))
                    ". Every table and plot is computed from the samples that this page carries in "
                    code { "script#results" } "."
                }
                script #results type="application/json" { (PreEscaped(data(results))) }
            }
        }
    }
    .into_string()
}

/// The results as JSON that cannot end the script element it stands in: `<` and its kin occur only inside strings,
/// where JSON lets them be written as escapes.
fn data(results: &[&ResultFile]) -> String {
    let json = json::compact(&results);
    [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
        .into_iter()
        .fold(json, |json, (from, to)| json.replace(from, to))
}

fn article(result: &ResultFile) -> Markup {
    html! {
        article {
            header {
                p.kind { "Fairlane result" }
                h1 { (clean(&result.experiment)) }
                p.when {
                    time datetime=(result.started) { (result.started.strftime("%-d %B %Y, %H:%M UTC")) }
                    " · " (clean(&result.host.cpu)) ", " (result.host.cores) " cores · Linux " (clean(&result.host.kernel))
                }
                (verdict(result))
            }
            @if !result.claims.is_empty() { section { h2 { "Claims" } (claims(&result.claims)) } }
            @if !result.figures.is_empty() {
                section {
                    h2 { "Figures" }
                    @for figure in &result.figures {
                        figure {
                            h3 {
                                (clean(&figure.title))
                                @for claim in result.claims.iter().filter(|claim| claim.figure.as_ref() == Some(&figure.title)) {
                                    " " (chip(claim))
                                }
                            }
                            @if !figure.caption.is_empty() { figcaption { (clean(&figure.caption)) } }
                            (plot::svg(result, figure, Size::Wide))
                            (plot::svg(result, figure, Size::Narrow))
                        }
                    }
                }
            }
            @if !result.metrics.is_empty() { section { h2 { "Metrics" } (metrics(result)) } }
            div.pair {
                @if !result.settings.is_empty() { section { h2 { "Settings" } (settings(result)) } }
                section { h2 { "Machine" } (host(result)) }
            }
        }
    }
}

/// What a claim came to: its word, and the class that colours it.
fn outcome(claim: &Claim) -> (&'static str, &'static str) {
    match (claim.holds, claim.about) {
        (true, _) => ("✓ holds", "good"),
        (false, About::Fairlane) => ("✗ fails", "bad"),
        (false, About::Source) => ("≠ differs", "found"),
    }
}

fn chip(claim: &Claim) -> Markup {
    let (word, class) = outcome(claim);
    html! { span.chip.(class) title=(clean(&claim.text)) { (word) } }
}

fn verdict(result: &ResultFile) -> Markup {
    let count = |about| {
        let claims: Vec<_> = result.claims.iter().filter(|claim| claim.about == about).collect();
        (claims.iter().filter(|claim| claim.holds).count(), claims.len())
    };
    let ((ours, of_ours), (theirs, of_theirs)) = (count(About::Fairlane), count(About::Source));
    let hold = |n: usize, of: usize, about: &str| match (n, of) {
        (1, 1) => format!("The claim about {about} holds"),
        (0, 1) => format!("The claim about {about} does not hold"),
        (n, of) if n == of => format!("All {of} claims about {about} hold"),
        (n, of) => format!("{n} of {of} claims about {about} hold"),
    };
    html! {
        @if of_ours > 0 {
            p.verdict.(if ours == of_ours { "good" } else { "bad" }) { (hold(ours, of_ours, "Fairlane")) "." }
        }
        @if of_theirs > 0 {
            p.verdict.(if theirs == of_theirs { "good" } else { "found" }) {
                (hold(theirs, of_theirs, "other work")) "."
            }
        }
        @if of_ours + of_theirs == 0 { p.verdict { "This result makes no claims." } }
    }
}

fn claims(claims: &[Claim]) -> Markup {
    html! {
        table {
            thead { tr { th { "Claim" } th { "Expected" } th { "Measured" } th { "Verdict" } } }
            tbody {
                @for claim in claims {
                    tr {
                        td data-head="Claim" { (clean(&claim.text)) span.source { (clean(&claim.source)) } }
                        td data-head="Expected" { (clean(&claim.expected)) }
                        td data-head="Measured" { (clean(&claim.measured)) }
                        td data-head="Verdict" { (chip(claim)) }
                    }
                }
            }
        }
    }
}

fn metrics(result: &ResultFile) -> Markup {
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

fn settings(result: &ResultFile) -> Markup {
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

fn host(result: &ResultFile) -> Markup {
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
