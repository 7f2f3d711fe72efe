//! Parses the text of a file into an [`Experiment`], or into the list of everything that is wrong with it.
//!
//! The file is split into sections. Each is read by serde and then checked against the others. A case replaces keys of
//! `[topology]`, `[procedure]` and `[background]`, so each case's sections are merged before they are read.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use fairlane_policy::problem::{Problem, Problems, document, unknown_name};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error, ValueDeserializer};

use super::case::{all_metrics, background_faults, cpus_faults, topology_faults};
use super::fault::Fault;
use super::procedure::registry;
use super::repeats::LEAST;
use super::{Background, Case, ClaimPlan, Experiment, Procedure, Repeats};
use crate::machine::Backend;
use crate::{MachineKind, Topology};

const KEYS: [&str; 13] = [
    "name",
    "source",
    "figure",
    "machines",
    "backends",
    "scale",
    "cpus",
    "repeats",
    "topology",
    "procedure",
    "background",
    "case",
    "claim",
];
/// The most repeats if the file does not give a number.
const MOST: usize = 30;
const CASE_KEYS: [&str; 4] = ["name", "topology", "procedure", "background"];

impl Experiment {
    /// Parses the text of an experiment's file; problems name it by `file_name`.
    ///
    /// # Errors
    /// All problems that can be found in one pass, in the order of the file.
    pub fn parse(file_name: &str, text: &str) -> Result<Experiment, Vec<Problem>> {
        let document = document(file_name, text)?;
        let mut problems = Problems::new(file_name, text);
        let experiment = read(Section { span: 0..0, table: document }, &mut problems);
        match experiment {
            Some(experiment) if problems.is_empty() => Ok(experiment),
            _ => Err(problems.sorted()),
        }
    }
}

/// A table and its position in the file.
#[derive(Clone)]
struct Section<'a> {
    span: Range<usize>,
    table: DeTable<'a>,
}

impl<'a> Section<'a> {
    /// The position of a key's value; that of the section if the key is absent.
    fn span(&self, key: &str) -> Range<usize> {
        self.table.get(key).map_or(self.span.clone(), Spanned::span)
    }

    /// Takes a value out, to be read by serde.
    fn take<T: DeserializeOwned>(&mut self, key: &str, problems: &mut Problems) -> Option<T> {
        let value = self.table.remove(key)?;
        let span = value.span();
        read_value(value, |value| T::deserialize(value), span, key, problems)
    }

    /// As [`Section::take`], for a required key.
    fn need<T: DeserializeOwned>(&mut self, key: &str, problems: &mut Problems) -> Option<T> {
        if !self.table.contains_key(key) {
            problems.add(self.span.clone(), format!("{key} is missing"));
        }
        self.take(key, problems)
    }

    /// Takes a table out; an absent one gives an empty section.
    fn section(&mut self, key: &str, problems: &mut Problems) -> Section<'a> {
        let Some(value) = self.table.remove(key) else {
            return Section { span: self.span.clone(), table: DeTable::new() };
        };
        let span = value.span();
        Section::of(value, key, problems).unwrap_or(Section { span, table: DeTable::new() })
    }

    /// Takes out the tables written as `[[key]]`.
    fn sections(&mut self, key: &str, problems: &mut Problems) -> Vec<Section<'a>> {
        let Some(value) = self.table.remove(key) else { return Vec::new() };
        let span = value.span();
        let DeValue::Array(array) = value.into_inner() else {
            problems.add(span, format!("a {key} is written [[{key}]], with two brackets on each side"));
            return Vec::new();
        };
        array.into_iter().filter_map(|value| Section::of(value, key, problems)).collect()
    }

    fn of(value: Spanned<DeValue<'a>>, key: &str, problems: &mut Problems) -> Option<Section<'a>> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Some(Section { span, table }),
            other => {
                problems.add(span, format!("{key} must be a table, not {} {}", article(&other), other.type_str()));
                None
            }
        }
    }

    /// Reports unknown keys.
    fn only(&self, title: &str, keys: &[&str], problems: &mut Problems) {
        for key in self.table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref())) {
            let wrong = unknown_name("key", key.get_ref(), keys.iter().copied());
            problems.add(key.span(), format!("{wrong} in {title}"));
        }
    }

    /// The section with the keys of another replacing its own.
    fn with(&self, other: &Section<'a>) -> Section<'a> {
        let mut both = self.clone();
        for (key, value) in &other.table {
            both.table.insert(key.clone(), value.clone());
            both.span = other.span.clone();
        }
        both
    }

    /// Reads the whole section by serde.
    fn read<T: DeserializeOwned>(&self, title: &str, problems: &mut Problems) -> Option<T> {
        let value = Spanned::new(self.span.clone(), DeValue::Table(self.table.clone()));
        read_value(value, |value| T::deserialize(value), self.span.clone(), title, problems)
    }

    /// Reports faults of the section.
    fn report(&self, faults: Vec<Fault>, problems: &mut Problems) {
        for (key, message) in faults {
            problems.add(self.span(key), message);
        }
    }
}

fn article(value: &DeValue) -> &'static str {
    if matches!(value, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" }
}

fn read_value<'a, T>(
    value: Spanned<DeValue<'a>>,
    read: impl FnOnce(ValueDeserializer<'a>) -> Result<T, Error>,
    span: Range<usize>,
    title: &str,
    problems: &mut Problems,
) -> Option<T> {
    let read = read(ValueDeserializer::from(value));
    read.map_err(|error| problems.add(error.span().unwrap_or(span), format!("{title}: {}", error.message()))).ok()
}

fn read(mut file: Section, problems: &mut Problems) -> Option<Experiment> {
    file.only("the file", &KEYS, problems);
    let machine_span = file.span("machines");
    let scale_span = file.span("scale");
    let cpus_span = file.span("cpus");
    let name: Option<String> = file.need("name", problems);
    let source = file.need("source", problems);
    let figure = file.need("figure", problems);
    let machines: Option<Vec<MachineKind>> = file.need("machines", problems);
    let backends_span = file.span("backends");
    let backends: Vec<Backend> = file.take("backends", problems).unwrap_or(Backend::ALL.to_vec());
    if backends.is_empty() {
        problems.add(backends_span, "backends must name one or more, such as [\"fairlane\"]");
    }
    let scale: BTreeMap<MachineKind, f64> = file.take("scale", problems).unwrap_or_default();
    let cpus: BTreeMap<MachineKind, Vec<Vec<usize>>> = file.take("cpus", problems).unwrap_or_default();
    for (kind, cpus) in &cpus {
        for message in cpus_faults(cpus) {
            problems.add(cpus_span.clone(), format!("{kind}: {message}"));
        }
    }
    if machines.as_ref().is_some_and(Vec::is_empty) {
        problems.add(machine_span, "machines must name one or more, such as [\"xen\"]");
    }
    for (kind, factor) in scale.iter().filter(|(_, factor)| !(0.001..=1.0).contains(*factor)) {
        problems.add(scale_span.clone(), format!("the scale of {kind} must be 0.001 to 1, not {factor}"));
    }
    if !file.table.contains_key("procedure") {
        problems.add(file.span.clone(), "[procedure] is missing");
        return None;
    }
    let repeats = file.section("repeats", problems);
    let claims = file.sections("claim", problems);
    let cases = read_cases(&mut file, problems)?;
    for (kind, cpus) in &cpus {
        if cases.iter().all(|case| case.topology.guests.len() != cpus.len()) {
            problems.add(cpus_span.clone(), format!("{kind} places {} guests, which no case has", cpus.len()));
        }
    }

    let repeats = read_repeats(repeats, &cases, problems);
    let known = all_metrics(&cases);
    let claims = claims.iter().filter_map(|section| {
        let claim: ClaimPlan = section.read("claim", problems)?;
        section.report(claim.faults(&known), problems);
        Some(claim)
    });
    let claims = claims.collect();
    Some(Experiment {
        name: name?,
        source: source?,
        figure: figure?,
        machines: machines?,
        backends,
        scale,
        cpus,
        repeats: repeats?,
        cases,
        claims,
    })
}

/// None if a case cannot be read at all.
fn read_cases(file: &mut Section, problems: &mut Problems) -> Option<Vec<Case>> {
    let base = CASE_KEYS[1..].iter().map(|key| file.section(key, problems)).collect::<Vec<Section>>();
    let written = file.sections("case", problems);
    if written.is_empty() {
        return Some(vec![read_case(String::new(), &base, problems)?]);
    }
    let mut names = HashSet::new();
    let mut cases = Vec::new();
    for mut section in written {
        section.only("[[case]]", &CASE_KEYS, problems);
        let span = section.span("name");
        let name: String = section.need("name", problems).unwrap_or_default();
        if !names.insert(name.clone()) {
            problems.add(span, format!("an earlier case is named `{}`: names must differ", name.escape_debug()));
        }
        let own = CASE_KEYS[1..].iter().map(|key| section.section(key, problems));
        let both: Vec<Section> = own.zip(&base).map(|(own, base)| base.with(&own)).collect();
        cases.push(read_case(name, &both, problems));
    }
    cases.into_iter().collect()
}

fn read_case(name: String, sections: &[Section], problems: &mut Problems) -> Option<Case> {
    let [topology_section, procedure_section, background_section] = sections else { return None };
    let topology: Option<Topology> = topology_section.read("topology", problems);
    let procedure = read_procedure(procedure_section, problems);
    let background: Option<Background> = background_section.read("background", problems);
    let (topology, procedure, background) = (topology?, procedure?, background?);
    topology_section.report(topology_faults(&topology), problems);
    procedure_section.report(procedure.faults(&topology), problems);
    background_section.report(background_faults(&background, &topology), problems);
    Some(Case { name, topology, procedure, background })
}

fn read_procedure(section: &Section, problems: &mut Problems) -> Option<Box<dyn Procedure>> {
    let mut section = section.clone();
    let kind_span = section.span("kind");
    let kind: String = section.need("kind", problems)?;
    let span = section.span.clone();
    let value = ValueDeserializer::from(Spanned::new(span.clone(), DeValue::Table(section.table)));
    let Some(read) = registry::read(&kind, value) else {
        problems.add(kind_span, unknown_name("procedure", &kind, registry::NAMES.into_iter()));
        return None;
    };
    read.map_err(|error| problems.add(error.span().unwrap_or(span), format!("procedure: {}", error.message()))).ok()
}

/// The keys of `[repeats]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RepeatKeys {
    count: Option<usize>,
    metric: Option<String>,
    within: Option<f64>,
    least: Option<usize>,
    most: Option<usize>,
}

fn read_repeats(section: Section, cases: &[Case], problems: &mut Problems) -> Option<Repeats> {
    if section.table.is_empty() {
        return Some(Repeats::Count(1));
    }
    let keys: RepeatKeys = section.read("repeats", problems)?;
    let mut fault = |key: &str, message: String| problems.add(section.span(key), message);
    let (least, most, metric, within) = match keys {
        RepeatKeys { count: Some(count), metric: None, within: None, least: None, most: None } => {
            if count == 0 {
                fault("count", "count must be 1 or more, not 0".to_owned());
            }
            return Some(Repeats::Count(count));
        }
        RepeatKeys { count: None, metric: Some(metric), within: Some(within), least, most } => {
            (least.unwrap_or(LEAST), most.unwrap_or(MOST), metric, within)
        }
        _ => {
            fault("", "repeats are either count, or metric and within (and least and most)".to_owned());
            return None;
        }
    };
    if !(0.001..1.0).contains(&within) {
        fault("within", format!("within must be a part of the mean, such as 0.05, not {within}"));
    }
    if least < LEAST || most < least {
        fault("least", format!("least must be {LEAST} to most ({most}), not {least}"));
    }
    for case in cases {
        let known = case.procedure.metrics(&case.topology);
        if !known.contains(&metric) {
            fault("metric", unknown_name("metric", &metric, known.iter().map(String::as_str)));
        }
    }
    Some(Repeats::Until { metric, within, least, most })
}
