//! Traffic: what a network path carries and how long it takes, from here to a server.

mod client;
mod files;
mod record;
mod repeats;
mod run;
mod server;
mod show;
mod target;

pub use target::parse_percent;

use std::io::Write;
use std::process::ExitCode;

/// Make traffic, and measure it
#[derive(clap::Subcommand)]
pub enum Command {
    Server(server::Args),
    Client(client::Args),
}

/// Runs a subcommand. Exit status: 0 done, 1 incomplete, 2 wrong orders, 130 interrupted.
///
/// # Errors
/// A sentence: what is in the way.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Server(args) => server::run(args),
        Command::Client(args) => client::run(args),
    }
}

/// Orders that cannot be carried out by anybody.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

/// An error of a run: its orders', or the system's.
fn refused(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => UsageError(error.to_string()).into(),
        _ => error.into(),
    }
}

/// A line for whoever watches. Where nobody does, nothing is lost.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
