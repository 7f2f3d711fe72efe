//! The lab's progress: a bar, or lines if standard error is no terminal.

use fairlane_lab::experiment::Watch;
use indicatif::{FormattedDuration, ProgressBar, ProgressStyle};
use std::io::Write;
use std::time::Duration;

/// Shows progress on standard error.
pub(super) struct Screen {
    bar: ProgressBar,
    lines: bool,
}

impl Screen {
    /// A screen for work of unknown duration.
    pub(super) fn spinner() -> anyhow::Result<Screen> {
        Screen::with(ProgressBar::new_spinner(), "{elapsed_precise} {msg}")
    }

    /// A screen for work of known duration, in seconds.
    pub(super) fn bar(seconds: f64) -> anyhow::Result<Screen> {
        Screen::with(ProgressBar::new(tenths(seconds)), "{elapsed_precise} {wide_bar} {msg}")
    }

    /// A screen that shows nothing.
    pub(super) fn hidden() -> Screen {
        Screen { bar: ProgressBar::hidden(), lines: false }
    }

    fn with(bar: ProgressBar, template: &str) -> anyhow::Result<Screen> {
        bar.set_style(ProgressStyle::with_template(template)?);
        bar.enable_steady_tick(Duration::from_millis(100));
        let lines = bar.is_hidden();
        Ok(Screen { bar, lines })
    }

    /// Removes the bar.
    pub(super) fn close(self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Screen {
    fn doing(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        if self.lines {
            let percent = |length: u64| format!(" {:3}%", (100 * self.bar.position() / length.max(1)).min(100));
            let done = self.bar.length().map(percent).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "{}{done} {what}", FormattedDuration(self.bar.elapsed()));
        }
    }

    fn advance(&self, seconds: f64) {
        self.bar.inc(tenths(seconds));
    }
}

fn tenths(seconds: f64) -> u64 {
    (seconds * 10.0) as u64
}
