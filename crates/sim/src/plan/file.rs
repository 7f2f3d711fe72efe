//! The keys of a plan file.

use crate::window::Congestion;
use fairlane_core::time::Nanos;
use fairlane_policy::units;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::{Spanned, Table};

/// A plan.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub seed: Option<u64>,
    pub seconds: Spanned<f64>,
    pub settle: Option<Spanned<Length>>,
    pub interval: Option<Length>,
    pub fabric: Option<FabricKeys>,
    #[serde(default)]
    pub host: Vec<Spanned<HostKeys>>,
    #[serde(default)]
    pub guest: Vec<GuestKeys>,
    #[serde(default)]
    pub traffic: Vec<Spanned<TrafficKeys>>,
    #[serde(default)]
    pub guarantee: Vec<GuaranteeKeys>,
    #[serde(default)]
    pub change: Vec<ChangeKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FabricKeys {
    pub delay: Option<Length>,
    pub capacity: Option<Rate>,
    pub buffer: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostKeys {
    pub name: Spanned<String>,
    pub count: Option<Spanned<usize>>,
    /// A policy file.
    pub policy: Option<Spanned<String>>,
    /// Or parts of a policy, with the policy's keys.
    pub link: Option<Spanned<Table>>,
    #[serde(default)]
    pub tenant: Vec<Spanned<Table>>,
    #[serde(default)]
    pub vif: Vec<Spanned<Table>>,
    pub card: Option<Rate>,
    pub costs: Option<CostKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuaranteeKeys {
    pub tenant: Spanned<String>,
    pub min_rate: Rate,
    pub delay: Option<Length>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeKeys {
    pub at: Spanned<Length>,
    /// A vif, tenant or link.
    pub of: Spanned<String>,
    /// Keys and values as of `fairlane ctl set`.
    pub set: Spanned<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CostKeys {
    pub frame_ns: Option<f64>,
    pub byte_ns: Option<f64>,
    pub wake: Option<Length>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkKeys {
    pub frame_ns: Option<f64>,
    pub byte_ns: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuestKeys {
    pub vif: Spanned<String>,
    pub runs: Option<Spanned<Length>>,
    pub waits: Option<Spanned<Length>>,
    pub phase: Option<Length>,
    pub trace: Option<Spanned<Trace>>,
    pub ring: Option<Spanned<u32>>,
    pub wake: Option<Length>,
    pub work: Option<Spanned<WorkKeys>>,
    pub rx_work: Option<Spanned<WorkKeys>>,
}

/// Turns of a guest, in the plan or in a file.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Trace {
    Here(Vec<Length>),
    File(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficKeys {
    pub name: Option<String>,
    pub kind: Spanned<String>,
    pub from: Spanned<String>,
    pub to: Spanned<String>,
    pub streams: Option<Spanned<usize>>,
    pub frame: Option<Spanned<u32>>,
    pub start: Option<Length>,
    pub stop: Option<Length>,
    pub rtt: Option<Length>,
    pub loss: Option<Spanned<f64>>,
    pub rate: Option<Spanned<Rate>>,
    pub on: Option<Spanned<Length>>,
    pub off: Option<Spanned<Length>>,
    pub interval: Option<Spanned<Length>>,
    pub window: Option<Spanned<Size>>,
    pub congestion: Option<Spanned<Congestion>>,
    pub bytes: Option<Spanned<Size>>,
    pub pause: Option<Spanned<Length>>,
    pub persistent: Option<Spanned<bool>>,
}

/// A duration.
#[derive(Clone, Copy)]
pub(super) struct Length(pub Nanos);

/// A rate in bits a second.
#[derive(Clone, Copy)]
pub(super) struct Rate(pub u64);

/// A size in bytes.
#[derive(Clone, Copy)]
pub(super) struct Size(pub u64);

impl<'a> Deserialize<'a> for Length {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Length, D::Error> {
        quantity(from, "a duration", units::parse_duration).map(Length)
    }
}

impl<'a> Deserialize<'a> for Rate {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Rate, D::Error> {
        let rate = quantity(from, "a rate", units::parse_rate)?;
        if rate == 0 { Err(D::Error::custom("a rate must be more than 0")) } else { Ok(Rate(rate)) }
    }
}

impl<'a> Deserialize<'a> for Size {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Size, D::Error> {
        quantity(from, "a size", units::parse_size).map(Size)
    }
}

/// Reads a quantity as the policy does.
fn quantity<'a, T, D: Deserializer<'a>>(
    from: D,
    what: &str,
    parse: fn(&str) -> Result<T, units::QuantityError>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|wrong| D::Error::custom(format!("{what} {wrong}")))
}
