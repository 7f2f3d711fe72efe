//! What a vif may have said: some lines at once, then one in a while. What is beyond is left out and counted, and the number takes the
//! place of the next line.
//!
//! What guests, frontends and the wire cause is said by ports, so their lines are bounded: by vif where they name one, else by their
//! place in the source.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines at once: a guest that starts and stops has some.
const LINES: u32 = 20;

/// How long after a line there is room for one more.
const EACH: Duration = Duration::from_secs(5);

/// The crate of the ports.
const PORTS: &str = "fairlane_port";

/// The bound of each who has something to say. Clones are the same.
#[derive(Clone, Default)]
pub struct Bound(Arc<Mutex<HashMap<String, Bucket>>>);

/// A token bucket, by the time at which it will be full.
struct Bucket {
    full: Instant,
    left_out: u64,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let full = self.full.max(now) + EACH;
        let has_one = full <= now + LINES * EACH;
        if has_one {
            self.full = full;
        }
        has_one
    }
}

impl Bound {
    /// Whether one may have a line. Once some were left out, that is first said.
    fn admits(&self, who: String, now: Instant) -> bool {
        let mut buckets = self.buckets();
        let bucket = buckets.entry(who).or_insert(Bucket { full: now, left_out: 0 });
        let admitted = bucket.left_out == 0 && bucket.take(now);
        bucket.left_out += u64::from(!admitted);
        admitted
    }

    /// Who has room for a line again that says how many were left out, and that number. Whose bucket is full is forgotten.
    fn due(&self, now: Instant) -> Vec<(String, u64)> {
        let mut due = Vec::new();
        self.buckets().retain(|who, bucket| {
            if bucket.left_out > 0 && bucket.take(now) {
                due.push((who.clone(), std::mem::take(&mut bucket.left_out)));
            }
            bucket.left_out > 0 || bucket.full > now
        });
        due
    }

    /// Logs what is due.
    pub fn tell_due(&self) {
        tell(self.due(Instant::now()));
    }

    /// Logs all that was left out: there will be no later.
    pub fn tell_all(&self) {
        let all: Vec<_> = self.buckets().drain().map(|(who, bucket)| (who, bucket.left_out)).collect();
        tell(all.into_iter().filter(|(_, lines)| *lines > 0));
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Bucket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(left_out: impl IntoIterator<Item = (String, u64)>) {
    for (who, lines) in left_out {
        tracing::warn!("{who} said too much: lines left out: {lines}");
    }
}

impl<S: Subscriber> Layer<S> for Bound {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if !metadata.target().starts_with(PORTS) {
            return true;
        }
        let mut vif = Vif(None);
        event.record(&mut vif);
        // An event's name is its place.
        self.admits(vif.0.unwrap_or_else(|| metadata.name().to_owned()), Instant::now())
    }
}

/// The vif that a line names.
struct Vif(Option<String>);

impl Visit for Vif {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "vif" {
            self.0 = Some(format!("vif={value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `lines` lines are admitted, said at one time.
    fn say(bound: &Bound, who: &str, lines: u32, now: Instant) -> u32 {
        (0..lines).map(|_| u32::from(bound.admits(who.to_owned(), now))).sum()
    }

    #[test]
    fn what_is_too_much_is_counted_and_said_once_there_is_room() {
        let (bound, start) = (Bound::default(), Instant::now());
        assert_eq!(say(&bound, "web", 1000, start), LINES);
        assert_eq!(say(&bound, "db", 3, start), 3, "who is loud keeps nobody else from being heard");
        assert_eq!(bound.due(start), []);
        // Not even a line that would have room comes before the number.
        let later = start + EACH;
        assert_eq!(say(&bound, "web", 1, later), 0);
        assert_eq!(bound.due(later), [("web".to_owned(), 981)]);
        assert_eq!(bound.due(later), []);
        assert_eq!(say(&bound, "web", 1, later), 0, "the number was a line");
        let later = later + EACH;
        assert_eq!(bound.due(later), [("web".to_owned(), 1)]);
        assert_eq!(say(&bound, "web", 2, later + 2 * EACH), 2);
    }

    #[test]
    fn who_is_quiet_is_forgotten_and_may_say_as_much_again() {
        let (bound, start) = (Bound::default(), Instant::now());
        assert_eq!(say(&bound, "web", LINES, start), LINES);
        let later = start + LINES * EACH;
        assert_eq!(bound.due(later), []);
        assert!(bound.buckets().is_empty());
        assert_eq!(say(&bound, "web", 1000, later), LINES);
    }
}
