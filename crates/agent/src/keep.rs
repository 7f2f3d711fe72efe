//! The keeper: leads a guest's process group, and kills all of it when the host process is gone.
//!
//! A User-Mode Linux guest is several processes, the guest's programs among them, held by tracing. Were only
//! the first killed, the others would run on, free, on the host. So death is dealt to the whole group at once.

use std::{
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::process::ExitStatusExt},
    process::{Command, ExitCode},
    thread,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Runs `command` with standard input, the console's socket, passed on; ends as it ends. When the other end of the
/// socket is closed, by intent or by death, the process group is killed, this process included.
///
/// The caller starts this as the leader of its own process group.
pub fn keep(command: &[OsString]) -> ExitCode {
    thread::spawn(|| {
        await_hang_up();
        // Process 0 names the group.
        let _ = kill(Pid::from_raw(0), Signal::SIGKILL);
    });
    match Command::new(&command[0]).args(&command[1..]).status() {
        Ok(status) => {
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            ExitCode::from(code.unwrap_or(1) as u8)
        }
        Err(error) => {
            eprintln!("{}: {error}", command[0].display());
            ExitCode::from(127)
        }
    }
}

/// Waits until the socket's other end is closed. Only that is polled for: the data are the guest's.
fn await_hang_up() {
    let console = io::stdin();
    while matches!(
        poll(&mut [PollFd::new(console.as_fd(), PollFlags::empty())], PollTimeout::NONE),
        Ok(0) | Err(Errno::EINTR)
    ) {}
}
