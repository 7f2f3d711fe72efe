//! One run of one experiment: its verdict, claims, figures, metrics, settings and machine.

use maud::{Markup, html};

use super::heading;
use super::tables::{self, chip, verdict};
use crate::label::clean;
use crate::plot::{self, Size};
use crate::result::{Figure, ResultFile};

/// A page with a single result.
pub(super) fn alone(result: &ResultFile) -> Markup {
    html! {
        article {
            header {
                p.kind { "Fairlane result" }
                h1 { (clean(&result.experiment)) @if let Some(machine) = &result.machine { " on " (clean(machine)) } }
                (when(result))
                (verdict(&[result]))
                (warnings(result))
            }
            (source(result))
            @if !result.claims.is_empty() { section { h2 { "Claims" } (tables::claims(&result.claims)) } }
            @if !result.figures.is_empty() {
                section { h2 { "Figures" } @for shown in &result.figures { (figure(result, shown, 3)) } }
            }
            @if !result.metrics.is_empty() { section { h2 { "Metrics" } (tables::metrics(result)) } }
            div.pair {
                @if !result.settings.is_empty() { section { h2 { "Settings" } (tables::settings(result)) } }
                section { h2 { "Machine" } (tables::host(result)) }
            }
        }
    }
}

/// A result among others of its experiment, after the experiment's source. Its claims are shown if `claims` is set; `id` is the
/// target of links.
pub(super) fn among(result: &ResultFile, id: &str, label: &str, claims: bool) -> Markup {
    html! {
        article.run #(id) {
            h3 { (label) }
            (when(result))
            (warnings(result))
            @if claims && !result.claims.is_empty() { (tables::claims(&result.claims)) }
            @for shown in &result.figures { (figure(result, shown, 4)) }
            @if !result.metrics.is_empty() {
                details { summary { "Metrics " span.count { (result.metrics.len()) } } (tables::metrics(result)) }
            }
            @if !result.settings.is_empty() {
                details { summary { "Settings " span.count { (result.settings.len()) } } (tables::settings(result)) }
            }
            details { summary { "Host" } (tables::host(result)) }
        }
    }
}

/// The source's figure, in words.
pub(super) fn source(result: &ResultFile) -> Markup {
    html! {
        @if let Some(source) = &result.source {
            p.shows { strong { "The source shows (" (clean(&source.name)) "):" } " " (clean(&source.figure)) }
        }
    }
}

fn when(result: &ResultFile) -> Markup {
    html! {
        p.when {
            time datetime=(result.started) { (result.started.strftime("%-d %B %Y, %H:%M UTC")) }
            " · " (clean(&result.host.cpu)) ", " (result.host.cores) " cores · Linux " (clean(&result.host.kernel))
        }
    }
}

fn warnings(result: &ResultFile) -> Markup {
    html! { @for warning in &result.warnings { p.verdict.found.warning { "⚠ " (clean(warning)) } } }
}

fn figure(result: &ResultFile, figure: &Figure, level: u8) -> Markup {
    let title = html! {
        (clean(&figure.title))
        @for claim in result.claims.iter().filter(|claim| claim.figure.as_ref() == Some(&figure.title)) {
            " " (chip(claim))
        }
    };
    html! {
        figure {
            (heading(level, title))
            @if !figure.caption.is_empty() { figcaption { (clean(&figure.caption)) } }
            (plot::svg(result, figure, Size::Wide))
            (plot::svg(result, figure, Size::Narrow))
        }
    }
}
