//! The state of the screen, changed only by snapshots and keys.

use super::history::History;
use fairlane_engine::reading::{Reading, VifReading};
use fairlane_engine::snapshot::Snapshot;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

/// Rows that a page key scrolls.
const PAGE: u16 = 20;

/// Shown until there are two snapshots to compare.
const FIRST: &str = "waiting for the first figures";

/// How the vifs are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    /// In the policy's order.
    Policy,
    /// By sent bytes, the most first.
    Sent,
    /// By received bytes, the most first.
    Received,
    /// By dropped frames, the most first.
    Drops,
    /// By waits (p99), the longest first.
    Waits,
}

impl SortKey {
    /// The name shown to the user.
    pub(super) fn name(self) -> &'static str {
        match self {
            SortKey::Policy => "policy",
            SortKey::Sent => "sent",
            SortKey::Received => "received",
            SortKey::Drops => "drops",
            SortKey::Waits => "waits",
        }
    }

    fn next(self) -> SortKey {
        match self {
            SortKey::Policy => SortKey::Sent,
            SortKey::Sent => SortKey::Received,
            SortKey::Received => SortKey::Drops,
            SortKey::Drops => SortKey::Waits,
            SortKey::Waits => SortKey::Policy,
        }
    }
}

/// The state of the screen.
pub(super) struct App {
    /// The last reading; none until there are two snapshots of one backend.
    pub reading: Option<Reading>,
    /// The last minute.
    pub history: History,
    /// Why there is no reading.
    pub notice: String,
    /// How the vifs are sorted.
    pub order: SortKey,
    /// Whether new snapshots are ignored.
    pub paused: bool,
    /// The selected row, and how far the table is scrolled.
    pub table: TableState,
    last: Option<Snapshot>,
}

impl App {
    /// An empty screen.
    pub(super) fn new() -> App {
        App {
            reading: None,
            history: History::default(),
            notice: FIRST.to_owned(),
            order: SortKey::Policy,
            paused: false,
            table: TableState::new().with_selected(0),
            last: None,
        }
    }

    /// Handles a snapshot, or the error message of a failed call.
    pub(super) fn handle_snapshot(&mut self, answer: Result<Snapshot, String>) {
        if self.paused {
            return;
        }
        match answer {
            Ok(snapshot) => {
                self.reading = self.last.as_ref().and_then(|last| Reading::between(last, &snapshot));
                match (&self.last, &self.reading) {
                    (Some(last), Some(reading)) => self.history.add(last.time, reading),
                    _ => {
                        self.history = History::default();
                        self.notice = FIRST.to_owned();
                    }
                }
                self.last = Some(snapshot);
            }
            Err(error) => {
                (self.reading, self.last, self.history) = (None, None, History::default());
                self.notice = format!("waiting for a backend: {error}");
            }
        }
    }

    /// Handles a key. Returns whether to quit.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Down => self.table.select_next(),
            KeyCode::Up => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(PAGE),
            KeyCode::PageUp => self.table.scroll_up_by(PAGE),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
        false
    }

    /// The vifs, sorted. Equal ones keep the policy's order.
    pub(super) fn vifs(&self) -> Vec<&VifReading> {
        let mut vifs: Vec<&VifReading> = self.reading.iter().flat_map(|reading| &reading.vifs).collect();
        match self.order {
            SortKey::Policy => {}
            SortKey::Sent => vifs.sort_by(|a, b| b.sent_rate.total_cmp(&a.sent_rate)),
            SortKey::Received => vifs.sort_by(|a, b| b.received_rate.total_cmp(&a.received_rate)),
            SortKey::Drops => vifs.sort_by(|a, b| b.drop_rate.total_cmp(&a.drop_rate)),
            SortKey::Waits => vifs.sort_by_key(|vif| std::cmp::Reverse(vif.wait_p99.max(vif.seen.not_served()))),
        }
        vifs
    }
}
