//! What `top` shows: changed by snapshots and keys, and by nothing else.

use super::state::{History, Reading, VifReading};
use fairlane_engine::snapshot::Snapshot;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

/// Rows that a page key goes.
const PAGE: u16 = 20;

/// By what the vifs are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the policy has them.
    Policy,
    /// Who sends most comes first.
    Sent,
    /// Who receives most comes first.
    Received,
    /// Who loses most comes first.
    Drops,
    /// Who waits longest comes first.
    Waits,
}

impl Order {
    /// What the user is told.
    pub fn name(self) -> &'static str {
        match self {
            Order::Policy => "policy",
            Order::Sent => "sent",
            Order::Received => "received",
            Order::Drops => "drops",
            Order::Waits => "waits",
        }
    }

    fn next(self) -> Order {
        match self {
            Order::Policy => Order::Sent,
            Order::Sent => Order::Received,
            Order::Received => Order::Drops,
            Order::Drops => Order::Waits,
            Order::Waits => Order::Policy,
        }
    }
}

/// The state of the screen.
pub struct App {
    /// The last reading; none until there are two snapshots of one backend.
    pub reading: Option<Reading>,
    /// The last minute.
    pub history: History,
    /// Why there is no reading.
    pub notice: String,
    /// By what the vifs are sorted.
    pub order: Order,
    /// Whether new snapshots are passed over.
    pub paused: bool,
    /// The selected row, and how far the table is scrolled.
    pub table: TableState,
    last: Option<Snapshot>,
}

impl App {
    /// An empty screen.
    pub fn new() -> App {
        App {
            reading: None,
            history: History::default(),
            notice: "waiting for the first figures".to_owned(),
            order: Order::Policy,
            paused: false,
            table: TableState::new().with_selected(0),
            last: None,
        }
    }

    /// Takes what the backend answered, or the sentence that says why it did not.
    pub fn take(&mut self, seen: Result<Snapshot, String>) {
        if self.paused {
            return;
        }
        match seen {
            Ok(snapshot) => {
                self.reading = self.last.as_ref().and_then(|last| Reading::between(last, &snapshot));
                match (&self.last, &self.reading) {
                    (Some(last), Some(reading)) => self.history.add(last.time, reading),
                    _ => {
                        self.history = History::default();
                        self.notice = "waiting for the first figures".to_owned();
                    }
                }
                self.last = Some(snapshot);
            }
            Err(sentence) => {
                (self.reading, self.last, self.history) = (None, None, History::default());
                self.notice = format!("waiting for a backend: {sentence}");
            }
        }
    }

    /// Follows a key. Returns whether it says to end.
    pub fn press(&mut self, key: KeyEvent) -> bool {
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

    /// The vifs as they are sorted now. Equal ones keep the policy's order.
    pub fn vifs(&self) -> Vec<&VifReading> {
        let mut vifs: Vec<&VifReading> = self.reading.iter().flat_map(|reading| &reading.vifs).collect();
        match self.order {
            Order::Policy => {}
            Order::Sent => vifs.sort_by(|a, b| b.sent.total_cmp(&a.sent)),
            Order::Received => vifs.sort_by(|a, b| b.received.total_cmp(&a.received)),
            Order::Drops => vifs.sort_by(|a, b| b.drops.total_cmp(&a.drops)),
            Order::Waits => vifs.sort_by_key(|vif| std::cmp::Reverse(vif.p99)),
        }
        vifs
    }
}
