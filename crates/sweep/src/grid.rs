//! A grid file: a plan, and the settings that its points change.

use crate::repeats::Repeats;
use crate::setting::{Setting, Values};
use fairlane_policy::problem::{Problem, Problems};
use fairlane_sim::Scenario;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Spanned, Table, Value};

/// Most points, unless the file's `limit` says otherwise.
const LIMIT: u64 = 100_000;

/// A plan, the settings that each point changes, and what is kept of its results.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Its name: that of its file.
    pub name: String,
    /// The file's text.
    pub text: String,
    /// The plan's file.
    pub plan: PathBuf,
    /// The plan's text.
    pub plan_text: String,
    pub(crate) table: Table,
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
    plan: Spanned<PathBuf>,
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
    /// Reads a grid file and its plan, and tries the plan with the first values of all settings, and with the last.
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
        let plan = path.with_file_name(file.plan.get_ref());
        let plan_text = match read(&plan) {
            Ok(text) => text,
            Err(message) => {
                problems.add(file.plan.span(), message);
                return Err(problems.sorted());
            }
        };
        // A plan that is wrong as it stands is named by its own lines.
        Scenario::parse(&plan, &plan_text)?;
        let table = plan_text.parse().unwrap_or_default();
        let grid = check(file, &name, (plan, plan_text, table), text.clone(), &mut problems);
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
}

fn check(
    file: File,
    path: &str,
    (plan, plan_text, table): (PathBuf, String, Table),
    text: String,
    problems: &mut Problems,
) -> Option<Grid> {
    let mut settings = Vec::new();
    for (key, values) in file.settings.get_ref() {
        match Setting::new(key.get_ref(), values.get_ref(), &table) {
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
    let grid = Grid { name, text, plan, plan_text, table, settings, draws, seed, repeats, goals, metrics };
    let limit = file.limit.unwrap_or(LIMIT);
    if grid.points() > limit {
        let wrong =
            format!("{} points are more than the limit of {limit}: take fewer values, or set limit", grid.points());
        problems.add(file.settings.span(), wrong);
    }
    if problems.is_empty() {
        for point in [0, grid.points() - 1] {
            if let Err(wrong) = grid.point(point).scenario(&grid, grid.seed) {
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

    /// The plan with a point's values and a seed.
    pub(crate) fn with(&self, values: &[Value], seed: u64) -> Table {
        let mut table = self.table.clone();
        for (setting, value) in self.settings.iter().zip(values) {
            setting.apply(&mut table, value.clone());
        }
        table.insert("seed".to_owned(), Value::Integer(seed as i64));
        table
    }
}
