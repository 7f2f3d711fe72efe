//! The traffic of a plan.

use super::file::TrafficKeys;
use super::{Place, find};
use crate::frame::{LONGEST, SHORTEST};
use crate::scenario::{self, Source, Traffic};
use crate::tcp;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_policy::problem::{Problems, unknown_name};
use toml::Spanned;

/// The word for the place beyond the fabric.
const OUTSIDE: &str = "outside";

/// Kinds, and the keys that each needs and may have.
const KINDS: [(&str, &[&str], &[&str]); 8] = [
    ("constant", &["rate"], &[]),
    ("poisson", &["rate"], &[]),
    ("on-off", &["rate", "on", "off"], &[]),
    ("flood", &[], &[]),
    ("requests", &["interval"], &[]),
    ("stream", &[], &["window", "congestion", "bytes"]),
    ("transfer", &["bytes", "pause"], &["window", "congestion", "persistent"]),
    ("incast", &["bytes", "interval"], &["window", "congestion"]),
];

/// Most bytes that a stream has in flight, as Linux's largest receive buffer allows by default.
const WINDOW: u64 = 6 << 20;

/// Most flows of one table.
const FLOWS: usize = 10_000_000;

/// Reads a table of traffic.
pub(super) fn read(
    keys: &Spanned<TrafficKeys>,
    places: &[Place],
    end: Nanos,
    problems: &mut Problems,
) -> Option<Traffic> {
    let (span, keys) = (keys.span(), keys.get_ref());
    let source = read_source(keys, problems)?;
    let frame = keys.frame.as_ref().map_or(1514, |frame| *frame.get_ref());
    if let Some(key) = keys.frame.as_ref().filter(|_| !(SHORTEST..=LONGEST).contains(&frame)) {
        problems.add(key.span(), format!("frame must be {SHORTEST} to {LONGEST} bytes, not {frame}"));
    }
    if source.is_stream() && frame < tcp::SHORTEST {
        let kind = keys.kind.get_ref();
        problems
            .add(span.clone(), format!("frame must be {} bytes or more for kind `{kind}`, not {frame}", tcp::SHORTEST));
    }
    if source.is_stream() && end > tcp::LONGEST {
        problems
            .add(keys.kind.span(), format!("a simulation with streams must be at most {} s", tcp::LONGEST.0 / SECOND));
    }
    let loss = keys.loss.as_ref().map_or(0.0, |loss| *loss.get_ref());
    if let Some(key) = keys.loss.as_ref().filter(|_| !(0.0..1.0).contains(&loss)) {
        problems.add(key.span(), format!("loss must be at least 0 and less than 1, such as 0.01, not {loss}"));
    }
    let time = (keys.start.map_or(Nanos(0), |start| start.0), keys.stop.map_or(end, |stop| stop.0));
    if time.0 >= time.1 {
        problems.add(span.clone(), "traffic must start before it stops, and before the end");
    }
    let flows = pairs(keys, places, problems)?;
    if source == Source::Flood && flows.iter().any(|(from, _)| *from == scenario::Place::Outside) {
        problems
            .add(keys.kind.span(), "what comes from outside has no ring to fill: give it a rate (kind = \"constant\")");
    }
    let name = keys.name.clone();
    let name =
        name.unwrap_or_else(|| format!("{}, {} to {}", keys.kind.get_ref(), keys.from.get_ref(), keys.to.get_ref()));
    let rtt = keys.rtt.map_or(Nanos(0), |rtt| rtt.0);
    let congestion = keys.congestion.as_ref().map_or_else(Default::default, |key| *key.get_ref());
    Some(Traffic { name, source, frame, time, rtt, loss, congestion, flows })
}

fn read_source(keys: &TrafficKeys, problems: &mut Problems) -> Option<Source> {
    let kind = keys.kind.get_ref().as_str();
    let Some((_, needed, allowed)) = KINDS.iter().find(|(name, ..)| *name == kind) else {
        let known = KINDS.iter().map(|(name, ..)| *name);
        problems.add(keys.kind.span(), unknown_name("kind", kind, known));
        return None;
    };
    let given = [
        ("rate", keys.rate.as_ref().map(Spanned::span)),
        ("on", keys.on.as_ref().map(Spanned::span)),
        ("off", keys.off.as_ref().map(Spanned::span)),
        ("interval", keys.interval.as_ref().map(Spanned::span)),
        ("window", keys.window.as_ref().map(Spanned::span)),
        ("congestion", keys.congestion.as_ref().map(Spanned::span)),
        ("bytes", keys.bytes.as_ref().map(Spanned::span)),
        ("pause", keys.pause.as_ref().map(Spanned::span)),
        ("persistent", keys.persistent.as_ref().map(Spanned::span)),
    ];
    let mut is_right = true;
    for (key, span) in given {
        match span {
            Some(span) if !needed.contains(&key) && !allowed.contains(&key) => {
                problems.add(span, format!("{key} does not belong to kind `{kind}`"));
                is_right = false;
            }
            None if needed.contains(&key) => {
                problems.add(keys.kind.span(), format!("kind `{kind}` needs the key {key}"));
                is_right = false;
            }
            _ => {}
        }
    }
    let length = |key: &Option<Spanned<super::Length>>| key.as_ref().map_or(Nanos(0), |key| key.get_ref().0);
    for (name, key) in [("on", &keys.on), ("interval", &keys.interval)] {
        if let Some(key) = key.as_ref().filter(|key| key.get_ref().0 < Nanos::from_micros(1)) {
            problems.add(key.span(), format!("{name} must be at least 1us"));
            is_right = false;
        }
    }
    if !is_right {
        return None;
    }
    let rate = keys.rate.as_ref().map_or(0, |rate| rate.get_ref().0);
    let interval = length(&keys.interval);
    let window = keys.window.as_ref().map_or(WINDOW, |window| window.get_ref().0);
    let bytes = keys.bytes.as_ref().map(|bytes| bytes.get_ref().0);
    Some(match kind {
        "constant" => Source::Constant { rate },
        "poisson" => Source::Poisson { rate },
        "on-off" => Source::OnOff { rate, on: length(&keys.on), off: length(&keys.off) },
        "flood" => Source::Flood,
        "requests" => Source::Requests { interval },
        "stream" => Source::Stream { window, bytes },
        "transfer" => {
            let anew = keys.persistent.as_ref().is_none_or(|persistent| !persistent.get_ref());
            Source::Transfer { bytes: bytes.unwrap_or(0), pause: length(&keys.pause), anew, window }
        }
        _ => Source::Incast { bytes: bytes.unwrap_or(0), interval, window },
    })
}

/// The ends of its flows: the larger side has one flow each, and the smaller side's members take turns.
fn pairs(
    keys: &TrafficKeys,
    places: &[Place],
    problems: &mut Problems,
) -> Option<Vec<(scenario::Place, scenario::Place)>> {
    let ends = |words: &Spanned<String>, problems: &mut Problems| -> Option<Vec<scenario::Place>> {
        if words.get_ref() == OUTSIDE {
            return Some(vec![scenario::Place::Outside]);
        }
        Some(find(words, places, problems)?.into_iter().map(scenario::Place::Guest).collect())
    };
    let (from, to) = (ends(&keys.from, problems)?, ends(&keys.to, problems)?);
    let streams = keys.streams.as_ref().map_or(1, |streams| *streams.get_ref());
    let all = from.len().max(to.len());
    if streams == 0 || streams.saturating_mul(all) > FLOWS {
        problems.add(keys.from.span(), format!("streams must be 1 or more, and flows {FLOWS} at most"));
        return None;
    }
    // Within one group, each member sends to the next.
    let shift = usize::from(from == to);
    let pair = |index: usize| (from[index % from.len()], to[(index + shift) % to.len()]);
    let flows: Vec<_> = (0..all).map(pair).filter(|(from, to)| from != to).collect();
    if flows.is_empty() {
        problems.add(keys.to.span(), "to must be another place than from");
        return None;
    }
    Some(flows.iter().flat_map(|flow| std::iter::repeat_n(*flow, streams)).collect())
}
