//! Starts a process that outlives its starter as a child of the service manager, not as an orphan of an unknown process: systemd
//! supervises its own children best.

use nix::unistd::{ForkResult, fork};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts a command whose parent ends at once, so that the nearest reaper (init, or the service manager) becomes its parent.
///
/// # Errors
/// The system's error: the command cannot be started.
pub fn start(mut command: Command) -> io::Result<()> {
    // SAFETY: between the fork and the execution only these two calls are made, which a forked process may make
    // (signal-safety(7)).
    unsafe {
        command.pre_exec(|| match fork()? {
            ForkResult::Child => Ok(()),
            ForkResult::Parent { .. } => libc::_exit(0),
        });
    }
    command.spawn()?.wait().map(drop)
}
