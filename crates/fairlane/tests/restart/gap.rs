//! The gaps that pings see, in words.

/// The median and the worst of some gaps, in milliseconds, as text.
pub(crate) fn summary(gaps: &[f64]) -> String {
    let mut sorted = gaps.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (median, worst) = (sorted.get(sorted.len() / 2), sorted.last());
    let number = |gap: Option<&f64>| gap.map_or("none".to_owned(), |gap| format!("{:.1} ms", gap * 1000.0));
    format!("p50 {}, worst {} of {}", number(median), number(worst), sorted.len())
}
