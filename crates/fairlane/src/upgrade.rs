//! Replaces the running process of a service by one of the installed program: `ExecReload=` of its unit.
//!
//! A confined backend can execute nothing, so the service manager starts this command, as confined as the service itself. It starts
//! the successor, which the former process names to the manager as the service's main process once it serves.

use crate::up::TAKEN_OVER;
use anyhow::{Context, bail};
use fairlane_port::orphan;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{BufRead, BufReader, pipe};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variables that a service's main process gets, and other commands of its unit do not.
const MANAGERS: [&str; 2] = ["NOTIFY_SOCKET", "WATCHDOG_USEC"];

/// Replace the running process of a service, without a pause, if it runs another version of this program
///
/// For a service manager, which names that process in MAINPID. By hand: fairlane up --take-over
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy file
    policy: PathBuf,
}

/// Starts the successor, and waits until it has taken over.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Ok(main) = std::env::var("MAINPID") else {
        bail!("MAINPID is not set: a service manager runs this (ExecReload=); by hand, run `fairlane up --take-over`");
    };
    let former = Path::new("/proc").join(main);
    let program = |process: &Path| {
        fs::metadata(process.join("exe")).with_context(|| format!("cannot look at {}", process.display()))
    };
    let is_same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    if is_same(program(&former)?, program(Path::new("/proc/self"))?) {
        println!("the running process is of this program");
        return Ok(());
    }
    let (answer, end) = pipe().context("cannot make a pipe")?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["up", "--take-over"]).arg(args.policy).stdout(end).envs(variables(&former)?);
    orphan::start(command).context("cannot start the successor")?;
    let mut line = String::new();
    BufReader::new(answer).read_line(&mut line).context("cannot hear of the successor")?;
    if line.trim_end() != TAKEN_OVER {
        bail!("the successor has ended, and its log says why; the running process serves on");
    }
    Ok(())
}

/// The manager's variables in the environment of a process.
fn variables(process: &Path) -> anyhow::Result<Vec<(&'static str, OsString)>> {
    let file = process.join("environ");
    let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let value = |name: &&'static str| {
        let mut variables = bytes.split(|byte| *byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some((*name, OsString::from_vec(value.to_vec())))
    };
    Ok(MANAGERS.iter().filter_map(value).collect())
}
