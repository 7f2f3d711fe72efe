//! The log of `fairlane up`, on standard error. A worker that logs keeps serving: no thread waits for the reader of the log
//! ([`queue`]), and lines that guests and the wire can cause are rate-limited ([`rate_limit`]). Lines are text, or JSON objects.

mod queue;
mod rate_limit;

use fairlane_engine::confinement;
use queue::Queue;
use rate_limit::RateLimiter;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// The running log. Queued lines are written when it is dropped, and before the process ends because of a failure.
pub(crate) struct Log {
    limiter: RateLimiter,
    queue: Queue,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// A JSON object: `timestamp`, `level`, `target`, `message`, and a member for each field of the line, such as `vif`.
    Json,
}

/// Starts to log what passes the filter. Panics are logged too, since printing one directly could block.
///
/// # Errors
/// No descriptor can be duplicated or no thread started.
pub(crate) fn start(filter: EnvFilter, format: Format) -> io::Result<Log> {
    // Not the standard library's handle: a blocked write would hold its lock.
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let limiter = RateLimiter::default();
    let leftovers = limiter.clone();
    let queue = Queue::start(out, format, move || {
        leftovers.report_due();
        confinement::log_refused();
    })?;
    let lines = queue.clone();
    // If standard error is closed, the backend keeps serving its guests.
    let layer = fmt::layer().with_writer(move || lines.clone()).log_internal_errors(false);
    let layer = match format {
        Format::Text => layer.with_ansi(io::stderr().is_terminal()).boxed(),
        Format::Json => layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(limiter.clone()).with(layer).init();
    panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => tracing::error!("{panic}\n{trace}"),
            _ => tracing::error!("{panic}"),
        }
    }));
    let (last_limiter, last_queue) = (limiter.clone(), queue.clone());
    fairlane_engine::failure::before_end(move || end(&last_limiter, &last_queue));
    Ok(Log { limiter, queue })
}

/// Writes the queued lines, as far as standard error accepts them within a second.
fn end(limiter: &RateLimiter, queue: &Queue) {
    limiter.report_all();
    confinement::log_refused();
    queue.flush();
}

impl Drop for Log {
    fn drop(&mut self) {
        end(&self.limiter, &self.queue);
    }
}

#[cfg(test)]
mod tests;
