//! A setting: a place in a plan or an experiment, and the values that it takes.

use crate::base::Base;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;
use toml::{Table, Value};

/// A place in a plan, and its values.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The way to it: keys, names and numbers.
    path: Vec<Step>,
    /// Its name in rows: the way, and the unit if it has one.
    pub column: String,
    pub values: Source,
    /// The unit that is appended to a number.
    unit: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Where values come from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    Listed(Vec<Value>),
    Drawn(Distribution),
}

/// A distribution of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distribution {
    /// Each number between two is as likely.
    Uniform(f64, f64),
    /// Each ratio is as likely.
    LogUniform(f64, f64),
    /// With a mean and a standard deviation.
    Normal(f64, f64),
}

/// Values as a grid file has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Values {
    List(Vec<Value>),
    Range(Range),
    Drawn(DrawnKeys),
}

/// Numbers at even distances, or in even ratios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Range {
    from: f64,
    to: f64,
    steps: usize,
    #[serde(default)]
    log: bool,
    unit: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrawnKeys {
    uniform: Option<[f64; 2]>,
    log_uniform: Option<[f64; 2]>,
    normal: Option<[f64; 2]>,
    unit: Option<String>,
}

impl Source {
    /// The values, unless they are drawn.
    pub(crate) fn listed(&self) -> Option<&[Value]> {
        match self {
            Source::Listed(values) => Some(values),
            Source::Drawn(_) => None,
        }
    }
}

impl Setting {
    /// A setting of a plan or an experiment, or what is wrong with it.
    pub(crate) fn new(key: &str, values: &Values, base: &Base) -> Result<Setting, String> {
        if key == "seed" && !base.is_experiment() {
            return Err("each run has a seed of its own, from the grid's seed on: set that, and repeats".to_owned());
        }
        let path = resolve(key, &base.table, base.noun())?;
        let (values, unit) = match values {
            Values::List(values) => (Source::Listed(list(values)?), None),
            Values::Range(range) => (Source::Listed(range.values()?), range.unit.clone()),
            Values::Drawn(keys) => (Source::Drawn(keys.distribution()?), keys.unit.clone()),
        };
        let column = unit.as_ref().map_or_else(|| key.to_owned(), |unit| format!("{key} ({unit})"));
        Ok(Setting { path, column, values, unit })
    }

    /// The value that a point draws: always the same for the same seed, point and column.
    pub(crate) fn draw(&self, distribution: Distribution, seed: u64, point: u64) -> Value {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new_with_prefix(seed.to_le_bytes());
        hash.update(point.to_le_bytes());
        hash.update(&self.column);
        let mut random = StdRng::from_seed(hash.finalize().into());
        tidy(distribution.draw(&mut random))
    }

    /// Writes a value into a table of the same form as the one that it was made for.
    pub(crate) fn apply(&self, table: &mut Table, value: Value) {
        let value = match (&self.unit, value) {
            (Some(unit), number) => Value::String(format!("{number}{unit}")),
            (None, value) => value,
        };
        let Some((Step::Key(key), way)) = self.path.split_last() else { return };
        if let Some(table) = follow(table, way) {
            table.insert(key.clone(), value);
        }
    }
}

/// The table at the end of a way.
fn follow<'a>(table: &'a mut Table, way: &[Step]) -> Option<&'a mut Table> {
    let Some((Step::Key(first), rest)) = way.split_first() else { return Some(table) };
    let mut value = table.get_mut(first)?;
    for step in rest {
        value = match step {
            Step::Key(key) => value.get_mut(key)?,
            Step::Index(index) => value.get_mut(*index)?,
        };
    }
    value.as_table_mut()
}

/// Finds the place in a plan or an experiment, as `noun` says, that a key such as `host.a.vif.web.weight` means. An element of an array is meant by its name or, from 0, by
/// its number. The last key need not be there yet.
fn resolve(key: &str, table: &Table, noun: &str) -> Result<Vec<Step>, String> {
    let mut words: Vec<&str> = key.split('.').collect();
    let last = words.pop().filter(|last| !last.is_empty()).ok_or("a setting needs a name, the last word of its way")?;
    let mut path = Vec::new();
    let whole = Value::Table(table.clone());
    let mut at = &whole;
    let mut so_far = Vec::new();
    for word in words {
        at = match at {
            Value::Table(table) => {
                path.push(Step::Key(word.to_owned()));
                table.get(word).ok_or_else(|| missing(word, &so_far, noun, table.keys()))?
            }
            Value::Array(elements) => {
                let names =
                    || elements.iter().enumerate().map(|(index, element)| name(element).unwrap_or(index.to_string()));
                let named = names().position(|name| name == word);
                let index = named.or_else(|| word.parse().ok()).filter(|index| *index < elements.len());
                let index = index.ok_or_else(|| missing(word, &so_far, noun, names().collect::<Vec<_>>().iter()))?;
                path.push(Step::Index(index));
                &elements[index]
            }
            _ => return Err(format!("`{}` in the {noun} is a value and has no `{word}`", so_far.join("."))),
        };
        so_far.push(word);
    }
    match at {
        Value::Table(table) if !matches!(table.get(last), Some(Value::Table(_))) => {
            path.push(Step::Key(last.to_owned()));
            Ok(path)
        }
        Value::Array(elements) => {
            let names: Vec<String> = elements.iter().filter_map(name).collect();
            Err(format!(
                "`{}` is a list: say which, such as `{}.{}.{last}`",
                so_far.join("."),
                so_far.join("."),
                names.first().map_or("0", |name| name)
            ))
        }
        _ => Err(format!("`{key}` is not a value: a setting is one key of the {noun}, such as \"a.b\"")),
    }
}

/// The name of an element of an array: of a guest, its vif's.
fn name(element: &Value) -> Option<String> {
    let name = element.get("name").or_else(|| element.get("vif"))?;
    name.as_str().map(str::to_owned)
}

fn missing<'a>(word: &str, so_far: &[&str], noun: &str, known: impl Iterator<Item = &'a String>) -> String {
    let place = if so_far.is_empty() { format!("the {noun}") } else { format!("`{}` in the {noun}", so_far.join(".")) };
    let known: Vec<&str> = known.map(String::as_str).take(8).collect();
    format!("{place} has no `{word}`; it has {}", known.join(", "))
}

/// Checks values of a list.
fn list(values: &[Value]) -> Result<Vec<Value>, String> {
    let is_scalar =
        |value: &Value| matches!(value, Value::Integer(_) | Value::Float(_) | Value::String(_) | Value::Boolean(_));
    let same = values.windows(2).all(|pair| pair[0].same_type(&pair[1]));
    match values.iter().all(is_scalar) && same && !values.is_empty() {
        true => Ok(values.to_vec()),
        false => Err("a list has one or more numbers, or words, or true and false, all of one kind".to_owned()),
    }
}

impl Range {
    fn values(&self) -> Result<Vec<Value>, String> {
        let Range { from, to, steps, log, .. } = *self;
        if !(2..=1_000_000).contains(&steps) || !from.is_finite() || !to.is_finite() || from >= to {
            return Err("a range has a finite from below a finite to, and steps of 2 or more".to_owned());
        }
        if log && from <= 0.0 {
            return Err("a range in even ratios (log = true) begins above 0".to_owned());
        }
        let at = |step: usize| {
            let part = step as f64 / (steps - 1) as f64;
            if log { from * (to / from).powf(part) } else { from + (to - from) * part }
        };
        Ok((0..steps).map(|step| tidy(at(step))).collect())
    }
}

impl DrawnKeys {
    fn distribution(&self) -> Result<Distribution, String> {
        let ordered = |[low, high]: [f64; 2]| low.is_finite() && high.is_finite() && low < high;
        match (self.uniform, self.log_uniform, self.normal) {
            (Some(ends), None, None) if ordered(ends) => Ok(Distribution::Uniform(ends[0], ends[1])),
            (None, Some(ends), None) if ordered(ends) && ends[0] > 0.0 => Ok(Distribution::LogUniform(ends[0], ends[1])),
            (None, None, Some([mean, deviation])) if mean.is_finite() && deviation > 0.0 && deviation.is_finite() => {
                Ok(Distribution::Normal(mean, deviation))
            }
            _ => Err("a distribution is one of { uniform = [LOW, HIGH] }, { log_uniform = [LOW, HIGH] } with LOW above 0, and \
                 { normal = [MEAN, DEVIATION] }"
                .to_owned()),
        }
    }
}

impl Distribution {
    fn draw(self, random: &mut StdRng) -> f64 {
        let mut part = || random.random::<f64>();
        match self {
            Distribution::Uniform(low, high) => low + (high - low) * part(),
            Distribution::LogUniform(low, high) => low * (high / low).powf(part()),
            Distribution::Normal(mean, deviation) => {
                // Box and Muller, 1958.
                let (radius, angle) = ((-2.0 * (1.0 - part()).ln()).sqrt(), std::f64::consts::TAU * part());
                mean + deviation * radius * angle.cos()
            }
        }
    }
}

/// A number as a plan may have it: at most three decimals, so that it is whole in the unit below, and an integer if it is whole.
fn tidy(number: f64) -> Value {
    let rounded = (number * 1e3).round() / 1e3;
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 { Value::Integer(rounded as i64) } else { Value::Float(rounded) }
}
