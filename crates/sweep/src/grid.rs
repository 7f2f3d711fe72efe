//! A grid file: a plan or an experiment, and the settings that its points change.

use crate::base::{Base, Lab};
use crate::named::Digests;
use crate::repeats::Repeats;
use crate::setting::{Setting, Values};
use fairlane_policy::problem::{Problem, Problems};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::{Spanned, Table, Value};

/// Most points, unless the file's `limit` says otherwise.
const LIMIT: u64 = 100_000;

/// A plan or an experiment, the settings that each point changes, and what is kept of its results.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Its name: that of its file.
    pub name: String,
    /// The file's text.
    pub text: String,
    pub(crate) base: Base,
    pub(crate) settings: Vec<Setting>,
    pub(crate) draws: u64,
    pub(crate) seed: u64,
    pub(crate) repeats: Repeats,
    pub(crate) goals: Vec<Goal>,
    /// The metrics that are kept.
    pub(crate) metrics: Vec<String>,
}

/// What a good point has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Goal {
    pub metric: String,
    pub highest: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    plan: Option<Spanned<PathBuf>>,
    experiment: Option<Spanned<PathBuf>>,
    lab: Option<Spanned<Lab>>,
    seed: Option<u64>,
    draws: Option<Spanned<u64>>,
    limit: Option<u64>,
    #[serde(default)]
    repeats: Repeats,
    goal: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    measure: Vec<String>,
    settings: Spanned<BTreeMap<Spanned<String>, Spanned<Values>>>,
}

impl Grid {
    /// Reads a grid file and its plan or experiment, and tries that with the first values of all settings, and with the last.
    ///
    /// # Errors
    /// What is wrong, by file and line.
    pub fn read(path: &Path) -> Result<Grid, Vec<Problem>> {
        let name = path.display().to_string();
        let read =
            |file: &Path| std::fs::read_to_string(file).map_err(|why| format!("cannot read {}: {why}", file.display()));
        let text = read(path).map_err(|message| vec![Problem { file: name.clone(), line: 1, message }])?;
        let mut problems = Problems::new(&name, &text);
        let file: File = match toml::from_str(&text) {
            Ok(file) => file,
            Err(error) => {
                problems.add(error.span().unwrap_or(0..0), error.message());
                return Err(problems.sorted());
            }
        };
        let (of, lab) = match base(&file) {
            Ok(base) => base,
            Err((place, wrong)) => {
                problems.add(place, wrong);
                return Err(problems.sorted());
            }
        };
        let base = path.with_file_name(of.get_ref());
        let base_text = match read(&base) {
            Ok(text) => text,
            Err(message) => {
                problems.add(of.span(), message);
                return Err(problems.sorted());
            }
        };
        // What is wrong as it stands is named by its own lines.
        let base = Base::new(base, base_text, lab)?;
        let grid = check(file, &name, base, text.clone(), &mut problems);
        match grid {
            Some(grid) if problems.is_empty() => Ok(grid),
            _ => Err(problems.sorted()),
        }
    }

    /// How many points it has.
    pub fn points(&self) -> u64 {
        let listed = self.settings.iter().filter_map(|setting| setting.values.listed());
        listed.fold(self.draws, |points, values| points.saturating_mul(values.len() as u64))
    }

    /// The files that its plan or experiment names, whatever the point.
    pub(crate) fn files(&self) -> Digests {
        self.base.files(self.settings.iter().filter_map(|setting| setting.values.listed()).flatten())
    }

    /// Whether its points are runs of an experiment: each needs a whole computer.
    pub fn is_experiment(&self) -> bool {
        self.base.is_experiment()
    }
}

/// A mistake, and where it is in the grid.
type Mistake = (Range<usize>, &'static str);

/// The file that the points change, and where it runs if it is an experiment; or what is wrong, and where.
fn base(file: &File) -> Result<(&Spanned<PathBuf>, Option<Lab>), Mistake> {
    match (&file.plan, &file.experiment, &file.lab) {
        (Some(plan), None, None) => Ok((plan, None)),
        (None, Some(experiment), Some(lab)) => Ok((experiment, Some(*lab.get_ref()))),
        (None, Some(experiment), None) => Err((
            experiment.span(),
            "an experiment needs a machine, such as lab = { machine = \"uml\", backend = \"fairlane\" }",
        )),
        (Some(_), None, Some(lab)) => Err((lab.span(), "lab says where an experiment runs; a plan is simulated")),
        (Some(_), Some(experiment), _) => Err((experiment.span(), "a grid has a plan or an experiment, not both")),
        (None, None, _) => {
            Err((0..0, "a grid needs a plan to simulate, such as plan = \"plan.toml\", or an experiment to run"))
        }
    }
}

fn check(file: File, path: &str, base: Base, text: String, problems: &mut Problems) -> Option<Grid> {
    let mut settings = Vec::new();
    for (key, values) in file.settings.get_ref() {
        match Setting::new(key.get_ref(), values.get_ref(), &base) {
            Ok(setting) => settings.push(setting),
            Err(wrong) => problems.add(key.span(), wrong),
        }
    }
    if file.settings.get_ref().is_empty() {
        problems.add(file.settings.span(), "a grid needs a setting, such as \"vif.web.weight\" = [1, 2, 4]");
    }
    let drawn = settings.iter().any(|setting| setting.values.listed().is_none());
    let draws = file.draws.as_ref().map_or(1, |draws| *draws.get_ref());
    if let Some(key) = file.draws.as_ref().filter(|_| draws == 0 || !drawn) {
        problems.add(
            key.span(),
            "draws must be 1 or more, and a setting have a distribution, such as { uniform = [1, 10] }",
        );
    }
    let mut goals = Vec::new();
    for goal in file.goal.get_ref() {
        match goal.get_ref().split_once(' ') {
            Some((word @ ("lowest" | "highest"), metric)) if !metric.trim().is_empty() => {
                goals.push(Goal { metric: metric.trim().to_owned(), highest: word == "highest" });
            }
            _ => problems
                .add(goal.span(), "a goal is `lowest METRIC` or `highest METRIC`, such as \"lowest web/wait_p99\""),
        }
    }
    if !(1..=2).contains(&file.goal.get_ref().len()) {
        problems.add(file.goal.span(), "a grid has one goal, or two that are weighed against each other");
    }
    if let Err(wrong) = file.repeats.check() {
        problems.add(0..0, wrong);
    }
    let mut metrics: Vec<String> = goals.iter().map(|goal| goal.metric.clone()).collect();
    for metric in file.repeats.metric().map(str::to_owned).into_iter().chain(file.measure) {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let name = Path::new(path).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let seed = file.seed.unwrap_or(1);
    let repeats = file.repeats;
    let grid = Grid { name, text, base, settings, draws, seed, repeats, goals, metrics };
    let limit = file.limit.unwrap_or(LIMIT);
    if grid.points() > limit {
        let wrong =
            format!("{} points are more than the limit of {limit}: take fewer values, or set limit", grid.points());
        problems.add(file.settings.span(), wrong);
    }
    if problems.is_empty() {
        for point in [0, grid.points() - 1] {
            if let Err(wrong) = grid.point(point).check(&grid) {
                problems.add(file.settings.span(), format!("point {point}: {wrong}"));
            }
        }
    }
    Some(grid)
}

impl Grid {
    /// The metrics that every result must have.
    pub(crate) fn needed(&self) -> impl Iterator<Item = &str> {
        self.goals.iter().map(|goal| goal.metric.as_str()).chain(self.repeats.metric())
    }

    /// The plan or experiment with a point's values.
    pub(crate) fn with(&self, values: &[Value]) -> Table {
        let mut table = self.base.table.clone();
        for (setting, value) in self.settings.iter().zip(values) {
            setting.apply(&mut table, value.clone());
        }
        table
    }
}
