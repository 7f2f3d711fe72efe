//! Rates, sizes and durations as text: a number and a unit, such as `100Mbit/s`, `64KiB`, `50ms`.
//!
//! The policy file and the command line use the same syntax. Every formatted value parses to itself.

use fairlane_core::time::Nanos;

/// The units of one quantity, smallest first, each with its size in the base unit.
struct Quantity {
    /// Units used for writing and reading.
    units: &'static [(&'static str, u64)],
    /// Units accepted for reading only.
    also: &'static [(&'static str, u64)],
    /// The base unit, as text for messages.
    base: &'static str,
    /// The finest fraction of a unit that is written with decimals: a thousandth (1000), or none (1).
    parts: u64,
    example: &'static str,
}

static RATE: Quantity = Quantity {
    units: &[
        ("bit/s", 1),
        ("kbit/s", 1_000),
        ("Mbit/s", 1_000_000),
        ("Gbit/s", 1_000_000_000),
        ("Tbit/s", 1_000_000_000_000),
    ],
    also: &[],
    base: "bits a second",
    parts: 1000,
    example: "100Mbit/s",
};

static SIZE: Quantity = Quantity {
    units: &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)],
    also: &[("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)],
    base: "bytes",
    parts: 1,
    example: "64KiB",
};

static DURATION: Quantity = Quantity {
    units: &[("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)],
    also: &[],
    base: "nanoseconds",
    parts: 1000,
    example: "100ms",
};

/// Why text is not a quantity. Displays as the rest of a sentence that starts with its key: "rate ...".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is not a number followed by a unit.
    #[error("must be a number and a unit ({units}), such as {example:?}, not {given:?}")]
    Form {
        /// The allowed units.
        units: String,
        /// A correct example.
        example: &'static str,
        /// The text.
        given: String,
    },
    /// It is not a whole number of the base unit.
    #[error("must be a whole number of {base}, not {given:?}")]
    Part {
        /// The base unit.
        base: &'static str,
        /// The text.
        given: String,
    },
    /// It does not fit into 64 bits.
    #[error("is too large: {0:?}")]
    Large(String),
}

/// Parses a rate such as `100Mbit/s` or `2.5Gbit/s` into bits a second. Prefixes are decimal.
///
/// # Errors
/// The text is not a number with a unit, not a whole number of bits a second, or too large.
pub fn parse_rate(text: &str) -> Result<u64, QuantityError> {
    RATE.parse(text)
}

/// Parses a size such as `64KiB` (65536) or `64kB` (64000) into bytes.
///
/// # Errors
/// As [`parse_rate`].
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    SIZE.parse(text)
}

/// Parses a duration such as `100ms`, to the nanosecond.
///
/// # Errors
/// As [`parse_rate`].
pub fn parse_duration(text: &str) -> Result<Nanos, QuantityError> {
    DURATION.parse(text).map(Nanos)
}

/// Formats a rate in the largest unit that needs at most three decimals: `2.5Gbit/s`.
pub fn format_rate(bits_per_second: u64) -> String {
    RATE.format(bits_per_second)
}

/// Formats a size in the largest binary unit that divides it: `64KiB`.
pub fn format_size(bytes: u64) -> String {
    SIZE.format(bytes)
}

/// Formats a duration in the largest unit that needs at most three decimals: `1.5ms`.
pub fn format_duration(duration: Nanos) -> String {
    DURATION.format(duration.0)
}

/// A regular expression (ECMA-262) that matches rates.
pub(crate) fn rate_pattern() -> String {
    RATE.pattern()
}

/// A regular expression that matches sizes.
pub(crate) fn size_pattern() -> String {
    SIZE.pattern()
}

/// A regular expression that matches durations.
pub(crate) fn duration_pattern() -> String {
    DURATION.pattern()
}

impl Quantity {
    fn pattern(&self) -> String {
        let units: Vec<&str> = self.units.iter().chain(self.also).map(|(name, _)| *name).collect();
        format!(r"^\s*[0-9]+(\.[0-9]+)?\s*({})\s*$", units.join("|"))
    }

    fn parse(&self, text: &str) -> Result<u64, QuantityError> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim_start());
        let scale = self.units.iter().chain(self.also).find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        match scale {
            Some(scale) if !whole.is_empty() && !decimals.is_empty() && !decimals.contains('.') => {
                let whole = whole.parse::<u128>().ok().and_then(|whole| whole.checked_mul(scale.into()));
                let Some(part) = fraction(decimals, scale) else {
                    return Err(QuantityError::Part { base: self.base, given: text.to_owned() });
                };
                let value = whole.and_then(|whole| whole.checked_add(part.into()));
                value.and_then(|value| u64::try_from(value).ok()).ok_or_else(|| QuantityError::Large(text.to_owned()))
            }
            _ => {
                let units: Vec<_> = self.units.iter().map(|(name, _)| *name).collect();
                let (units, example) = (units.join(", "), self.example);
                Err(QuantityError::Form { units, example, given: text.to_owned() })
            }
        }
    }

    fn format(&self, value: u64) -> String {
        let fits = |(_, scale): &&(&str, u64)| value >= *scale && value.is_multiple_of((scale / self.parts).max(1));
        let (unit, scale) = self.units.iter().rev().find(fits).unwrap_or(&self.units[0]);
        let (whole, rest) = (value / scale, value % scale);
        if rest == 0 {
            return format!("{whole}{unit}");
        }
        let decimals = format!("{:03}", rest / (scale / self.parts));
        format!("{whole}.{}{unit}", decimals.trim_end_matches('0'))
    }
}

/// `0.decimals` times `scale`, if that is a whole number.
fn fraction(decimals: &str, scale: u64) -> Option<u64> {
    let decimals = decimals.trim_end_matches('0');
    // No scale has more than 12 factors of ten, so more than 18 decimals cannot give a whole number.
    if decimals.len() > 18 {
        return None;
    }
    let divisor = 10u128.pow(decimals.len() as u32);
    let scaled = decimals.parse().unwrap_or(0u128) * u128::from(scale);
    scaled.is_multiple_of(divisor).then_some((scaled / divisor) as u64)
}
