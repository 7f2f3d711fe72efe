//! The network path of virtual machines, measured, shared fairly, kept fast.

#![forbid(unsafe_code)]

mod demo;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The network path of virtual machines, shared fairly
#[derive(Parser)]
#[command(name = "fairlane", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
}

fn main() -> ExitCode {
    let Command::Demo(args) = Cli::parse().command;
    demo::run(args).unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}
