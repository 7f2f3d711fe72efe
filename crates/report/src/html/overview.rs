//! Several results on one page: a table with links to all runs, then the runs of each experiment.

use maud::{Markup, html};

use super::run;
use super::tables::{chip, tally, text, verdict};
use crate::label::clean;
use crate::result::{Claim, ResultFile};

/// The runs of one experiment, in the order given.
struct Experiment<'a> {
    name: String,
    runs: Vec<Run<'a>>,
}

struct Run<'a> {
    result: &'a ResultFile,
    /// The target of links to it.
    id: String,
    /// Its name among the experiment's runs.
    label: String,
}

/// Groups results by experiment, in the order of first occurrence.
fn group<'a>(results: &[&'a ResultFile]) -> Vec<Experiment<'a>> {
    let mut experiments: Vec<Experiment> = Vec::new();
    for (index, &result) in results.iter().enumerate() {
        let name = clean(&result.experiment);
        let run = Run { result, id: format!("run-{}", index + 1), label: machine(result) };
        match experiments.iter_mut().find(|experiment| experiment.name == name) {
            Some(experiment) => experiment.runs.push(run),
            None => experiments.push(Experiment { name, runs: vec![run] }),
        }
    }
    for experiment in &mut experiments {
        number_duplicates(&mut experiment.runs);
    }
    experiments
}

/// Numbers the runs of an experiment that have the same label.
fn number_duplicates(runs: &mut [Run]) {
    let labels: Vec<String> = runs.iter().map(|run| run.label.clone()).collect();
    for (index, run) in runs.iter_mut().enumerate() {
        if labels.iter().filter(|label| **label == labels[index]).count() > 1 {
            let before = labels[..index].iter().filter(|label| **label == labels[index]).count();
            run.label = format!("{}, run {}", run.label, before + 1);
        }
    }
}

fn machine(result: &ResultFile) -> String {
    result.machine.as_deref().map_or("this host".to_owned(), clean)
}

/// The whole page of several results, or of none.
pub(super) fn joined(results: &[&ResultFile]) -> Markup {
    let experiments = group(results);
    html! {
        nav.contents aria-label="Contents" {
            a href="#overview" { strong { "Overview" } }
            @for (index, experiment) in experiments.iter().enumerate() {
                a href=(format!("#experiment-{}", index + 1)) { (experiment.name) }
            }
        }
        main {
            header #overview {
                p.kind { "Fairlane report" }
                h1 { (counted(experiments.len(), "experiment")) ", " (counted(results.len(), "run")) }
                (when(results))
                (verdict(results))
            }
            (table(&experiments))
            @for (index, experiment) in experiments.iter().enumerate() { (section(experiment, index + 1)) }
        }
    }
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The first and the last day of measurement.
fn when(results: &[&ResultFile]) -> Markup {
    let days =
        |time: Option<jiff::Timestamp>| time.map_or(String::new(), |time| time.strftime("%-d %B %Y").to_string());
    let first = days(results.iter().map(|result| result.started).min());
    let last = days(results.iter().map(|result| result.started).max());
    html! { p.when { (first) @if first != last { " to " (last) } } }
}

/// A table of all runs with their verdicts, with links to the runs.
fn table(experiments: &[Experiment]) -> Markup {
    html! {
        table.overview {
            thead { tr { th { "Experiment" } th { "Source" } th { "Machine" } th { "Verdicts" } } }
            tbody {
                @for (index, experiment) in experiments.iter().enumerate() {
                    @for (place, run) in experiment.runs.iter().enumerate() {
                        tr.more[place > 0] {
                            td { a href=(format!("#experiment-{}", index + 1)) { (experiment.name) } }
                            td data-head="Source" {
                                @if let Some(source) = &run.result.source { (clean(&source.name)) } @else { "our own" }
                            }
                            td data-head="Machine" { a href=(format!("#{}", run.id)) { (run.label) } }
                            td data-head="Verdicts" { (tally(run.result)) }
                        }
                    }
                }
            }
        }
    }
}

fn section(experiment: &Experiment, number: usize) -> Markup {
    let side_by_side = experiment.runs.len() > 1;
    html! {
        section.experiment #(format!("experiment-{number}")) {
            h2 { (experiment.name) }
            @if let Some(first) = experiment.runs.first() { (run::source(first.result)) }
            @if side_by_side { (compared(&experiment.runs)) }
            @for run in &experiment.runs { (run::among(run.result, &run.id, &run.label, !side_by_side)) }
        }
    }
}

/// The claims of all runs, with a column per run. Two claims are the same if they differ only in the measurement and verdict.
fn compared(runs: &[Run]) -> Markup {
    let same = |a: &Claim, b: &Claim| (&a.text, &a.expected, &a.source) == (&b.text, &b.expected, &b.source);
    let mut claims: Vec<&Claim> = Vec::new();
    for claim in runs.iter().flat_map(|run| &run.result.claims) {
        if !claims.iter().any(|known| same(known, claim)) {
            claims.push(claim);
        }
    }
    html! {
        @if !claims.is_empty() {
            div.scroll {
                table {
                    thead { tr { th { "Claim" } th { "Expected" } @for run in runs { th { (run.label) } } } }
                    tbody {
                        @for claim in claims {
                            tr {
                                td { (text(claim)) }
                                td data-head="Expected" { (clean(&claim.expected)) }
                                @for run in runs {
                                    td data-head=(run.label) {
                                        @match run.result.claims.iter().find(|own| same(own, claim)) {
                                            Some(own) => { (clean(&own.measured)) " " (chip(own)) }
                                            None => "-",
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
