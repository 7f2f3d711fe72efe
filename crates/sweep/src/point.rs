//! A point of a grid, and what its runs give.

use crate::grid::Grid;
use crate::rows::Row;
use crate::setting::Source;
use fairlane_policy::problem::unknown_name;
use std::time::Instant;
use toml::Value;

/// A point: a value for each setting of its grid.
pub(crate) struct Point {
    number: u64,
    values: Vec<Value>,
}

impl Grid {
    /// A point by its number, from 0. The last setting's values change fastest, except for draws, which change faster still.
    pub(crate) fn point(&self, number: u64) -> Point {
        let mut rest = number / self.draws;
        let mut values: Vec<Value> = Vec::with_capacity(self.settings.len());
        for setting in self.settings.iter().rev() {
            values.push(match &setting.values {
                Source::Listed(listed) => {
                    let value = listed[(rest % listed.len() as u64) as usize].clone();
                    rest /= listed.len() as u64;
                    value
                }
                Source::Drawn(distribution) => setting.draw(*distribution, self.seed, number),
            });
        }
        values.reverse();
        Point { number, values }
    }
}

impl Point {
    /// Whether its values make a plan or an experiment, or why not.
    pub(crate) fn check(&self, grid: &Grid) -> Result<(), String> {
        grid.base.check(&grid.with(&self.values))
    }

    /// Runs it as often as the grid asks. If its values are wrong, or a run fails, the last row has the reason.
    pub(crate) fn run(self, grid: &Grid) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut deciding = Vec::new();
        while !grid.repeats.are_enough(&deciding) {
            let repeat = deciding.len() as u32;
            let seed = grid.seed + u64::from(repeat);
            let started = Instant::now();
            let outcome = grid.base.run(grid.with(&self.values), seed).and_then(|metrics| {
                match grid.needed().find(|name| !metrics.contains_key(*name)) {
                    Some(name) => Err(unknown_name("metric", name, metrics.keys().map(String::as_str))),
                    None => Ok(metrics),
                }
            });
            let mut row = Row { point: self.number, repeat, seed, values: self.values.clone(), ..Row::default() };
            match outcome {
                Ok(metrics) => {
                    let value = |name: &String| metrics.get(name).map_or(f64::NAN, |metric| metric.value);
                    row.metrics = grid.metrics.iter().map(value).collect();
                    deciding.push(
                        grid.repeats.metric().and_then(|name| Some(metrics.get(name)?.value)).unwrap_or(f64::NAN),
                    );
                }
                Err(why) => {
                    row.metrics = vec![f64::NAN; grid.metrics.len()];
                    row.error = Some(why);
                }
            }
            row.seconds = started.elapsed().as_secs_f64();
            let failed = row.error.is_some();
            rows.push(row);
            if failed {
                break;
            }
        }
        rows
    }
}
