//! The log of `fairlane up`, on standard error. Nobody who has something to say waits for who reads it ([`queue`]), and what guests and
//! the wire can have said without end is bounded ([`bound`]): a worker that logs serves on.

mod bound;
mod queue;

use bound::Bound;
use fairlane_engine::confinement;
use queue::Queue;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// The running log. What it has is written when it is dropped, and before the process ends by a failure.
pub struct Log {
    bound: Bound,
    queue: Queue,
}

/// Starts to log what the filter lets pass. Panics are logged too: printing one could wait.
///
/// # Errors
/// What the system says: no descriptor or thread is left.
pub fn start(filter: EnvFilter) -> io::Result<Log> {
    // Not by the library's handle, whose lock a write that waits would keep from all others.
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let bound = Bound::default();
    let leftovers = bound.clone();
    let queue = Queue::start(out, move || {
        leftovers.tell_due();
        confinement::log_refused();
    })?;
    let lines = queue.clone();
    let layer = fmt::layer()
        .with_writer(move || lines.clone())
        .with_ansi(io::stderr().is_terminal())
        // A backend whose standard error was closed still has guests to serve.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(filter).with(bound.clone()).with(layer).init();
    panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => tracing::error!("{panic}\n{trace}"),
            _ => tracing::error!("{panic}"),
        }
    }));
    let (last_bound, last_queue) = (bound.clone(), queue.clone());
    fairlane_engine::failure::before_end(move || end(&last_bound, &last_queue));
    Ok(Log { bound, queue })
}

/// Writes what there is, as far as standard error takes it within a second.
fn end(bound: &Bound, queue: &Queue) {
    bound.tell_all();
    confinement::log_refused();
    queue.flush();
}

impl Drop for Log {
    fn drop(&mut self) {
        end(&self.bound, &self.queue);
    }
}

#[cfg(test)]
mod tests;
