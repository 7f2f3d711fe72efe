//! Runs contestants alternately, round by round.

use crate::Run;
use anyhow::{Context, Result};
use fairlane_lab::interrupt;
use fairlane_report::{Axis, Series, stats};
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Half the width of a ratio's 95% interval that is narrow enough, as a fraction of the ratio.
const PRECISION: f64 = 0.03;

/// Rounds between two looks at the intervals.
const LOOK: usize = 10;

/// Fewest rounds until intervals are believed, if there is time for them: stopping at the first narrow one would favour chance.
const LEAST: usize = 100;

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

/// As [`compete`], with short samples: at least [`LEAST`] rounds, until each ratio of two contestants that is asked for is known
/// within 3%, or the time for a comparison is over. A ratio that is not known then is reported as a warning.
///
/// # Errors
/// The error of a contestant.
pub(crate) fn settle(
    run: &mut Run,
    what: &str,
    ratios: &[(&str, &str)],
    mut contestants: Vec<Contestant<'_>>,
) -> Result<Figures> {
    let (mut figures, start) = (Figures::of(&contestants), Instant::now());
    run.show(format!("{what}: rounds of {} contestants, at most {} s", contestants.len(), run.seconds));
    let mut reached = String::new();
    for round in 1.. {
        figures.add_round(run, &format!("{what}: round {round}{reached}"), &mut contestants)?;
        let over = start.elapsed() >= Duration::from_secs(run.seconds.into());
        if round % LOOK == 0 || over {
            let widths: Vec<f64> = ratios.iter().map(|(one, other)| figures.half_width(one, other)).collect();
            if over || round >= LEAST && widths.iter().all(|width| *width <= PRECISION) {
                break;
            }
            let widest = widths.iter().copied().fold(0.0, f64::max);
            reached = format!(", known within {:.1}%", widest * 100.0);
        }
    }
    for (one, other) in ratios {
        let width = figures.half_width(one, other);
        if width > PRECISION {
            let rounds = figures.rounds();
            let warning = format!(
                "{what}: after {rounds} rounds, {one} over {other} is known within {:.1}%, not 3%",
                width * 100.0
            );
            run.print(&warning);
            run.result.warnings.push(warning);
        }
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
        let round = self.rounds();
        for turn in 0..contestants.len() {
            interrupt::check()?;
            let index = (round + turn) % contestants.len();
            let one = &mut contestants[index];
            run.show_turn(format!("{what}, {}", one.name));
            self.0[index].1.push((one.run)().with_context(|| format!("{what}, {}", one.name))?);
        }
        Ok(())
    }

    /// The number of rounds.
    fn rounds(&self) -> usize {
        self.0[0].1.len()
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

    /// Half the width of the 95% interval of two contestants' median ratio, as a fraction of it. Infinite if it has none.
    fn half_width(&self, one: &str, other: &str) -> f64 {
        let ratios = self.ratios_of(one, other);
        let interval = stats::bootstrap(&ratios, stats::median).zip(stats::median(&ratios));
        interval.map_or(f64::INFINITY, |([low, high], median)| (high - low) / 2.0 / median)
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
    fn an_interval_narrows_with_samples() {
        let width = |figures: &[f64]| beside_ten(figures).half_width("one", "ten");
        assert_eq!(width(&[20.0]), f64::INFINITY, "one sample has no interval");
        assert!(width(&[20.0, 20.2, 19.8, 20.1, 19.9]) < PRECISION);
        let wide = [15.0, 25.0, 18.0, 22.0, 20.0];
        assert!(width(&wide) > PRECISION);
        // The same spread, with many samples.
        assert!(width(&wide.repeat(4)) > PRECISION);
        let many: Vec<f64> = (0..1_000).map(|index| 15.0 + f64::from(index) / 100.0).collect();
        assert!(width(&many) < PRECISION);
    }

    /// What slows a whole round down does not change its ratios, so they are known where no rate is.
    #[test]
    fn slow_phases_cancel() {
        let speed = |round: usize| if round % 14 < 7 { 1.0 } else { 0.5 };
        let of = |rate: f64| (0..100).map(|round| rate * speed(round) * (1.0 + (round % 3) as f64 / 100.0)).collect();
        let figures = Figures(vec![("one".to_owned(), of(12.0)), ("other".to_owned(), of(10.0))]);
        assert_eq!(stats::median(&figures.ratios("other")).map(|ratio| (ratio * 100.0).round()), Some(120.0));
        assert!(figures.half_width("one", "other") < 0.001);
        assert!(figures.map(|rate| *rate).0[0].1.iter().any(|rate| *rate < 7.0));
    }
}
