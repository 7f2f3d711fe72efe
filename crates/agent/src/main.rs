//! The first program of a guest, and on the host what starts and keeps a machine's processes.
//!
//! As process 1 of a guest it prepares the kernel, then serves the host's requests over a serial console until it
//! is told to power off or the host hangs up. On the host it is called as
//! - `fairlane-agent keep DIRECTORY COMMAND...`: runs the command and sees to it that no part of it outlives its parent;
//! - `fairlane-agent place NETWORK CPUS COMMAND...`: becomes the command, in a network namespace and on CPUs;
//! - `fairlane-agent hotplug SCRIPT ACTION`: the interpreter of Xen's hotplug scripts;
//! - `fairlane-agent rsh PORT NODE WORD...`: the remote shell by which mpirun starts its daemons;
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
                eprintln!("standard input, which is to be a socket: {error}");
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
                "fairlane-agent is a guest's first program; on a host its use is: \
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
