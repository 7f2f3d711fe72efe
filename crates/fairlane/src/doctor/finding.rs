//! What a rule answers: a cause, why it limits, and what to change.

use serde::{Deserialize, Serialize};

/// A cause that limits this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The cause's short name.
    pub cause: &'static str,
    /// How sure it is that this limits.
    pub sure: Sure,
    /// How much it limits: the part of the work, 0 to 1, that it is thought to cost.
    pub limits: f64,
    /// What was seen, with figures.
    pub seen: String,
    /// Why that limits.
    pub why: String,
    /// What to change, the first first.
    pub change: Vec<Remedy>,
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sure {
    /// The kernel counted what was lost or held up.
    Certain,
    /// What was counted has hardly another cause.
    Likely,
    /// It often limits; whether here, only a trial shows.
    Possible,
}

/// Something to change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// A command, or what to do.
    pub text: String,
    /// What `--fix` may set; none where a person must act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<Setting>,
}

/// A kernel setting and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Its name as sysctl(8) writes it.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl Finding {
    /// Its place among others: what limits more, and more surely, comes first.
    pub fn weight(&self) -> f64 {
        let sure = match self.sure {
            Sure::Certain => 1.0,
            Sure::Likely => 0.8,
            Sure::Possible => 0.5,
        };
        self.limits.clamp(0.0, 1.0) * sure
    }
}

impl Sure {
    /// As a person reads it.
    pub fn name(self) -> &'static str {
        match self {
            Sure::Certain => "certain",
            Sure::Likely => "likely",
            Sure::Possible => "possible",
        }
    }
}

impl Remedy {
    /// What a person does.
    pub fn by_hand(text: impl Into<String>) -> Remedy {
        Remedy { text: text.into(), setting: None }
    }

    /// A kernel setting.
    pub fn set(key: &str, value: impl ToString) -> Remedy {
        let value = value.to_string();
        let quote = if value.contains(' ') { "'" } else { "" };
        let text = format!("sysctl -w {quote}{key}={value}{quote}");
        Remedy { text, setting: Some(Setting { key: key.to_owned(), value }) }
    }
}
