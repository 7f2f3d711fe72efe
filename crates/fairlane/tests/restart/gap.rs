//! The gap that pings see.

use fairlane_load::ping::RoundTrips;

/// The longest time between two answers to pings, one every `interval`; all in seconds.
pub(crate) fn gap(trips: &RoundTrips, interval: f64) -> f64 {
    let arrival = |(number, trip): (usize, &Option<f64>)| trip.map(|trip| number as f64 * interval + trip);
    let mut arrivals: Vec<f64> = trips.seconds.iter().enumerate().filter_map(arrival).collect();
    arrivals.sort_by(f64::total_cmp);
    arrivals.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
}

/// The median and the worst of some gaps, in milliseconds, as text.
pub(crate) fn summary(gaps: &[f64]) -> String {
    let mut sorted = gaps.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (median, worst) = (sorted.get(sorted.len() / 2), sorted.last());
    let number = |gap: Option<&f64>| gap.map_or("none".to_owned(), |gap| format!("{:.1} ms", gap * 1000.0));
    format!("p50 {}, worst {} of {}", number(median), number(worst), sorted.len())
}
