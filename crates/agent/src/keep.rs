//! The keeper: starts a guest, and kills all its processes when the host lets go of it or dies.
//!
//! A User-Mode Linux guest is several processes, the guest's programs among them, held by tracing. Were only
//! the first killed, the others would run on, free, on the host. So death is dealt to the whole group at once.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, ExitCode},
    thread,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    sys::wait::{Id, WaitPidFlag, waitid},
    unistd::Pid,
};

/// Runs `command` with standard input, the console's socket, passed on. When the socket's other end is shut down or
/// closed, by intent or by death, the command and all of its process group are killed; where the command ends by itself, what
/// it left of that group. In the end `home`, the
/// directory of the command's own files, is removed.
pub fn keep(home: &OsStr, command: &[OsString]) -> ExitCode {
    let code = run(command);
    // What another program put there or took away is not worth failing for.
    let _ = fs::remove_dir_all(home);
    code
}

fn run(command: &[OsString]) -> ExitCode {
    // User-Mode Linux makes a session of its own, which as a group's leader it cannot: the group stays this one.
    let mut guest = match Command::new(&command[0]).args(&command[1..]).process_group(0).spawn() {
        Ok(guest) => guest,
        Err(error) => {
            eprintln!("{}: {error}", command[0].display());
            return ExitCode::FAILURE;
        }
    };
    let group = Pid::from_raw(guest.id() as i32);
    thread::spawn(move || {
        await_hang_up();
        // A guest that has just ended by itself is no error.
        let _ = killpg(group, Signal::SIGKILL);
    });
    // Before its number is anybody else's, what it started and left behind is ended.
    let _ = waitid(Id::Pid(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    let _ = killpg(group, Signal::SIGKILL);
    match guest.wait() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("{}: {status}", command[0].display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error}", command[0].display());
            ExitCode::FAILURE
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
