//! Results as one self-contained HTML page with styles, plots and data.
//!
//! The page of several results has an overview and then, for each experiment, its source's figure in words, the verdicts side by
//! side, and each run.

mod overview;
mod run;
mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::json;
use crate::label::clean;
use crate::plot;
use crate::result::ResultFile;

const STYLE: &str = include_str!("style.css");

/// The page of one or several results. Its `script#results` holds them as a JSON array.
pub fn page(results: &[&ResultFile]) -> String {
    let mut names: Vec<_> = results.iter().map(|result| clean(&result.experiment)).collect();
    names.dedup();
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
                @match results {
                    [result] => main { (run::alone(result)) },
                    results => (overview::joined(results)),
                }
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

/// The results as JSON that cannot end the script element around it: `<` and the like occur only inside strings, where JSON
/// allows escapes.
fn data(results: &[&ResultFile]) -> String {
    let json = json::compact(&results);
    [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
        .into_iter()
        .fold(json, |json, (from, to)| json.replace(from, to))
}

/// A heading of level 1 to 4.
fn heading(level: u8, text: Markup) -> Markup {
    match level {
        1 => html! { h1 { (text) } },
        2 => html! { h2 { (text) } },
        3 => html! { h3 { (text) } },
        _ => html! { h4 { (text) } },
    }
}
