//! A comparison as a result file and as text: ratios, losses, and the three plots of HAProxy Technologies (2011): connections per
//! second, bandwidth and loss, by object size.

use super::pairs::{Pair, is_rate, series_over_size, sizes};
use super::{Named, complete, reference};
use fairlane_report::text::table;
use fairlane_report::{About, Axis, Claim, Figure, ResultFile, Series, Verdict, number};
use std::fmt::Write;

/// The comparison, with all series it is based on.
pub(super) fn result(all: &[Named], pairs: &[Pair], max_loss: Option<f64>, with_reference: bool) -> ResultFile {
    let mut result = ResultFile::new("compare");
    result.setting("base", all[0].label.as_str());
    result.setting("others", all[1..].iter().map(|named| named.label.clone()).collect::<Vec<_>>());
    for named in all {
        result.setting(&format!("settings of {}", named.label), serde_json::json!(named.result.settings));
        for warning in &named.result.warnings {
            result.warn(format!("{}: {warning}", named.label));
        }
        if !complete(&named.result) {
            result.warn(format!("{} is incomplete: its run ended early", named.label));
        }
    }
    add_rates(&mut result, all);
    add_losses(&mut result, all, pairs);
    for pair in pairs {
        let size = pair.at.as_ref().map_or(String::new(), |(x, _)| format!("/{x}"));
        result.value(&format!("{}/{}{size}: ratio", pair.other, pair.name), pair.ratio, "");
    }
    if let Some(most) = max_loss {
        result.setting("max_loss_percent", most);
        result.claims.extend(pairs.iter().filter(|pair| pair.is_rate()).map(|pair| judge(pair, &all[0].label, most)));
    }
    if with_reference {
        add_reference(&mut result, all);
    }
    result
}

/// Adds each rate over size, for every result.
fn add_rates(result: &mut ResultFile, all: &[Named]) {
    for series in series_over_size(&all[0]).filter(|series| is_rate(&series.unit)) {
        let mut names = Vec::new();
        for named in all {
            if let Some(same) = series_over_size(named)
                .find(|same| same.name == series.name && same.unit == series.unit && same.x == series.x)
            {
                let name = format!("{}: {}", named.label, series.name);
                result.series(Series { name: name.clone(), group: Some(named.label.clone()), ..same.clone() });
                names.push(name);
            }
        }
        let words = words(&series.name);
        let title = format!("{words} by {}", series.x.name);
        // A single size is shown as bars, not as a line.
        let figure = if sizes(series).len() > 1 { Figure::means(&title) } else { Figure::bars(&title) };
        result.figure(figure.y(&words).series(names));
    }
}

/// Adds the loss of each rate over size.
fn add_losses(result: &mut ResultFile, all: &[Named], pairs: &[Pair]) {
    let rates: Vec<&Series> = series_over_size(&all[0]).filter(|series| is_rate(&series.unit)).collect();
    for series in rates {
        let mut names = Vec::new();
        for named in &all[1..] {
            let of = |pair: &&Pair| pair.other == named.label && pair.name == series.name && pair.at.is_some();
            let points: Vec<_> =
                pairs.iter().filter(of).filter_map(|pair| Some([pair.at.as_ref()?.0, pair.loss()])).collect();
            let name = format!("{}: loss of {}", named.label, series.name);
            result.series(Series::new(&name, "%", series.x.clone()).group(&named.label).points(points));
            names.push(name);
        }
        let words = words(&series.name).to_lowercase();
        let title = format!("Loss of {words} by {}", series.x.name);
        let figure = if sizes(series).len() > 1 { Figure::lines(&title) } else { Figure::bars(&title) };
        let caption = format!("In percent of {}; negative values are gains.", all[0].label);
        result.figure(figure.caption(&caption).y("loss").series(names));
    }
}

fn judge(pair: &Pair, base: &str, most: f64) -> Claim {
    let at = pair.at.as_ref().map_or(String::new(), |(x, axis)| format!(" at {} of {} bytes", axis.name, number(*x)));
    Claim {
        about: About::Fairlane,
        source: "--max-loss".to_owned(),
        text: format!("{} loses no more of {} than allowed{at}, compared with {base}", pair.other, pair.name),
        expected: format!("at most {most}%"),
        measured: loss(pair),
        ours: None,
        verdict: (pair.loss() <= most).into(),
        figure: None,
    }
}

/// Adds published rates and the highest rate of each result, as bars.
fn add_reference(result: &mut ResultFile, all: &[Named]) {
    let published = reference::published_for(&all[0].result);
    if published.is_empty() {
        let name = &all[0].result.experiment;
        result.warn(format!("there are no published figures for {name}, only for http, crr and rr"));
        return;
    }
    let ours = all.iter().filter_map(|named| {
        let series = series_over_size(named).find(|series| series.unit == "1/s")?;
        Some((named.label.clone(), series.values().into_iter().fold(f64::NAN, f64::max)))
    });
    let ours: Vec<(String, f64)> = ours.collect();
    let axis = || Axis::new("system", "");
    let theirs = published.iter().zip(0..).map(|(published, x)| [f64::from(x), published.rate]);
    result.series(Series::new("published", "1/s", axis()).group("published").points(theirs));
    let first = published.len();
    let points = ours.iter().enumerate().map(|(nth, (_, rate))| [(first + nth) as f64, *rate]);
    result.series(Series::new("here", "1/s", axis()).group("here").points(points));
    let categories = published.iter().map(|published| published.system.to_owned());
    let categories: Vec<String> = categories.chain(ours.iter().map(|(label, _)| label.clone())).collect();
    let mut origins: Vec<&str> = published.iter().map(|published| published.origin).collect();
    origins.dedup();
    let caption = format!(
        "Published figures are from other machines and years: {}. For the results here, the highest rate of all sizes.",
        origins.join("; ")
    );
    let figure = Figure::bars("Published figures").caption(&caption).y("connections or requests per second");
    result.figure(figure.categories(categories).series(["published", "here"]));
}

/// The table of ratios, the failed claims, and published figures if `base` is given.
pub(super) fn text(result: &ResultFile, pairs: &[Pair], base: Option<&ResultFile>) -> String {
    let mut text: String = result.warnings.iter().map(|warning| format!("WARNING: {warning}\n")).collect();
    let row = |pair: &Pair| {
        let size = pair.at.as_ref().map_or("-".to_owned(), |(x, _)| number(*x));
        let loss = if pair.is_rate() { loss(pair) } else { "-".to_owned() };
        let (name, unit) = (pair.name.clone(), pair.unit.clone());
        [
            pair.other.clone(),
            name,
            size,
            number(pair.base),
            number(pair.value),
            unit,
            format!("{:.3}", pair.ratio),
            loss,
        ]
    };
    let head = ["result", "quantity", "size", "base", "value", "unit", "ratio", "loss"];
    text += &table(head, [false, false, true, true, true, false, true, true], pairs.iter().map(row).collect());
    if let Some(base) = base {
        let row = |published: &reference::Published| {
            [published.system.to_owned(), number(published.rate), published.origin.to_owned()]
        };
        let rows = reference::published_for(base).iter().map(row).collect();
        let _ = write!(text, "\n{}", table(["published", "per second", "origin"], [false, true, false], rows));
    }
    for claim in result.claims.iter().filter(|claim| claim.verdict != Verdict::Holds) {
        let _ = writeln!(text, "\nFAILS: {}: {} lost, {}", claim.text, claim.measured, claim.expected);
    }
    text
}

/// Formats a loss with its interval.
fn loss(pair: &Pair) -> String {
    let interval = pair.loss_interval().map_or(String::new(), |[low, high]| format!(" ({low:.1} to {high:.1})"));
    format!("{:.1}%{interval}", pair.loss())
}

fn words(name: &str) -> String {
    match name {
        "connections_per_second" => "Connections per second".to_owned(),
        "requests_per_second" => "Requests per second".to_owned(),
        "throughput" => "Bandwidth".to_owned(),
        name => name.replace('_', " "),
    }
}
