//! Formats numbers and names for people.

/// A number with four significant digits, or all digits before the decimal point if there are more. `-` for NaN, a value that
/// was not measured.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "-".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e12).contains(&size) {
        let text = format!("{value:.3e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", trim(digits));
    }
    let places = if size == 0.0 { 0 } else { (3 - size.log10().floor() as i32).max(0) as usize };
    group(&trim(&format!("{value:.places$}")))
}

/// A number with its unit.
pub fn quantity(value: f64, unit: &str) -> String {
    if unit.is_empty() || value.is_nan() { number(value) } else { format!("{} {unit}", number(value)) }
}

/// An interval's ends; `-` for none.
pub(crate) fn interval(ends: Option<[f64; 2]>) -> String {
    ends.map_or_else(|| "-".to_owned(), |[low, high]| format!("{} to {}", number(low), number(high)))
}

/// An interval's ends in brackets, to follow a value; empty for none.
pub fn bracketed(ends: Option<[f64; 2]>) -> String {
    ends.map_or(String::new(), |[low, high]| format!(" ({} to {})", number(low), number(high)))
}

/// Removes trailing zeros after the decimal point.
fn trim(digits: &str) -> String {
    let trimmed = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    if trimmed == "-0" { "0".to_owned() } else { trimmed.to_owned() }
}

/// Separates thousands by commas, from ten thousand on.
fn group(digits: &str) -> String {
    let (whole, rest) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let (sign, whole) = whole.split_at(usize::from(whole.starts_with('-')));
    if whole.len() < 5 {
        return digits.to_owned();
    }
    let mut text = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// A name that is safe to show: characters that control a terminal, change the direction of text or are invalid in XML become U+FFFD.
pub(crate) fn clean(name: &str) -> String {
    let unsafe_to_show = |c: char| {
        c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    name.chars().map(|c| if unsafe_to_show(c) { '\u{fffd}' } else { c }).collect()
}

/// A name cut to a number of characters, with an ellipsis as the last one if it was longer.
pub(crate) fn shorten(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// A name as part of a file name: lower-case letters and digits, `-` for anything between them, at most 80 characters.
pub(crate) fn file_name(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    name.truncate(80);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (24.9871, "24.99"),
            (23_237.4, "23,237"),
            (0.012_345, "0.01235"),
            (-1234.6, "-1235"),
            (999.96, "1000"),
            (12_345_678.0, "12,345,678"),
            (1e300, "1e300"),
            (1.5e-9, "1.5e-9"),
            (f64::NAN, "-"),
            (f64::INFINITY, "∞"),
            (f64::MAX, "1.798e308"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text, "{value}");
        }
        assert_eq!(quantity(50.0, "Mbit/s"), "50 Mbit/s");
        assert_eq!(quantity(0.5, ""), "0.5");
    }

    #[test]
    fn names_are_made_safe() {
        assert_eq!(clean("a\u{1b}[2Jb\u{202e}c\n"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
        assert_eq!(shorten("guest", 5), "guest");
        assert_eq!(shorten("guests", 5), "gues…");
        assert_eq!(file_name("Fair: 30:1, ../é/x"), "fair-30-1-x");
        assert_eq!(file_name(&"a".repeat(90)).len(), 80);
    }
}
