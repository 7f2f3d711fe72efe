//! The live table in a pseudo-terminal.

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

/// A signal ends the table, which restores the terminal.
#[test]
fn the_terminal_is_restored_after_a_signal() {
    let pty = openpty(None, None).unwrap();
    let before = tcgetattr(&pty.slave).unwrap();
    let end = || Stdio::from(pty.slave.try_clone().unwrap());
    let top = Command::new(env!("CARGO_BIN_EXE_fairlane"))
        .args(["top", "--control", "/no/such/socket"])
        .stdin(end())
        .stdout(end())
        .stderr(Stdio::null())
        .spawn();
    let mut top = top.unwrap();
    let mut screen = File::from(pty.master);
    // The first output shows that it runs.
    let mut drawn = [0; 4096];
    assert!(screen.read(&mut drawn).unwrap() > 0);
    assert!(!tcgetattr(&pty.slave).unwrap().local_flags.contains(LocalFlags::ICANON));
    // Its output must be read, or it would block.
    let reader = std::thread::spawn(move || while screen.read(&mut drawn).is_ok_and(|length| length > 0) {});
    kill(Pid::from_raw(top.id() as i32), Signal::SIGTERM).unwrap();
    assert!(top.wait().unwrap().success());
    assert_eq!(tcgetattr(&pty.slave).unwrap().local_flags, before.local_flags);
    drop(pty.slave);
    reader.join().unwrap();
}
