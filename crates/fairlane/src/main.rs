//! The `fairlane` command: a network backend for virtual machines that shares links fairly, and tools to measure it.
//!
//! Each subcommand is a module. Exit status: 0 success, 1 failure, 2 wrong usage or an invalid policy or experiment. (`doctor`: 1
//! means findings.)

#![forbid(unsafe_code)]

mod backend;
mod check;
mod compare;
mod completions;
mod ctl;
mod demo;
mod doctor;
mod figures;
mod fleet;
mod host;
mod init;
mod lab;
mod libvirt;
mod load;
mod log;
mod man;
mod out;
mod policy_file;
mod report;
mod save;
mod schema;
mod sim;
mod sweep;
mod top;
mod up;
mod upgrade;

use clap::{Parser, Subcommand};
use std::io::Write;
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
    Up(up::Args),
    Upgrade(upgrade::Args),
    Init(init::Args),
    Check(check::Args),
    Schema(schema::Args),
    Ctl(ctl::Args),
    Top(top::Args),
    Demo(demo::Args),
    Doctor(doctor::Args),
    #[command(subcommand)]
    Lab(lab::Command),
    #[command(subcommand)]
    Load(load::Command),
    Compare(compare::Args),
    Sim(sim::Args),
    #[command(subcommand)]
    Sweep(sweep::Command),
    #[command(subcommand)]
    Fleet(fleet::Command),
    Report(report::Args),
    LibvirtHook(libvirt::Args),
    Completions(completions::Args),
    Man(man::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Up(args) => up::run(args),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Init(args) => init::run(args),
        Command::Check(args) => check::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Top(args) => top::run(args),
        Command::Demo(args) => match demo::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Doctor(args) => match doctor::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Lab(command) => match lab::run(command) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Load(command) => match load::run(command) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Compare(args) => match compare::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Sim(args) => sim::run(args),
        Command::Sweep(command) => sweep::run(command),
        Command::Fleet(command) => fleet::run(command),
        Command::Report(args) => report::run(args),
        Command::LibvirtHook(args) => libvirt::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the exit status has to do.
            let _ = writeln!(std::io::stderr(), "{error:#}");
            let wrong = error.is::<policy_file::PolicyError>()
                || error.is::<lab::ExperimentError>()
                || error.is::<sim::PlanError>()
                || error.is::<load::UsageError>()
                || error.is::<doctor::DoctorError>();
            ExitCode::from(if wrong { 2 } else { 1 })
        }
    }
}
