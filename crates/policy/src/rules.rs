//! The values that each key allows: one function per kind of value, shared by the file and `ctl set`.
//!
//! An error is a [`Phrase`], which completes a sentence that starts with the key; it is only displayed.

use super::units::{QuantityError, format_duration, format_rate, format_size, parse_duration, parse_rate, parse_size};
use super::{Account, SchedulerKind};
use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::time::{Nanos, SECOND};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use toml::de::DeValue;

/// What is wrong with a value, to follow its key: `must be 1 to 10000, not 0`.
pub(super) type Phrase = String;

/// The default weight of a vif.
pub(super) const WEIGHT: u32 = 100;
/// The default idle timeout of a link.
pub(super) const IDLE_TIMEOUT: Nanos = Nanos::from_millis(100);
/// The default credit interval of Linux xen-netback, if xenstore's `rate` has none.
pub(super) const REFILL: Nanos = Nanos::from_millis(50);

/// The numbers that each key allows.
pub(super) const WEIGHTS: RangeInclusive<i64> = 1..=10_000;
pub(super) const FRAMES: RangeInclusive<i64> = 1..=1_000_000_000;
pub(super) const FRAME_BURSTS: RangeInclusive<i64> = 1..=1_000_000;
pub(super) const QUEUES: RangeInclusive<i64> = 1..=16;
/// A core's number, below Linux's CPU_SETSIZE.
pub(super) const CPUS: RangeInclusive<i64> = 0..=1023;
/// The number of a user or a group. The largest number means "none" (chown(2)).
pub(super) const ACCOUNTS: RangeInclusive<i64> = 0..=u32::MAX as i64 - 1;

/// The schedulers.
pub(super) const SCHEDULERS: [&str; 3] = ["fair", "wrr", "netback"];

/// The longest name of a link, tenant or vif, in bytes.
pub(super) const NAME: usize = 32;
/// The longest name of a network interface: shorter than IFNAMSIZ.
pub(super) const INTERFACE: usize = 15;
/// The longest path of a Unix socket: it must fit into `sun_path` with a final zero.
pub(super) const PATH: usize = 107;

/// The default burst of a vif in bytes: 10 ms of its `max_rate`, at least 64 KiB.
pub(super) fn default_burst(max_rate: Option<u64>) -> u64 {
    (max_rate.unwrap_or(0) / 800).max(64 << 10)
}

/// The default frame burst: 10 ms of its `max_frames`, at least 64.
pub(super) fn default_frame_burst(max_frames: Option<u64>) -> u64 {
    (max_frames.unwrap_or(0) / 100).max(64)
}

/// A value as text for a message.
pub(super) fn shown(value: &DeValue) -> String {
    match value {
        DeValue::String(text) if text.chars().count() > 40 => {
            format!("{:?}...", text.chars().take(40).collect::<String>())
        }
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

pub(super) fn text(value: &DeValue) -> Result<String, Phrase> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("must be text in quotes, not {}", shown(value)))
}

pub(super) fn flag(value: &DeValue) -> Result<bool, Phrase> {
    value.as_bool().ok_or_else(|| format!("must be true or false, not {}", shown(value)))
}

/// `value`, or an error if it is not in the range. `show` formats the bounds.
fn within<T: PartialOrd + Copy, D: Display>(
    value: T,
    range: RangeInclusive<T>,
    given: &DeValue,
    show: impl Fn(T) -> D,
) -> Result<T, Phrase> {
    let (low, high) = (show(*range.start()), show(*range.end()));
    range.contains(&value).then_some(value).ok_or_else(|| format!("must be {low} to {high}, not {}", shown(given)))
}

fn number(value: &DeValue, range: RangeInclusive<i64>) -> Result<i64, Phrase> {
    let Some(given) = value.as_integer() else {
        let (low, high) = range.into_inner();
        return Err(format!("must be a whole number, {low} to {high}, not {}", shown(value)));
    };
    // A number that does not fit into 64 bits is outside any range.
    let number = i64::from_str_radix(given.as_str(), given.radix()).unwrap_or(i64::MIN);
    within(number, range, value, |bound| bound)
}

/// The text of a quantity. A bare number is returned as text, so that the error names the missing unit.
fn quantity<'a>(value: &'a DeValue) -> Result<&'a str, Phrase> {
    match value {
        DeValue::String(text) => Ok(text),
        DeValue::Integer(number) => Ok(number.as_str()),
        DeValue::Float(number) => Ok(number.as_str()),
        other => Err(format!("must be text in quotes, not {}", shown(other))),
    }
}

fn phrase(wrong: QuantityError) -> Phrase {
    wrong.to_string()
}

fn size(value: &DeValue) -> Result<u64, Phrase> {
    // The least is a full Ethernet frame.
    within(parse_size(quantity(value)?).map_err(phrase)?, 1514..=1 << 30, value, format_size)
}

fn duration(value: &DeValue, shortest: Nanos, longest: Nanos) -> Result<Nanos, Phrase> {
    within(parse_duration(quantity(value)?).map_err(phrase)?, shortest..=longest, value, format_duration)
}

/// A rate in bits a second, or `"none"`.
pub(super) fn rate(value: &DeValue) -> Result<Option<u64>, Phrase> {
    if value.as_str() == Some("none") {
        return Ok(None);
    }
    let rate = parse_rate(quantity(value)?).map_err(phrase);
    let rate = rate.and_then(|rate| within(rate, 1_000..=10_000_000_000_000, value, format_rate));
    rate.map(Some).map_err(|wrong| wrong.replacen(", not ", " or \"none\", not ", 1))
}

/// A guaranteed rate, 0 for `"none"`.
pub(super) fn min_rate(value: &DeValue) -> Result<u64, Phrase> {
    rate(value).map(|rate| rate.unwrap_or(0))
}

pub(super) fn weight(value: &DeValue) -> Result<u32, Phrase> {
    number(value, WEIGHTS).map(|weight| weight as u32)
}

/// Frames a second, or `"none"`.
pub(super) fn frames(value: &DeValue) -> Result<Option<u64>, Phrase> {
    if value.as_str() == Some("none") {
        return Ok(None);
    }
    let frames = number(value, FRAMES).map(|frames| Some(frames as u64));
    frames.map_err(|wrong| wrong.replacen(", not ", " or \"none\", not ", 1))
}

pub(super) fn frame_burst(value: &DeValue) -> Result<u64, Phrase> {
    number(value, FRAME_BURSTS).map(|frames| frames as u64)
}

pub(super) fn queues(value: &DeValue) -> Result<u16, Phrase> {
    number(value, QUEUES).map(|queues| queues as u16)
}

pub(super) fn cpu(value: &DeValue) -> Result<usize, Phrase> {
    number(value, CPUS).map(|cpu| cpu as usize)
}

pub(super) fn burst(value: &DeValue) -> Result<u64, Phrase> {
    size(value)
}

pub(super) fn queue(value: &DeValue) -> Result<u64, Phrase> {
    size(value)
}

/// The memory of a link's receive queues: at least one full queue of a card with large frames.
pub(super) fn pool(value: &DeValue) -> Result<u64, Phrase> {
    within(parse_size(quantity(value)?).map_err(phrase)?, 64 << 10..=64 << 30, value, format_size)
}

pub(super) fn rx_timeout(value: &DeValue) -> Result<Nanos, Phrase> {
    duration(value, Nanos::from_millis(1), Nanos(10 * SECOND))
}

pub(super) fn idle_timeout(value: &DeValue) -> Result<Nanos, Phrase> {
    duration(value, Nanos::from_micros(1), Nanos(60 * SECOND))
}

pub(super) fn refill(value: &DeValue) -> Result<Nanos, Phrase> {
    duration(value, Nanos::from_millis(1), Nanos(10 * SECOND))
}

pub(super) fn wire_delay(value: &DeValue) -> Result<Nanos, Phrase> {
    duration(value, Nanos(0), Nanos(10 * SECOND))
}

pub(super) fn scheduler(value: &DeValue) -> Result<SchedulerKind, Phrase> {
    match value.as_str() {
        Some("fair") => Ok(SchedulerKind::Fair),
        Some("wrr") => Ok(SchedulerKind::Wrr { prioritize: true }),
        Some("netback") => Ok(SchedulerKind::Netback { refill: REFILL }),
        _ => Err(format!("must be \"fair\", \"wrr\" or \"netback\", not {}", shown(value))),
    }
}

/// When TCP data is acknowledged early for a guest.
pub(super) fn early_ack(value: &DeValue) -> Result<Mode, Phrase> {
    match value {
        DeValue::Boolean(false) => Ok(Mode::Off),
        DeValue::Boolean(true) => Ok(Mode::Auto),
        DeValue::String(text) if text == "stalled" => Ok(Mode::Auto),
        DeValue::String(text) if text == "always" => Ok(Mode::Always),
        _ => Err(format!("must be true, false, \"stalled\" (the same as true) or \"always\", not {}", shown(value))),
    }
}

fn word(value: &DeValue, longest: usize) -> Result<String, Phrase> {
    let word = text(value)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if word.is_empty() || word.len() > longest || !word.chars().all(allowed) {
        let given = shown(value);
        return Err(format!("must be 1 to {longest} letters, digits, \"_\", \".\" or \"-\", not {given}"));
    }
    Ok(word)
}

pub(super) fn name(value: &DeValue) -> Result<String, Phrase> {
    word(value, NAME)
}

/// A tenant's name, or `"none"`.
pub(super) fn tenant(value: &DeValue) -> Result<Option<String>, Phrase> {
    if value.as_str() == Some("none") { Ok(None) } else { name(value).map(Some) }
}

/// The name of a network interface: neither "." nor ".." (`dev_valid_name` in Linux).
pub(super) fn interface(value: &DeValue) -> Result<String, Phrase> {
    let name = word(value, INTERFACE)?;
    if name == "." || name == ".." {
        return Err(format!("must be the name of a network interface, not {name:?}"));
    }
    Ok(name)
}

/// The path of a Unix socket.
pub(super) fn socket(value: &DeValue) -> Result<PathBuf, Phrase> {
    let path = text(value)?;
    if path.is_empty() || path.contains('\0') {
        return Err(format!("must be the path of a socket, not {}", shown(value)));
    }
    match path.len() {
        0..=PATH => Ok(PathBuf::from(path)),
        long => Err(format!("must be at most {PATH} bytes, the longest path of a Unix socket, not {long} bytes")),
    }
}

/// A user or a group: a name that `/etc/passwd` can hold, or a number.
pub(super) fn account(value: &DeValue) -> Result<Account, Phrase> {
    match value {
        DeValue::String(name) if !name.is_empty() && !name.contains([':', '\n', '\0']) => {
            Ok(Account::Name(name.clone().into_owned()))
        }
        DeValue::String(_) => Err(format!("must be a name such as \"qemu\", or a number, not {}", shown(value))),
        _ => number(value, ACCOUNTS)
            .map(|number| Account::Number(number as u32))
            .map_err(|wrong| wrong.replacen("must be ", "must be a name in quotes or ", 1)),
    }
}

/// Permissions of a socket, as in chmod(1).
pub(super) fn mode(value: &DeValue) -> Result<u32, Phrase> {
    let digits = value
        .as_str()
        .filter(|text| (3..=4).contains(&text.len()) && text.len() < 4 + usize::from(text.starts_with('0')));
    let mode = digits.filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()));
    let mode = mode.and_then(|text| u32::from_str_radix(text, 8).ok());
    mode.ok_or_else(|| format!("must be permissions in octal and in quotes, such as \"0660\", not {}", shown(value)))
}

/// A card of a Xen guest, such as `web/0`. The guest's name may be any that Xen's toolstack accepts.
pub(super) fn xen(value: &DeValue) -> Result<(String, u32), Phrase> {
    let text = text(value)?;
    let (guest, device) = text.rsplit_once('/').unwrap_or((&text, "0"));
    match device.parse() {
        Ok(device) if !guest.is_empty() && !guest.contains(['/', '\0']) => Ok((guest.to_owned(), device)),
        _ => Err(format!("must be a guest and the number of its card, such as \"web/0\", not {}", shown(value))),
    }
}

pub(super) fn metrics(value: &DeValue) -> Result<SocketAddr, Phrase> {
    let address = value.as_str().and_then(|text| text.parse().ok());
    address.ok_or_else(|| format!("must be an address and a port, such as \"127.0.0.1:9477\", not {}", shown(value)))
}

/// A file that is read when the backend starts.
pub(super) fn path(value: &DeValue) -> Result<PathBuf, Phrase> {
    let path = text(value).map(PathBuf::from)?;
    let absolute = path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&0);
    if absolute { Ok(path) } else { Err(format!("must be a path that begins with /, not {}", shown(value))) }
}

/// A guest's MAC address: neither all zeros nor multicast.
pub(super) fn mac(value: &DeValue) -> Result<Mac, Phrase> {
    let Some(mac) = value.as_str().and_then(|text| text.parse::<Mac>().ok()) else {
        return Err(format!("must be a MAC address such as \"52:54:00:12:34:56\", not {}", shown(value)));
    };
    if !mac.is_station() {
        return Err(format!("must be one card's address, neither multicast nor zero, not {}", shown(value)));
    }
    Ok(mac)
}

/// A guest's IP address: unicast.
pub(super) fn address(value: &DeValue) -> Result<IpAddr, Phrase> {
    let Some(address) = value.as_str().and_then(|text| text.parse::<IpAddr>().ok()) else {
        let given = shown(value);
        return Err(format!("must be IP addresses such as \"10.0.0.1\" or \"fd00::1\", without a prefix, not {given}"));
    };
    if address.is_multicast() || address.is_unspecified() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err(format!("must be addresses of one host, not {}", shown(value)));
    }
    Ok(address)
}
