//! A guest's init; on a host, helpers that start and end a machine's processes.
//!
//! As process 1 of a guest it sets the guest up, then serves the host's requests over a serial console until it is asked to power
//! off or the console is closed. Other uses:
//! - `fairlane-agent keep DIRECTORY COMMAND...`: runs the command, and kills all its processes when its parent ends;
//! - `fairlane-agent place NETWORK CPUS COMMAND...`: executes the command in a network namespace and on CPUs;
//! - `fairlane-agent hotplug SCRIPT ACTION`: the interpreter of Xen's hotplug scripts;
//! - `fairlane-agent rsh PORT NODE WORD...`: the remote shell that mpirun starts its daemons with;
//! - `fairlane-agent serve`: serves requests over standard input, a socket.
#![forbid(unsafe_code)]

mod hotplug;
mod init;
mod keep;
mod network;
mod place;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufReader},
    os::fd::AsFd,
    process::ExitCode,
};

use anyhow::Context;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [verb, home, command @ ..] if verb == "keep" && !command.is_empty() => keep::keep(home, command),
        [verb, network, cpus, command @ ..] if verb == "place" && !command.is_empty() => {
            place::place(&network.to_string_lossy(), &cpus.to_string_lossy(), command)
        }
        [verb] if verb == "serve" => match serve() {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("standard input, which must be a socket: {error}");
                ExitCode::FAILURE
            }
        },
        [verb, port, node, command @ ..] if verb == "rsh" => match rsh(port, node, command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("fairlane-agent rsh: {error:#}");
                ExitCode::FAILURE
            }
        },
        [verb, _script, action, ..] if verb == "hotplug" => match hotplug::hotplug(&action.to_string_lossy()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
        _ if std::process::id() == 1 => init::run(),
        _ => {
            eprintln!(
                "fairlane-agent is a guest's init; on a host it is used as: \
                 fairlane-agent keep DIRECTORY COMMAND... | place NETWORK CPUS COMMAND... | serve"
            );
            ExitCode::from(2)
        }
    }
}

fn rsh(port: &OsStr, node: &OsStr, command: &[OsString]) -> anyhow::Result<()> {
    let text = |word: &OsStr| word.to_string_lossy().into_owned();
    let port = text(port).parse().with_context(|| format!("{}: a port is needed", port.display()))?;
    let command: Vec<String> = command.iter().map(|word| text(word)).collect();
    Ok(fairlane_agent::mpi::rsh(port, &text(node), &command)?)
}

fn serve() -> io::Result<fairlane_agent::End> {
    let line = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    fairlane_agent::serve(BufReader::new(line.try_clone()?), line)
}
