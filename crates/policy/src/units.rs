//! Rates, sizes and durations as people write them: a number and a unit, such as `100Mbit/s`, `64KiB`, `50ms`.
//!
//! The same text is read from a policy file and from the command line. Every formatted value parses to itself.

use fairlane_core::time::Nanos;

/// Units of one quantity, the smallest first, each with its size in the base unit.
struct Quantity {
    /// The units values are written in.
    units: &'static [(&'static str, u64)],
    /// Units that are read as well.
    also: &'static [(&'static str, u64)],
    /// What a value counts.
    base: &'static str,
    /// How many parts of a unit may be written as decimals: 1000 or 1.
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

/// Why text is no quantity. Completes a sentence that begins with what it is of: "the rate ...".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is no number with a unit behind it.
    #[error("must be a number and a unit ({units}), such as {example:?}, not {given:?}")]
    Form {
        /// Which units there are.
        units: String,
        /// One that would be right.
        example: &'static str,
        /// The text.
        given: String,
    },
    /// It is no whole number of what it counts.
    #[error("must be a whole number of {base}, not {given:?}")]
    Part {
        /// What it counts.
        base: &'static str,
        /// The text.
        given: String,
    },
    /// It is more than 64 bits can say.
    #[error("is too large: {0:?}")]
    Large(String),
}

/// Reads a rate in bits a second, such as `100Mbit/s` or `2.5Gbit/s`. Prefixes are decimal.
///
/// # Errors
/// What would be right, and what was given.
pub fn parse_rate(text: &str) -> Result<u64, QuantityError> {
    RATE.parse(text)
}

/// Reads a size in bytes, such as `64KiB` (65536) or `64kB` (64000).
///
/// # Errors
/// As [`parse_rate`].
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    SIZE.parse(text)
}

/// Reads a duration, such as `100ms`; a nanosecond is the finest.
///
/// # Errors
/// As [`parse_rate`].
pub fn parse_duration(text: &str) -> Result<Nanos, QuantityError> {
    DURATION.parse(text).map(Nanos)
}

/// Writes a rate in the largest unit that takes at most three decimals: `2.5Gbit/s`.
pub fn format_rate(bits_per_second: u64) -> String {
    RATE.format(bits_per_second)
}

/// Writes a size in the largest binary unit that divides it: `64KiB`.
pub fn format_size(bytes: u64) -> String {
    SIZE.format(bytes)
}

/// Writes a duration in the largest unit that takes at most three decimals: `1.5ms`.
pub fn format_duration(duration: Nanos) -> String {
    DURATION.format(duration.0)
}

impl Quantity {
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

/// `0.decimals` of `scale`; none if that is not a whole number.
fn fraction(decimals: &str, scale: u64) -> Option<u64> {
    let decimals = decimals.trim_end_matches('0');
    // No scale has more than twelve factors of ten.
    if decimals.len() > 18 {
        return None;
    }
    let divisor = 10u128.pow(decimals.len() as u32);
    let scaled = decimals.parse().unwrap_or(0u128) * u128::from(scale);
    scaled.is_multiple_of(divisor).then_some((scaled / divisor) as u64)
}
