//! Runs contestants alternately, round by round.

use crate::Run;
use anyhow::{Context, Result};
use fairlane_lab::interrupt;
use fairlane_report::{Axis, Series, stats};
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Half the width of a ratio's 95% interval that is narrow enough, as a fraction of the ratio.
const PRECISION: f64 = 0.03;

/// Rounds between two looks at the intervals.
const LOOK: usize = 10;

/// Most rounds of short samples for each round of the others.
const SHORT: usize = 40;

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

/// Nanoseconds that each of so many steps takes, in processor time of this thread, so that other work of the machine does not count.
pub(crate) fn spent_per(steps: u32, work: impl FnOnce()) -> Result<f64> {
    let start = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
    work();
    let spent = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?) - start;
    Ok(spent.as_nanos() as f64 / f64::from(steps))
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
    let mut figures = Figures::of(&contestants);
    run.show(format!("{what}: {rounds} rounds of {} contestants", contestants.len()));
    for round in 0..rounds {
        figures.add_round(run, &format!("{what}: round {} of {rounds}", round + 1), &mut contestants)?;
    }
    Ok(figures)
}

/// As [`compete`], with short samples: round by round, until each ratio of two contestants that is asked for is known within 3%, or
/// many rounds are over. A ratio that is not is reported as a warning.
///
/// # Errors
/// The error of a contestant.
pub(crate) fn settle(
    run: &mut Run,
    what: &str,
    ratios: &[(&str, &str)],
    mut contestants: Vec<Contestant<'_>>,
) -> Result<Figures> {
    let (mut figures, most) = (Figures::of(&contestants), SHORT * run.rounds);
    run.show(format!("{what}: up to {most} rounds of {} contestants", contestants.len()));
    for round in 1..=most {
        figures.add_round(run, &format!("{what}: round {round} of up to {most}"), &mut contestants)?;
        if round % LOOK == 0 && ratios.iter().all(|(one, other)| figures.is_known(one, other)) {
            return Ok(figures);
        }
    }
    for (one, other) in ratios.iter().filter(|(one, other)| !figures.is_known(one, other)) {
        let warning = format!("{what}: after {most} rounds, {one} over {other} is not known within 3%");
        run.print(&warning);
        run.result.warnings.push(warning);
    }
    Ok(figures)
}

impl<F> Figures<F> {
    /// None yet.
    fn of(contestants: &[Contestant<'_, F>]) -> Figures<F> {
        Figures(contestants.iter().map(|one| (one.name.to_owned(), Vec::new())).collect())
    }

    /// Runs every contestant once. The first one changes from round to round.
    fn add_round(&mut self, run: &Run, what: &str, contestants: &mut [Contestant<'_, F>]) -> Result<()> {
        let round = self.0[0].1.len();
        for turn in 0..contestants.len() {
            interrupt::check()?;
            let index = (round + turn) % contestants.len();
            let one = &mut contestants[index];
            run.show_turn(format!("{what}, {}", one.name));
            self.0[index].1.push((one.run)().with_context(|| format!("{what}, {}", one.name))?);
        }
        Ok(())
    }

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

    /// Whether the median ratio of two contestants is known within [`PRECISION`].
    fn is_known(&self, one: &str, other: &str) -> bool {
        let ratios = self.ratios_of(one, other);
        let interval = stats::bootstrap(&ratios, stats::median).zip(stats::median(&ratios));
        interval.is_some_and(|([low, high], median)| high - low <= 2.0 * PRECISION * median)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of a contestant beside one whose figures are all 10.
    fn beside_ten(figures: &[f64]) -> Figures {
        Figures(vec![("one".to_owned(), figures.to_vec()), ("ten".to_owned(), vec![10.0; figures.len()])])
    }

    #[test]
    fn a_ratio_is_known_once_its_interval_is_narrow() {
        assert!(!beside_ten(&[20.0]).is_known("one", "ten"), "one sample has no interval");
        assert!(beside_ten(&[20.0, 20.2, 19.8, 20.1, 19.9]).is_known("one", "ten"));
        let wide = [15.0, 25.0, 18.0, 22.0, 20.0];
        assert!(!beside_ten(&wide).is_known("one", "ten"));
        // The same spread, with many samples.
        assert!(!beside_ten(&wide.repeat(4)).is_known("one", "ten"));
        let many: Vec<f64> = (0..1_000).map(|index| 15.0 + f64::from(index) / 100.0).collect();
        assert!(beside_ten(&many).is_known("one", "ten"));
    }
}
