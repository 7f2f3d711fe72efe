//! Runs contestants alternately, round by round.

use crate::Run;
use anyhow::{Context, Result};
use fairlane_lab::interrupt;
use fairlane_report::{Axis, Series};

/// A contestant: a name, and a function that measures a figure, or several.
pub(crate) struct Contestant<'a, F = f64> {
    /// The name in the result.
    pub name: &'a str,
    /// Runs once and returns the figures.
    pub run: Box<dyn FnMut() -> Result<F> + 'a>,
}

impl<'a, F> Contestant<'a, F> {
    /// Creates a contestant.
    pub(crate) fn new(name: &'a str, run: impl FnMut() -> Result<F> + 'a) -> Contestant<'a, F> {
        Contestant { name, run: Box::new(run) }
    }
}

/// The figures of each contestant, by round.
pub(crate) struct Figures<F = f64>(Vec<(String, Vec<F>)>);

/// Runs every contestant once per round. The first one changes from round to round, so that the order does not always favour one.
///
/// # Errors
/// The error of a contestant.
pub(crate) fn compete<F>(
    run: &Run,
    what: &str,
    rounds: usize,
    mut contestants: Vec<Contestant<'_, F>>,
) -> Result<Figures<F>> {
    let mut figures: Vec<_> = contestants.iter().map(|one| (one.name.to_owned(), Vec::new())).collect();
    run.show(format!("{what}: {rounds} rounds of {} contestants", contestants.len()));
    for round in 0..rounds {
        for turn in 0..contestants.len() {
            interrupt::check()?;
            let index = (round + turn) % contestants.len();
            let one = &mut contestants[index];
            run.show_turn(format!("{what}: round {} of {rounds}, {}", round + 1, one.name));
            figures[index].1.push((one.run)().with_context(|| format!("{what}, {}", one.name))?);
        }
    }
    Ok(Figures(figures))
}

impl<F> Figures<F> {
    /// One of several figures.
    pub(crate) fn map(&self, of: impl Fn(&F) -> f64) -> Figures {
        Figures(self.0.iter().map(|(name, figures)| (name.clone(), figures.iter().map(&of).collect())).collect())
    }
}

impl Figures {
    /// The first contestant's figures divided by another's, per round.
    pub(crate) fn ratios(&self, other: &str) -> Vec<f64> {
        self.ratios_of(&self.0[0].0, other)
    }

    /// A contestant's figures divided by another's, per round.
    pub(crate) fn ratios_of(&self, one: &str, other: &str) -> Vec<f64> {
        let of = |wanted| self.0.iter().find(|(name, _)| name == wanted).map_or(&[][..], |(_, figures)| figures);
        of(one).iter().zip(of(other)).map(|(one, other)| one / other).collect()
    }

    /// Adds each contestant's figures as a metric, and as samples of case `case` of a bar chart. There is one series per chart and
    /// contestant.
    pub(crate) fn add_to(&self, run: &mut Run, chart: &str, case: usize, unit: &str, metric: impl Fn(&str) -> String) {
        for (name, figures) in &self.0 {
            run.result.metric(&metric(name), figures, unit);
            let points = figures.iter().map(|figure| [case as f64, *figure]);
            let series = format!("{chart}/{name}");
            match run.result.series.iter_mut().find(|known| known.name == series) {
                Some(known) => known.points.extend(points),
                None => {
                    run.result.series(Series::new(&series, unit, Axis::new("case", "")).group(name).points(points));
                }
            }
        }
    }
}
