//! A JSON Schema of the policy file, by which editors complete and check it: the parser's own lists of keys, with the ranges of its
//! rules, and what the reference says about each key. What depends on more than one key is left to [`crate::Policy::parse`].

use crate::parse::{FILE_KEYS, LINK_KEYS, OBSERVE_KEYS, SOCKETS_KEYS, TENANT_KEYS, UPLINK_KEYS, VIF_KEYS};
use crate::section::RENAMED;
use crate::{rules, units};
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

const REFERENCE: &str = include_str!("../../../docs/reference/policy.md");

/// A table of the file: its keys, those that must be given, and its headings in the reference.
struct Table {
    keys: &'static [&'static str],
    required: &'static [&'static str],
    heading: &'static str,
}

const FILE: Table = Table { keys: FILE_KEYS, required: &["link"], heading: "## The file" };
const OBSERVE: Table = Table { keys: OBSERVE_KEYS, required: &["socket"], heading: "## `[observe]`" };
const SOCKETS: Table = Table { keys: SOCKETS_KEYS, required: &[], heading: "## `[sockets]`" };
const LINK: Table = Table { keys: LINK_KEYS, required: &["name"], heading: "## `[[link]]`" };
const UPLINK: Table = Table { keys: UPLINK_KEYS, required: &[], heading: "### `uplink`" };
const TENANT: Table = Table { keys: TENANT_KEYS, required: &["name"], heading: "## `[[tenant]]`" };
const VIF: Table = Table { keys: VIF_KEYS, required: &["name"], heading: "## `[[vif]]`" };

/// The schema, in draft 2020-12.
pub fn schema() -> Value {
    let mut schema = FILE.schema(file_value);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("A policy of Fairlane");
    schema
}

impl Table {
    /// The schema of the table; `value` is that of a key's value.
    fn schema(&self, value: fn(&str) -> Value) -> Value {
        let mut properties: Map<String, Value> = self.keys.iter().map(|key| ((*key).to_owned(), value(key))).collect();
        for (key, schema) in &mut properties {
            if let Some(about) = self.about(key) {
                schema["description"] = json!(about);
            }
        }
        for (old, new) in RENAMED.iter().filter(|(_, new)| self.keys.contains(new)) {
            let about = format!("the old name of {new}");
            let mut schema = value(new);
            (schema["deprecated"], schema["description"]) = (json!(true), json!(about));
            properties.entry(*old).or_insert(schema);
        }
        json!({
            "type": "object",
            "additionalProperties": false,
            "required": self.required,
            "properties": properties,
        })
    }

    /// What the reference says about a key: its meaning, its right values, and its default.
    fn about(&self, key: &str) -> Option<String> {
        let (_, part) = REFERENCE.split_once(&format!("\n{}\n", self.heading))?;
        let part = part.split("\n#").next()?;
        let row = part.lines().find(|row| row.starts_with(&format!("| `{key}` |")))?;
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, default, values, meaning] = cells[..] else { return None };
        let parts = [("", meaning), ("Values: ", values), ("Default: ", default)];
        let parts = parts.into_iter().filter(|(_, text)| !text.is_empty());
        Some(parts.map(|(label, text)| format!("{label}{text}")).collect::<Vec<_>>().join(". "))
    }
}

fn file_value(key: &str) -> Value {
    match key {
        "control" => path(),
        "metrics" => text(),
        "metrics_token" => pattern("^/".to_owned()),
        "observe" => OBSERVE.schema(socket_value),
        "sockets" => SOCKETS.schema(socket_value),
        "link" => json!({ "type": "array", "minItems": 1, "items": LINK.schema(link_value) }),
        "tenant" => json!({ "type": "array", "items": TENANT.schema(tenant_value) }),
        "vif" => json!({ "type": "array", "items": VIF.schema(vif_value) }),
        _ => json!({}),
    }
}

/// A socket and who may connect to it.
fn socket_value(key: &str) -> Value {
    match key {
        "socket" => path(),
        "owner" | "group" => json!({ "anyOf": [text(), number(rules::ACCOUNTS)] }),
        "mode" => pattern("^0?[0-7]{3}$".to_owned()),
        _ => json!({}),
    }
}

fn link_value(key: &str) -> Value {
    match key {
        "name" => name(),
        "rate" | "rx_rate" => rate(),
        "scheduler" => json!({ "enum": rules::SCHEDULERS }),
        "prioritize" | "isolate" | "xen" => flag(),
        "refill" | "idle_timeout" => pattern(units::duration_pattern()),
        "cpu" => number(rules::CPUS),
        "rx_pool" => pattern(units::size_pattern()),
        "uplink" => UPLINK.schema(uplink_value),
        _ => json!({}),
    }
}

fn uplink_value(key: &str) -> Value {
    match key {
        "tap" | "card" | "xdp" => word(rules::INTERFACE),
        "wire" => name(),
        "delay" => pattern(units::duration_pattern()),
        "queue" => pattern(units::size_pattern()),
        "backpressure" => flag(),
        _ => json!({}),
    }
}

fn vif_value(key: &str) -> Value {
    match key {
        "link" | "tenant" => name(),
        "socket" | "owner" | "group" | "mode" => socket_value(key),
        "connect" | "packed" => flag(),
        "xen" => text(),
        "queues" => number(rules::QUEUES),
        "rx_queue" => pattern(units::size_pattern()),
        "rx_timeout" => pattern(units::duration_pattern()),
        "mac" => pattern("^([0-9A-Fa-f]{1,2}:){5}[0-9A-Fa-f]{1,2}$".to_owned()),
        "addresses" => json!({ "type": "array", "items": text() }),
        "early_ack" => json!({ "enum": [false, true, "stalled", "always"] }),
        _ => share_value(key),
    }
}

fn tenant_value(key: &str) -> Value {
    match key {
        "min_rate_on" => json!({ "type": "object", "propertyNames": name(), "additionalProperties": rate() }),
        _ => share_value(key),
    }
}

fn share_value(key: &str) -> Value {
    match key.trim_start_matches("rx_") {
        "name" => name(),
        "weight" => number(rules::WEIGHTS),
        "min_rate" | "max_rate" => rate(),
        "burst" => pattern(units::size_pattern()),
        "max_frames" => json!({ "anyOf": [number(rules::FRAMES), { "const": "none" }] }),
        "frame_burst" => number(rules::FRAME_BURSTS),
        _ => json!({}),
    }
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn path() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": rules::PATH })
}

fn number(range: RangeInclusive<i64>) -> Value {
    json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
}

fn pattern(pattern: String) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

fn word(longest: usize) -> Value {
    pattern(format!("^[A-Za-z0-9_.-]{{1,{longest}}}$"))
}

fn name() -> Value {
    word(rules::NAME)
}

fn rate() -> Value {
    json!({ "anyOf": [pattern(units::rate_pattern()), { "const": "none" }] })
}
