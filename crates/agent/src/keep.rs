//! The keeper: starts a guest, and kills all its processes when the lab drops the guest or dies.
//!
//! A User-Mode Linux guest is several processes, including the guest's programs, which its kernel traces. If only the first were
//! killed, the others would run on untraced on the host. So the whole process group is killed at once.

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

/// Runs `command` with this process's standard input, the console's socket. When the socket's other end is shut down or closed,
/// the command's whole process group is killed; when the command ends by itself, the rest of the group. Then `home`, the directory
/// of the command's own files, is removed.
pub(crate) fn keep(home: &OsStr, command: &[OsString]) -> ExitCode {
    let code = run(command);
    // Another program may have changed the directory; that is no reason to fail.
    let _ = fs::remove_dir_all(home);
    code
}

fn run(command: &[OsString]) -> ExitCode {
    // User-Mode Linux calls setsid(), which fails for a group leader, so its processes stay in this group.
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
    // The group is killed before the child is reaped, while its process id cannot be reused.
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

/// Waits until the socket's other end is closed. Polls for nothing else, as the data are the guest's.
fn await_hang_up() {
    let console = io::stdin();
    while matches!(
        poll(&mut [PollFd::new(console.as_fd(), PollFlags::empty())], PollTimeout::NONE),
        Ok(0) | Err(Errno::EINTR)
    ) {}
}
