//! A sweep's results: the best point, and what each setting does.

use crate::grid::{Goal, Grid};
use crate::rows::{Row, number};
use crate::store::Store;
use fairlane_report::{Axis, Figure, Metric, ResultFile, Series, stats};
use std::collections::BTreeMap;
use toml::Value;

/// Most values of a setting that is an axis of a map.
const CELLS: usize = 40;

/// Most maps.
const MAPS: usize = 3;

/// Names of the series of two goals.
const ALL: &str = "points";
const FRONT: &str = "front";

/// A point with the means of its repeats.
struct Mean<'a> {
    values: &'a [Value],
    /// By metric: the values of the repeats.
    samples: Vec<Vec<f64>>,
}

impl Mean<'_> {
    fn of(&self, metric: usize) -> Option<f64> {
        stats::mean(&self.samples[metric])
    }
}

/// The results of a sweep, as far as it is done.
///
/// Figures show the mean of a point's repeats. The goals are the grid's first metrics.
pub fn result(grid: &Grid, store: &Store, rows: &[Row]) -> ResultFile {
    let mut result = ResultFile::new(&grid.name);
    result.machine(grid.base.machine());
    let (runs, time) = if grid.is_experiment() { ("runs", "measured_in") } else { ("simulations", "simulated_in") };
    result.setting("grid", grid.text.as_str()).setting(grid.base.noun(), grid.base.text.as_str());
    let points = means(grid, rows);
    result.value("points", points.len() as f64, "");
    result.value(runs, rows.len() as f64, "");
    result.value(time, rows.iter().map(|row| row.seconds).sum(), "s");
    if (points.len() as u64) < grid.points() {
        result.warn(format!("{} of {} points are done, in {}.", points.len(), grid.points(), store.path().display()));
    }
    let wrong = || rows.iter().filter_map(|row| Some((row.point, row.error.as_deref()?)));
    if let Some((point, why)) = wrong().next() {
        result.warn(format!("{} points failed, the first of them {point}: {why}", wrong().count()));
    }
    let points: Vec<Mean> = points.into_values().collect();
    add_best(&mut result, grid, &points);
    add_front(&mut result, grid, &points);
    for setting in 0..grid.settings.len() {
        add_effect(&mut result, grid, &points, setting);
    }
    add_maps(&mut result, grid, &points);
    result
}

fn means<'a>(grid: &Grid, rows: &'a [Row]) -> BTreeMap<u64, Mean<'a>> {
    let mut points = BTreeMap::new();
    for row in rows {
        let empty = || Mean { values: &row.values, samples: vec![Vec::new(); grid.metrics.len()] };
        let point = points.entry(row.point).or_insert_with(empty);
        for (samples, value) in point.samples.iter_mut().zip(&row.metrics) {
            samples.extend(value.is_finite().then_some(*value));
        }
    }
    points
}

/// Whether a value is better than another by a goal.
fn is_better(goal: &Goal, value: f64, than: f64) -> bool {
    if goal.highest { value > than } else { value < than }
}

/// The settings of the best point, in the order of the grid, as the result has them.
pub fn best(grid: &Grid, result: &ResultFile) -> Vec<(String, String)> {
    let setting = |column: &String| {
        let value = result.settings.get(&best_key(column))?;
        Some((column.clone(), value.as_str()?.to_owned()))
    };
    grid.settings.iter().filter_map(|own| setting(&own.column)).collect()
}

fn best_key(column: &str) -> String {
    format!("best/{column}")
}

/// The point that is best by the first goal.
fn add_best(result: &mut ResultFile, grid: &Grid, points: &[Mean]) {
    let goal = &grid.goals[0];
    let mut best: Option<(&Mean, f64)> = None;
    for point in points {
        if let Some(value) = point.of(0).filter(|value| best.is_none_or(|(_, than)| is_better(goal, *value, than))) {
            best = Some((point, value));
        }
    }
    let Some((best, _)) = best else { return };
    for (setting, value) in grid.settings.iter().zip(best.values) {
        result.setting(&best_key(&setting.column), text(value));
    }
    for (metric, samples) in grid.metrics.iter().zip(&best.samples) {
        result.metrics.insert(format!("best/{metric}"), Metric::mean_student(samples, ""));
    }
}

/// Points by two goals, and those of them that no other betters in both.
fn add_front(result: &mut ResultFile, grid: &Grid, points: &[Mean]) {
    let [first, second] = &grid.goals[..] else { return };
    let mut both: Vec<[f64; 2]> = points.iter().filter_map(|point| Some([point.of(0)?, point.of(1)?])).collect();
    let axis = || Axis::new(&first.metric, "");
    result.series(Series::new(ALL, "", axis()).group(ALL).points(both.iter().copied()));
    let order = |goal: &Goal, a: f64, b: f64| if goal.highest { b.total_cmp(&a) } else { a.total_cmp(&b) };
    both.sort_by(|a, b| order(first, a[0], b[0]).then(order(second, a[1], b[1])));
    let mut front: Vec<[f64; 2]> = Vec::new();
    for point in both {
        if front.last().is_none_or(|last| is_better(second, point[1], last[1])) {
            front.push(point);
        }
    }
    result.series(Series::new(FRONT, "", axis()).group(FRONT).points(front));
    let caption =
        format!("Of each point of the front no other is better in both: {} and {}.", words(first), words(second));
    result.figure(Figure::points("Front").series([ALL, FRONT]).y(&second.metric).caption(&caption));
}

fn words(goal: &Goal) -> String {
    format!("{} {}", if goal.highest { "highest" } else { "lowest" }, goal.metric)
}

/// What a setting does to the first goal, over all values of the others.
fn add_effect(result: &mut ResultFile, grid: &Grid, points: &[Mean], setting: usize) {
    let (column, metric) = (&grid.settings[setting].column, &grid.goals[0].metric);
    let names = names(points, setting);
    if names.len() < 2 {
        return;
    }
    let is_number = matches!(points[0].values[setting], Value::Integer(_) | Value::Float(_));
    let x = |point: &Mean| {
        if is_number { number(&point.values[setting]) } else { place(&names, &point.values[setting]) }
    };
    let name = format!("{metric} by {column}");
    let samples = points.iter().filter_map(|point| Some([x(point), point.of(0)?]));
    result.series(Series::new(&name, "", Axis::new(column, "")).group(metric).points(samples));
    let figure =
        if is_number { Figure::points(&name) } else { Figure::bars(&name).categories(names.values().cloned()) };
    result.figure(figure.series([&name]).x(column).y(metric).caption("With all values of the other settings."));
}

/// The first goal by two settings at a time.
fn add_maps(result: &mut ResultFile, grid: &Grid, points: &[Mean]) {
    let all: Vec<_> = (0..grid.settings.len()).map(|setting| (setting, names(points, setting))).collect();
    let short: Vec<_> = all.iter().filter(|(_, names)| (2..=CELLS).contains(&names.len())).collect();
    let pairs = short.iter().enumerate().flat_map(|(at, x)| short[at + 1..].iter().map(move |y| (*x, *y)));
    for ((x, xs), (y, ys)) in pairs.take(MAPS) {
        let (column_x, column_y, metric) =
            (&grid.settings[*x].column, &grid.settings[*y].column, &grid.goals[0].metric);
        let title = format!("{metric} by {column_x} and {column_y}");
        let mut figure = Figure::heat(&title).x(column_x).y(metric).categories(xs.values().cloned());
        for (key, label) in ys {
            let name = format!("{title}: {label}");
            let row = points.iter().filter(|point| sort_key(&point.values[*y]) == *key);
            let samples = row.filter_map(|point| Some([place(xs, &point.values[*x]), point.of(0)?]));
            result.series(Series::new(&name, "", Axis::new(column_x, "")).group(label).points(samples));
            figure = figure.series([name]);
        }
        result.figure(figure.caption(&format!("Rows: {column_y}. Over all values of the other settings.")));
    }
}

/// The values of a setting in order, as texts.
fn names(points: &[Mean], setting: usize) -> BTreeMap<(u64, String), String> {
    points.iter().map(|point| &point.values[setting]).map(|value| (sort_key(value), text(value))).collect()
}

/// Numbers by size, words by letters.
fn sort_key(value: &Value) -> (u64, String) {
    match value {
        Value::Integer(_) | Value::Float(_) => {
            // The order of the bits of positive numbers is that of the numbers, and of negative ones the opposite.
            let bits = number(value).to_bits();
            (if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }, String::new())
        }
        _ => (0, text(value)),
    }
}

/// A value's place among a setting's values.
fn place(names: &BTreeMap<(u64, String), String>, value: &Value) -> f64 {
    names.range(..sort_key(value)).count() as f64
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Float(value) => value.to_string(),
        other => other.to_string(),
    }
}
