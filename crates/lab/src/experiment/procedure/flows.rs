//! Throughput from each of several senders in each interval, as the receiver counts it.

use std::net::IpAddr;

use fairlane_agent::Event;
use fairlane_report::stats;

use super::super::plan::Addresses;
use crate::Node;

/// The throughput of one repeat, in Mbit/s of payload.
pub(super) struct Flows {
    /// The length of an interval, in seconds.
    interval: f64,
    /// The end of each interval.
    pub times: Vec<f64>,
    /// The throughput of each sender in each interval.
    pub rates: Vec<Vec<f64>>,
}

impl Flows {
    /// Reads a receiver's samples of these senders over `seconds`.
    pub(super) fn read(senders: &[Node], at: Addresses, events: &[Event], interval: f64, seconds: f64) -> Flows {
        let count = (seconds / interval).round() as usize;
        let times = (1..=count).map(|index| index as f64 * interval).collect();
        let mut rates = vec![vec![0.0; count]; senders.len()];
        for event in events {
            let Event::Sample(sample) = event else { continue };
            let from = |sender: &Node| sample.source.ip() == IpAddr::V4(at(*sender));
            let place = ((sample.t / interval).round() as usize).checked_sub(1);
            if let (Some(sender), Some(place)) = (senders.iter().position(from), place)
                && let Some(rate) = rates[sender].get_mut(place)
            {
                *rate += sample.bytes as f64 * 8.0 / interval / 1e6;
            }
        }
        Flows { interval, times, rates }
    }

    /// The throughput from a sender, given by its index, in the intervals within a time span.
    pub(super) fn within(&self, sender: usize, from: f64, until: f64) -> Vec<f64> {
        let inside = |t: f64| t - self.interval >= from - 1e-6 && t <= until + 1e-6;
        self.times.iter().zip(&self.rates[sender]).filter(|(t, _)| inside(**t)).map(|(_, rate)| *rate).collect()
    }

    /// A sender's throughput over time.
    pub(super) fn points(&self, sender: usize) -> impl Iterator<Item = [f64; 2]> {
        self.times.iter().zip(&self.rates[sender]).map(|(t, rate)| [*t, *rate])
    }
}

/// The largest sample; NaN if any of them is NaN, which a maximum would hide.
pub(super) fn worst(samples: impl Iterator<Item = f64>) -> f64 {
    samples.reduce(|a, b| if a.is_nan() || a > b { a } else { b }).unwrap_or(f64::NAN)
}

/// The mean; NaN of no samples.
pub(super) fn mean(samples: &[f64]) -> f64 {
    stats::mean(samples).unwrap_or(f64::NAN)
}
