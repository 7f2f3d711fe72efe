//! Consistency rules of a result file, checked when it is read and when it is written.

use std::collections::BTreeSet;

use crate::result::{At, Figure, Kind, Metric, ResultFile, SCHEMA};

/// A rule that a result breaks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// The place in the file, as a path such as `series[2].points[7]`.
    pub place: String,
    /// What is wrong, and what would be valid.
    pub problem: String,
}

fn rule(holds: bool, place: impl FnOnce() -> String, problem: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { place: place(), problem: problem() }) }
}

impl ResultFile {
    pub(crate) fn check(&self) -> Result<(), Broken> {
        rule(self.schema == SCHEMA, || "schema".into(), || format!("is `{}`, must be `{SCHEMA}`", self.schema))?;
        rule(!self.experiment.is_empty(), || "experiment".into(), || "is empty, must name the experiment".into())?;
        self.check_series()?;
        let mut titles = BTreeSet::new();
        for (index, figure) in self.figures.iter().enumerate() {
            let place = format!("figures[{index}]");
            let first = titles.insert(figure.title.as_str());
            rule(first, || format!("{place}.title"), || format!("`{}` is taken by an earlier figure", figure.title))?;
            self.check_figure(figure, &place)?;
        }
        for (name, metric) in &self.metrics {
            check_metric(metric, &format!("metrics.{name}"))?;
        }
        for (index, claim) in self.claims.iter().enumerate() {
            let title = claim.figure.as_deref();
            let known = title.is_none_or(|title| titles.contains(title));
            let problem = || format!("no figure has the title `{}`", title.unwrap_or_default());
            rule(known, || format!("claims[{index}].figure"), problem)?;
        }
        Ok(())
    }

    fn check_series(&self) -> Result<(), Broken> {
        let mut names = BTreeSet::new();
        for (index, series) in self.series.iter().enumerate() {
            let place = || format!("series[{index}].name");
            rule(!series.name.is_empty(), place, || "is empty, must name the series".into())?;
            let first = names.insert(&series.name);
            rule(first, place, || format!("`{}` is taken by an earlier series", series.name))?;
            for (at, [x, _]) in series.points.iter().enumerate() {
                let place = || format!("series[{index}].points[{at}][0]");
                rule(x.is_finite(), place, || "is no number; only the value may be null".into())?;
            }
        }
        Ok(())
    }

    fn check_figure(&self, figure: &Figure, place: &str) -> Result<(), Broken> {
        let mut units = None;
        for (index, name) in figure.series.iter().enumerate() {
            let place = || format!("{place}.series[{index}]");
            let Some(series) = self.find(name) else {
                return Err(Broken { place: place(), problem: format!("there is no series `{name}`") });
            };
            let own = (&series.unit, &series.x.unit);
            let same = own == *units.get_or_insert(own);
            rule(same, place, || format!("`{name}` has other units than the figure's first series"))?;
            let count = figure.categories.len();
            if figure.kind == Kind::Bars && count > 0 {
                let named = |x: f64| x.fract() == 0.0 && (0.0..count as f64).contains(&x);
                let stray = series.points.iter().find(|point| !named(point[0]));
                let problem =
                    || format!("x = {} has no name; whole numbers below {count} have one", stray.map_or(0.0, |p| p[0]));
                rule(stray.is_none(), place, problem)?;
            }
        }
        for (index, mark) in figure.marks.iter().enumerate() {
            let (At::X(at) | At::Y(at)) = mark.at;
            rule(at.is_finite(), || format!("{place}.marks[{index}]"), || "is at no number".into())?;
        }
        Ok(())
    }
}

fn check_metric(metric: &Metric, place: &str) -> Result<(), Broken> {
    if let Some([low, high]) = metric.ci95 {
        let ordered = low.is_finite() && high.is_finite() && low <= high;
        rule(ordered, || format!("{place}.ci95"), || format!("[{low}, {high}] is not [low, high]"))?;
    }
    if !metric.samples.is_empty() {
        let n = metric.samples.iter().filter(|sample| sample.is_finite()).count();
        rule(n == metric.n, || format!("{place}.n"), || format!("is {}, but there are {n} samples", metric.n))?;
    }
    Ok(())
}
