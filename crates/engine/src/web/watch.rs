//! Snapshots for clients, taken when somebody asks, at most one a second, and once each step for the history.

use super::Source;
use super::history::{History, STEP, View};
use crate::metrics;
use crate::reading::Reading;
use crate::snapshot::Snapshot;
use fairlane_policy::Kind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Oldest age of a snapshot.
const FRESH: Duration = Duration::from_secs(1);

/// A text for clients, or a sentence why there is none.
pub(super) type Text = Result<Arc<str>, Arc<str>>;

/// The present snapshot and what was made of it.
pub(super) struct Watch {
    source: Source,
    /// When the source was asked last.
    asked: Option<Instant>,
    /// An error is kept as long as a snapshot: workers that do not respond are not asked again at once.
    error: Option<Arc<str>>,
    present: Option<Arc<Snapshot>>,
    /// The snapshot before it.
    earlier: Option<Arc<Snapshot>>,
    metrics: Option<Arc<str>>,
    reading: Option<Arc<str>>,
    history: History,
    /// The snapshot at the beginning of the history's step.
    began: Option<Arc<Snapshot>>,
    /// End of the history's step.
    ends: Instant,
}

impl Watch {
    pub(super) fn new(source: Source) -> Watch {
        Watch {
            source,
            asked: None,
            error: None,
            present: None,
            earlier: None,
            metrics: None,
            reading: None,
            history: History::default(),
            began: None,
            ends: Instant::now(),
        }
    }

    /// When [`Watch::step`] is due.
    pub(super) fn next_step(&self) -> Instant {
        self.ends
    }

    /// Adds to the history if a step has ended.
    pub(super) fn step(&mut self, now: Instant) {
        if now < self.ends {
            return;
        }
        self.ends = (self.ends + STEP).max(now);
        self.refresh();
        if self.error.is_some() {
            return;
        }
        if let (Some(began), Some(present)) = (&self.began, &self.present)
            && let Some(reading) = Reading::between(began, present)
        {
            self.history.add(&reading);
        }
        self.began = self.present.clone();
    }

    /// The metrics, as OpenMetrics text.
    pub(super) fn metrics(&mut self) -> Text {
        self.refresh();
        let present = present(&self.error, &self.present)?;
        Ok(self.metrics.get_or_insert_with(|| metrics::page(present.clone()).into()).clone())
    }

    /// The reading between the last two snapshots, as JSON.
    pub(super) fn reading(&mut self) -> Text {
        self.refresh();
        let present = present(&self.error, &self.present)?;
        let made = || {
            // At first, everything that happened since the start.
            let begin = Snapshot::default();
            let reading = Reading::between(self.earlier.as_deref().unwrap_or(&begin), present);
            serde_json::to_string(&reading).unwrap_or_else(|error| format!("{:?}", error.to_string())).into()
        };
        Ok(self.reading.get_or_insert_with(made).clone())
    }

    /// The history of one.
    pub(super) fn history(&self, kind: Kind, name: &str) -> Option<View> {
        self.history.view(kind, name)
    }

    fn refresh(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < FRESH) {
            return;
        }
        match (self.source)() {
            Ok(snapshot) => {
                (self.metrics, self.reading, self.error) = (None, None, None);
                self.earlier = self.present.replace(Arc::new(snapshot));
            }
            Err(error) => self.error = Some(format!("{error}\n").into()),
        }
        self.asked = Some(Instant::now());
    }
}

/// The present snapshot, or a sentence why there is none.
fn present<'a>(error: &Option<Arc<str>>, present: &'a Option<Arc<Snapshot>>) -> Result<&'a Arc<Snapshot>, Arc<str>> {
    match (error, present) {
        (None, Some(present)) => Ok(present),
        (error, _) => Err(error.clone().unwrap_or_else(|| "no figures yet\n".into())),
    }
}
