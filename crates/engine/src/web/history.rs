//! A day of figures of links, tenants and vifs: ten minutes in steps of seconds, the rest in steps of minutes.
//!
//! Memory is bounded and taken as it is used: 18 KiB for each of at most [`MOST`] names, after a day.

use crate::reading::{LinkReading, Reading, TenantReading, VifReading};
use crate::waiting::Waiting;
use fairlane_policy::Kind;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Time between two samples.
pub(super) const STEP: Duration = Duration::from_secs(5);

/// Samples of the last ten minutes.
const RECENT: usize = 120;

/// Samples of the last minutes that make one of the day.
const MERGED: usize = 72;

/// Samples of the day, six minutes each.
const DAY: usize = 240;

/// Most links, tenants and vifs with a history; those that come later have none until others are gone.
const MOST: usize = 4_096;

/// Rows of a histogram of waits: below 1 us, then by factors of four up to 4 s, and longer.
const ROWS: usize = 13;

/// Waits below 2^10 ns are one row.
const FIRST_ROW: usize = 10;

/// Figures of one step. What is unknown is not a number.
#[derive(Clone, Copy)]
struct Sample {
    /// Seconds since the backend started, at the step's end.
    end: f32,
    sent: f32,
    received: f32,
    share: f32,
    due: f32,
    drops: f32,
    waits: [u8; ROWS],
    rx_waits: [u8; ROWS],
}

/// Of one link, tenant or vif.
#[derive(Default)]
struct Series {
    recent: VecDeque<Sample>,
    day: VecDeque<Sample>,
    /// Samples since the last one of the day.
    fresh: usize,
}

/// All series.
#[derive(Default)]
pub(super) struct History {
    series: HashMap<(Kind, String), Series>,
}

/// A series for clients: a column for each figure.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct View {
    /// The last ten minutes, every five seconds.
    recent: Columns,
    /// The last day, every six minutes.
    day: Columns,
}

/// Figures of steps, the oldest first. Rates are in bits a second; null if unknown.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Columns {
    /// End of the step in seconds since the backend started.
    end: Vec<f32>,
    sent_rate: Vec<f32>,
    received_rate: Vec<f32>,
    share: Vec<Option<f32>>,
    due: Vec<Option<f32>>,
    drop_rate: Vec<f32>,
    /// Number of waits by row: below 1.024 us, then below four times the row before.
    waits: Vec<[f32; ROWS]>,
    rx_waits: Vec<[f32; ROWS]>,
}

impl History {
    /// Adds a step. Those that are gone lose their history.
    pub(super) fn add(&mut self, reading: &Reading) {
        let end = (reading.time as f64 / 1e9) as f32;
        let mut old = std::mem::take(&mut self.series);
        let mut add = |kind, name: &str, sample: Sample| {
            let key = (kind, name.to_owned());
            let mut series = old.remove(&key).unwrap_or_default();
            series.add(sample);
            self.series.insert(key, series);
        };
        let mut link_waits: HashMap<&str, (Waiting, Waiting)> = HashMap::new();
        for vif in &reading.vifs {
            let (waits, rx_waits) = link_waits.entry(&vif.seen.link).or_default();
            waits.add(&vif.waits);
            rx_waits.add(&vif.rx_waits);
        }
        let none = (Waiting::default(), Waiting::default());
        for link in &reading.links {
            let waits = link_waits.get(link.seen.name.as_str()).unwrap_or(&none);
            add(Kind::Link, &link.seen.name, Sample::of_link(end, link, waits));
        }
        for tenant in &reading.tenants {
            add(Kind::Tenant, &tenant.seen.name, Sample::of_tenant(end, tenant));
        }
        for vif in reading.vifs.iter().take(MOST.saturating_sub(reading.links.len() + reading.tenants.len())) {
            add(Kind::Vif, &vif.seen.name, Sample::of_vif(end, vif));
        }
    }

    /// The figures of one; none if it has no history.
    pub(super) fn view(&self, kind: Kind, name: &str) -> Option<View> {
        let series = self.series.get(&(kind, name.to_owned()))?;
        Some(View { recent: columns(&series.recent), day: columns(&series.day) })
    }
}

impl Series {
    fn add(&mut self, sample: Sample) {
        push(&mut self.recent, RECENT, sample);
        self.fresh += 1;
        if self.fresh == MERGED {
            self.fresh = 0;
            let merged = Sample::mean(self.recent.iter().rev().take(MERGED));
            push(&mut self.day, DAY, merged);
        }
    }
}

fn push(samples: &mut VecDeque<Sample>, most: usize, sample: Sample) {
    if samples.len() == most {
        samples.pop_front();
    }
    samples.push_back(sample);
}

impl Sample {
    fn of_vif(end: f32, vif: &VifReading) -> Sample {
        Sample {
            end,
            sent: vif.sent_rate as f32,
            received: vif.received_rate as f32,
            share: vif.seen.share as f32,
            due: vif.due.map_or(f32::NAN, |due| due as f32),
            drops: vif.drop_rate as f32,
            waits: rows(&vif.waits),
            rx_waits: rows(&vif.rx_waits),
        }
    }

    fn of_link(end: f32, link: &LinkReading, (waits, rx_waits): &(Waiting, Waiting)) -> Sample {
        Sample {
            end,
            sent: link.out_rate as f32,
            received: link.in_rate as f32,
            share: f32::NAN,
            due: f32::NAN,
            drops: 0.0,
            waits: rows(waits),
            rx_waits: rows(rx_waits),
        }
    }

    fn of_tenant(end: f32, tenant: &TenantReading) -> Sample {
        // Parts of several links do not add up to a part of anything.
        let part = match &tenant.links[..] {
            [part] => Some((part.share as f32, part.due as f32)),
            _ => None,
        };
        let (share, due) = part.unwrap_or((f32::NAN, f32::NAN));
        let (sent, received) = (tenant.sent_rate as f32, tenant.received_rate as f32);
        Sample { end, sent, received, share, due, drops: 0.0, waits: [0; ROWS], rx_waits: [0; ROWS] }
    }

    /// The mean of samples, the latest first.
    fn mean<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Sample {
        let mean = |figure: fn(&Sample) -> f32| {
            let known = samples.clone().map(figure).filter(|value| !value.is_nan());
            let (sum, count) = known.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
            // Zero by zero is not a number: unknown.
            sum / count
        };
        let sum = |waits: fn(&Sample) -> [u8; ROWS]| {
            let row = |row: usize| pack(samples.clone().map(|sample| unpack(waits(sample)[row])).sum());
            std::array::from_fn(row)
        };
        Sample {
            end: samples.clone().next().map_or(f32::NAN, |latest| latest.end),
            sent: mean(|sample| sample.sent),
            received: mean(|sample| sample.received),
            share: mean(|sample| sample.share),
            due: mean(|sample| sample.due),
            drops: mean(|sample| sample.drops),
            waits: sum(|sample| sample.waits),
            rx_waits: sum(|sample| sample.rx_waits),
        }
    }
}

fn columns(samples: &VecDeque<Sample>) -> Columns {
    let mut columns = Columns::default();
    let known = |value: f32| Some(value).filter(|value| !value.is_nan());
    for sample in samples {
        columns.end.push(sample.end);
        columns.sent_rate.push(sample.sent);
        columns.received_rate.push(sample.received);
        columns.share.push(known(sample.share));
        columns.due.push(known(sample.due));
        columns.drop_rate.push(sample.drops);
        columns.waits.push(sample.waits.map(unpack));
        columns.rx_waits.push(sample.rx_waits.map(unpack));
    }
    columns
}

/// A histogram of [`ROWS`] rows.
fn rows(waiting: &Waiting) -> [u8; ROWS] {
    let mut rows = [0_u64; ROWS];
    for (bucket, count) in waiting.buckets.iter().enumerate() {
        rows[bucket.saturating_sub(FIRST_ROW).div_ceil(2).min(ROWS - 1)] += count;
    }
    rows.map(|count| pack(count as f32))
}

/// Eighths of the number's power of two: exact to 5%, up to 2^31.
fn pack(count: f32) -> u8 {
    ((count + 1.0).log2() * 8.0).round().min(255.0) as u8
}

fn unpack(eighths: u8) -> f32 {
    ((f32::from(eighths) / 8.0).exp2() - 1.0).round()
}

#[cfg(test)]
mod tests;
