//! The result of a rule: a cause, why it limits the machine, and what to change.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// A cause that limits this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    /// The cause's short name.
    pub cause: &'static str,
    /// How sure the doctor is that this limits.
    #[serde(rename = "sure")]
    pub confidence: Confidence,
    /// How much it limits: an estimate of the fraction of the work that it costs, 0 to 1.
    pub limits: f64,
    /// What was seen, with figures.
    pub seen: String,
    /// Why that limits.
    pub why: String,
    /// What to change, in the order to try.
    pub change: Vec<Remedy>,
}

/// How sure the doctor is of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Confidence {
    /// The kernel counted the losses or delays.
    Certain,
    /// The counters rarely have another cause.
    Likely,
    /// It often limits; only a trial shows whether it does here.
    Possible,
}

/// Something to change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Remedy {
    /// A command, or what to do.
    pub text: String,
    /// The setting that `--fix` may change; none if a person must act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<Setting>,
}

/// A kernel setting and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setting {
    /// Its name as sysctl(8) writes it.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl Finding {
    /// The key for sorting: findings that limit more, and with more confidence, come first.
    pub(super) fn weight(&self) -> f64 {
        let factor = match self.confidence {
            Confidence::Certain => 1.0,
            Confidence::Likely => 0.8,
            Confidence::Possible => 0.5,
        };
        self.limits.clamp(0.0, 1.0) * factor
    }
}

impl Confidence {
    /// The name shown to people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Confidence::Certain => "certain",
            Confidence::Likely => "likely",
            Confidence::Possible => "possible",
        }
    }
}

impl Remedy {
    /// A remedy for a person to carry out.
    pub(super) fn by_hand(text: impl Into<String>) -> Remedy {
        Remedy { text: text.into(), setting: None }
    }

    /// A kernel setting that `--fix` may change.
    pub(super) fn set(key: &str, value: impl ToString) -> Remedy {
        let value = value.to_string();
        let quote = if value.contains(' ') { "'" } else { "" };
        let text = format!("sysctl -w {quote}{key}={value}{quote}");
        Remedy { text, setting: Some(Setting { key: key.to_owned(), value }) }
    }

    /// A table that is larger by a factor, within sizes worth setting; none if its size is unknown or would not grow.
    pub(super) fn enlarge(key: &str, now: Option<u64>, factor: u64, sizes: RangeInclusive<u64>) -> Option<Remedy> {
        let now = now?;
        let size = now.saturating_mul(factor).clamp(*sizes.start(), *sizes.end());
        (size > now).then(|| Remedy::set(key, size))
    }
}
