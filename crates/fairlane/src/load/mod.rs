//! Generates traffic to measure the throughput and latency of a network path to a server.

mod client;
mod files;
mod record;
mod repeats;
mod run;
mod server;
mod show;
mod target;

pub(crate) use target::parse_percent;

use std::io::Write;
use std::process::ExitCode;

/// Generate traffic and measure it
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Server(server::Args),
    Client(client::Args),
}

/// Runs a subcommand. Exit status: 0 success, 1 incomplete, 2 invalid arguments, 130 interrupted.
///
/// # Errors
/// The failure of the subcommand.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Server(args) => server::run(args),
        Command::Client(args) => client::run(args),
    }
}

/// Invalid arguments.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(String);

/// The error of a run: of its arguments, or of the system.
fn run_error(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => UsageError(error.to_string()).into(),
        _ => error.into(),
    }
}

/// Prints a status line to standard error. A closed standard error is ignored.
fn print_status(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
