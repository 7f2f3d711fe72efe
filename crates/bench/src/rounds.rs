//! Contestants that run one after the other, round by round.

use crate::{Run, interrupt};
use anyhow::{Context, Result};
use fairlane_report::{Axis, Series};

/// Who competes: a name, and what runs once and answers a figure.
pub struct Contestant<'a> {
    /// The name in the result.
    pub name: &'a str,
    /// One run.
    pub run: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Contestant<'a> {
    /// A contestant.
    pub fn new(name: &'a str, run: impl FnMut() -> Result<f64> + 'a) -> Contestant<'a> {
        Contestant { name, run: Box::new(run) }
    }
}

/// The figures of each contestant, a round each.
pub struct Figures(Vec<(String, Vec<f64>)>);

/// Has every contestant run once a round. Who begins changes from round to round, so that none always follows the same.
///
/// # Errors
/// What a contestant says.
pub fn compete(run: &Run, what: &str, rounds: usize, mut contestants: Vec<Contestant<'_>>) -> Result<Figures> {
    let mut figures: Vec<_> = contestants.iter().map(|one| (one.name.to_owned(), Vec::new())).collect();
    run.doing(format!("{what}: {rounds} rounds of {} contestants", contestants.len()));
    for round in 0..rounds {
        for turn in 0..contestants.len() {
            interrupt::check()?;
            let index = (round + turn) % contestants.len();
            let one = &mut contestants[index];
            run.turn(format!("{what}: round {} of {rounds}, {}", round + 1, one.name));
            figures[index].1.push((one.run)().with_context(|| format!("{what}, {}", one.name))?);
        }
    }
    Ok(Figures(figures))
}

impl Figures {
    /// The first contestant's figures over another's, round by round.
    pub fn ratios(&self, other: &str) -> Vec<f64> {
        let theirs = self.0.iter().find(|(name, _)| name == other).map_or(&[][..], |(_, figures)| figures);
        self.0[0].1.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
    }

    /// Keeps a contestant's figures as a metric and as samples at place `x` of a bar chart. Series of one `chart` and
    /// contestant are one.
    pub fn keep(&self, run: &mut Run, chart: &str, place: usize, unit: &str, metric: impl Fn(&str) -> String) {
        for (name, figures) in &self.0 {
            run.result.metric(&metric(name), figures, unit);
            let points = figures.iter().map(|figure| [place as f64, *figure]);
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
