//! The first program of a guest, and on the host the keeper of a guest's processes.
//!
//! As process 1 of a guest it prepares the kernel, then serves the host's requests over a serial console until it
//! is told to power off or the host hangs up. Called `fairlane-agent keep DIRECTORY COMMAND...` on the host, it runs the
//! command that is the guest and sees to it that no part of it outlives its parent.
#![forbid(unsafe_code)]

mod init;
mod keep;
mod network;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [verb, home, command @ ..] if verb == "keep" && !command.is_empty() => keep::keep(home, command),
        _ if std::process::id() == 1 => init::run(),
        _ => {
            eprintln!(
                "fairlane-agent is a guest's first program; on a host its use is: fairlane-agent keep DIRECTORY COMMAND..."
            );
            ExitCode::from(2)
        }
    }
}
