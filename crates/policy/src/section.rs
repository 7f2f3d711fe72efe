//! One table of a policy file: checks its keys against a list, reads its values by rules, reports problems by line.

use super::rules::{Phrase, shown};
use crate::problem::{Problems, nearest};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Old names of keys with their present names. Old names are still read, and [`super::renamed_keys`] warns of them.
pub(super) const RENAMED: [(&str, &str); 1] = [("delay", "idle_timeout")];

/// The present name of `key` in a table with these keys, if it is an old name.
pub(super) fn present_name(key: &str, keys: &[&'static str]) -> Option<&'static str> {
    if keys.contains(&key) {
        return None;
    }
    RENAMED.iter().find(|(old, new)| *old == key && keys.contains(new)).map(|(_, new)| *new)
}

/// A table, and the span of its header.
pub(super) struct Section<'a> {
    keys: &'static [&'static str],
    table: &'a DeTable<'a>,
    pub(super) header: Range<usize>,
}

impl<'a> Section<'a> {
    /// Wraps a table and reports keys that are not in `keys`. `title` names the table in messages.
    pub(super) fn new(
        title: &str,
        keys: &'static [&'static str],
        table: &'a DeTable<'a>,
        header: Range<usize>,
        problems: &mut Problems,
    ) -> Self {
        for key in table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref())) {
            let given = key.get_ref();
            match present_name(given, keys) {
                Some(new) if table.contains_key(new) => {
                    problems.add(key.span(), format!("{given} is the old name of {new}, which is given too"));
                    continue;
                }
                Some(_) => continue,
                None => {}
            }
            let hint = nearest(given, keys.iter().copied());
            let hint = hint.map_or(String::new(), |name| format!(", did you mean `{name}`?"));
            let (given, keys) = (given.escape_debug(), keys.join(", "));
            problems.add(key.span(), format!("unknown key `{given}` in {title}{hint} (its keys are {keys})"));
        }
        Section { keys, table, header }
    }

    /// Wraps a value that must be a table.
    pub(super) fn open(
        title: &str,
        keys: &'static [&'static str],
        value: &'a Spanned<DeValue<'a>>,
        problems: &mut Problems,
    ) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(title, keys, table, value.span(), problems)),
            other => {
                problems.add(value.span(), format!("{title} must be a table, not {}", shown(other)));
                None
            }
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        let renamed = || {
            let (old, _) = RENAMED.iter().find(|(_, new)| *new == key)?;
            self.table.get(*old).filter(|_| present_name(old, self.keys).is_some())
        };
        self.table.get(key).or_else(renamed)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The span of the value at a dotted path, or of as much of the path as exists.
    pub(super) fn span(&self, path: &str) -> Range<usize> {
        let mut span = self.header.clone();
        let mut table = Some(self.table);
        for key in path.split('.') {
            let Some(value) = table.and_then(|table| table.get(key)) else { break };
            span = value.span();
            table = value.get_ref().as_table();
        }
        span
    }

    /// Reads a value by a rule, whose errors complete a sentence that starts with the key. None if absent or wrong.
    pub(super) fn read<T>(
        &self,
        key: &str,
        rule: impl FnOnce(&DeValue) -> Result<T, Phrase>,
        problems: &mut Problems,
    ) -> Option<T> {
        let value = self.get(key)?;
        rule(value.get_ref()).map_err(|wrong| problems.add(value.span(), format!("{key} {wrong}"))).ok()
    }

    /// Reads a required value.
    pub(super) fn require<T>(
        &self,
        key: &str,
        rule: impl FnOnce(&DeValue) -> Result<T, Phrase>,
        problems: &mut Problems,
    ) -> Option<T> {
        if !self.has(key) {
            problems.add(self.header.clone(), format!("{key} is missing"));
        }
        self.read(key, rule, problems)
    }

    /// Reads every element of an array by a rule. Problems are reported at the element's line.
    pub(super) fn each<T>(
        &self,
        key: &str,
        rule: impl Fn(&DeValue) -> Result<T, Phrase>,
        problems: &mut Problems,
    ) -> Vec<T> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            problems.add(value.span(), format!("{key} must be a list in brackets, not {}", shown(value.get_ref())));
            return Vec::new();
        };
        let mut read = Vec::with_capacity(array.len());
        for element in array.iter() {
            match rule(element.get_ref()) {
                Ok(item) => read.push(item),
                Err(wrong) => problems.add(element.span(), format!("{key} {wrong}")),
            }
        }
        read
    }

    /// Reads every value of a table of names by a rule.
    pub(super) fn map<T>(
        &self,
        key: &str,
        rule: impl Fn(&DeValue) -> Result<T, Phrase>,
        problems: &mut Problems,
    ) -> BTreeMap<String, T> {
        let Some(value) = self.get(key) else { return BTreeMap::new() };
        let Some(table) = value.get_ref().as_table() else {
            let example = format!("{key}.NAME = ...");
            problems.add(value.span(), format!("{key} must be a table ({example}), not {}", shown(value.get_ref())));
            return BTreeMap::new();
        };
        let mut read = BTreeMap::new();
        for (name, value) in table.iter() {
            let name = name.get_ref();
            match rule(value.get_ref()) {
                Ok(item) => drop(read.insert(name.to_string(), item)),
                Err(wrong) => problems.add(value.span(), format!("{key}.{} {wrong}", name.escape_debug())),
            }
        }
        read
    }

    /// The tables under `[[key]]`.
    pub(super) fn tables(&self, key: &str, keys: &'static [&'static str], problems: &mut Problems) -> Vec<Section<'a>> {
        let title = format!("[[{key}]]");
        let Some(value) = self.get(key) else { return Vec::new() };
        match value.get_ref() {
            DeValue::Array(array) => {
                array.iter().filter_map(|element| Section::open(&title, keys, element, problems)).collect()
            }
            _ => {
                problems.add(value.span(), format!("a {key} is written {title}, with two brackets on each side"));
                Vec::new()
            }
        }
    }
}
