//! Runs programs of the guest for the host.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{self, Stdio},
    thread,
    time::{Duration, Instant},
};

use fairlane_load::about;

use crate::Outcome;

/// The interval between two attempts of [`run_until`].
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Starts a program with a socket as its standard input; returns the other end.
pub(crate) fn spawn(argv: &[String]) -> io::Result<File> {
    let (program, arguments) = words(argv)?;
    let (ours, theirs) = UnixStream::pair()?;
    let child = process::Command::new(program).args(arguments).stdin(OwnedFd::from(theirs)).spawn();
    let mut child = child.map_err(about(program))?;
    // Reaps the child. Its exit is noticed by the socket.
    thread::spawn(move || child.wait());
    Ok(File::from(OwnedFd::from(ours)))
}

/// The program, and its arguments.
fn words(argv: &[String]) -> io::Result<(&String, &[String])> {
    argv.split_first().ok_or_else(|| io::Error::other("argv is empty: no program"))
}

/// Runs a program until it exits.
pub(crate) fn run(argv: &[String]) -> io::Result<Outcome> {
    let (program, arguments) = words(argv)?;
    let output = process::Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(about(program))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Outcome::Ran { status: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
}

/// Runs a program again and again until it succeeds and its output contains `text`.
pub(crate) fn run_until(argv: &[String], text: &str, seconds: f64) -> io::Result<Outcome> {
    let start = Instant::now();
    loop {
        match run(argv)? {
            Outcome::Ran { status: Some(0), stdout, stderr } if stdout.contains(text) => {
                return Ok(Outcome::Ran { status: Some(0), stdout, stderr });
            }
            last if start.elapsed().as_secs_f64() > seconds => {
                let what = argv.join(" ");
                return Err(io::Error::other(format!("{what}: no \"{text}\" within {seconds} s: {last:?}")));
            }
            _ => thread::sleep(RETRY_INTERVAL),
        }
    }
}
