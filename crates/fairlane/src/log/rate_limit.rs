//! A rate limit for the log lines of each vif and reason: a burst, then one line in a while. Lines above the limit are left out and
//! counted, and a line with their number takes the place of the next one.
//!
//! Lines that guests, frontends and the wire can cause come from ports, so those are limited: per vif and message if they name a vif,
//! so that a frontend that reconnects all the time does not hide why it is rejected; else per location in the source.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Burst, in lines: a guest that starts and stops causes a few of each reason.
const BURST: u32 = 10;

/// Time after which one more line is admitted.
const INTERVAL: Duration = Duration::from_secs(5);

/// The crate of the ports, a prefix of their lines' targets.
const PORT_CRATE: &str = "fairlane_port";

/// A token bucket per source of lines: `vif=NAME: MESSAGE`, or a location. Clones share the buckets.
#[derive(Clone, Default)]
pub(super) struct RateLimiter(Arc<Mutex<HashMap<String, Bucket>>>);

/// A token bucket, stored as the time at which it will be full.
struct Bucket {
    full: Instant,
    dropped: u64,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let full = self.full.max(now) + INTERVAL;
        let has_one = full <= now + BURST * INTERVAL;
        if has_one {
            self.full = full;
        }
        has_one
    }
}

impl RateLimiter {
    /// Whether a line of this source is admitted. After dropped lines, their number comes first.
    fn admits(&self, source: String, now: Instant) -> bool {
        let mut buckets = self.buckets();
        let bucket = buckets.entry(source).or_insert(Bucket { full: now, dropped: 0 });
        let admitted = bucket.dropped == 0 && bucket.take(now);
        bucket.dropped += u64::from(!admitted);
        admitted
    }

    /// The sources that may log a line again and have dropped some, with their number. Full buckets are removed.
    fn due(&self, now: Instant) -> Vec<(String, u64)> {
        let mut due = Vec::new();
        self.buckets().retain(|source, bucket| {
            if bucket.dropped > 0 && bucket.take(now) {
                due.push((source.clone(), std::mem::take(&mut bucket.dropped)));
            }
            bucket.dropped > 0 || bucket.full > now
        });
        due
    }

    /// Logs the numbers of dropped lines that may be logged now.
    pub(super) fn report_due(&self) {
        report(self.due(Instant::now()));
    }

    /// Logs all numbers of dropped lines, before the process ends.
    pub(super) fn report_all(&self) {
        let all: Vec<_> = self.buckets().drain().map(|(source, bucket)| (source, bucket.dropped)).collect();
        report(all.into_iter().filter(|(_, lines)| *lines > 0));
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Bucket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(dropped: impl IntoIterator<Item = (String, u64)>) {
    for (source, lines) in dropped {
        tracing::warn!("{source}: {lines} more such lines were left out");
    }
}

impl<S: Subscriber> Layer<S> for RateLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if !metadata.target().starts_with(PORT_CRATE) {
            return true;
        }
        let mut line = Line::default();
        event.record(&mut line);
        // An event's name is its location. The messages of lines about a vif are constant; what varies are fields.
        let source = line.vif.map(|vif| format!("vif={vif}: {}", line.message));
        self.admits(source.unwrap_or_else(|| metadata.name().to_owned()), Instant::now())
    }
}

/// A line's message, and the vif that it names.
#[derive(Default)]
struct Line {
    vif: Option<String>,
    message: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "vif" => self.vif = Some(format!("{value:?}")),
            "message" => self.message = format!("{value:?}"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs `lines` lines at one time. Returns how many are admitted.
    fn log(limiter: &RateLimiter, source: &str, lines: u32, now: Instant) -> u32 {
        (0..lines).map(|_| u32::from(limiter.admits(source.to_owned(), now))).sum()
    }

    #[test]
    fn lines_above_the_limit_are_counted_and_reported_once_a_line_is_admitted() {
        let (limiter, start) = (RateLimiter::default(), Instant::now());
        assert_eq!(log(&limiter, "web", 1000, start), BURST);
        assert_eq!(log(&limiter, "db", 3, start), 3, "one source does not use up the limit of another");
        assert_eq!(limiter.due(start), []);
        // Even a line within the limit does not come before the number.
        let later = start + INTERVAL;
        assert_eq!(log(&limiter, "web", 1, later), 0);
        assert_eq!(limiter.due(later), [("web".to_owned(), u64::from(1000 - BURST) + 1)]);
        assert_eq!(limiter.due(later), []);
        assert_eq!(log(&limiter, "web", 1, later), 0, "the number was a line");
        let later = later + INTERVAL;
        assert_eq!(limiter.due(later), [("web".to_owned(), 1)]);
        assert_eq!(log(&limiter, "web", 2, later + 2 * INTERVAL), 2);
    }

    #[test]
    fn the_bucket_of_a_quiet_source_is_removed_and_full_again() {
        let (limiter, start) = (RateLimiter::default(), Instant::now());
        assert_eq!(log(&limiter, "web", BURST, start), BURST);
        let later = start + BURST * INTERVAL;
        assert_eq!(limiter.due(later), []);
        assert!(limiter.buckets().is_empty());
        assert_eq!(log(&limiter, "web", 1000, later), BURST);
    }
}
