//! Executes a program in a network namespace and on given CPUs.
//!
//! Without root privileges it first creates a user namespace, in which it is root. All network namespaces of a machine belong to
//! that user namespace, so that cards can be moved between them.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs::{self, File},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use anyhow::{Context, bail};
use nix::{
    errno::Errno,
    sched::{CloneFlags, CpuSet, sched_setaffinity, setns, unshare},
    unistd::{Pid, getegid, geteuid},
};

/// The network namespace of the program.
#[derive(Clone, Debug, PartialEq)]
enum Network {
    /// A new one.
    New,
    /// A new one in the user namespace of this process, which may move cards to it.
    Beside(u32),
    /// That of this process.
    Inside(u32),
    /// The one created by `ip netns add NAME`.
    Named(String),
}

/// Executes `command` in place of this program, in a network namespace (`new`, `beside=PID`, `inside=PID` or `named=NAME`) and on
/// CPUs (`0,2`, or `any`). Returns only if that fails.
pub(crate) fn place(network: &str, cpus: &str, command: &[OsString]) -> ExitCode {
    let Err(error) = place_and_execute(network, cpus, command);
    eprintln!("{error:#}");
    ExitCode::FAILURE
}

fn place_and_execute(network: &str, cpus: &str, command: &[OsString]) -> anyhow::Result<Infallible> {
    enter(Network::read(network)?)?;
    if let Some(cpus) = read_cpus(cpus)? {
        sched_setaffinity(Pid::from_raw(0), &cpus).context("set the CPU affinity")?;
    }
    Err(Command::new(&command[0]).args(&command[1..]).exec()).with_context(|| command[0].display().to_string())
}

impl Network {
    fn read(word: &str) -> anyhow::Result<Network> {
        match word.split_once('=') {
            None if word == "new" => Ok(Network::New),
            Some(("beside", pid)) => Ok(Network::Beside(pid.parse().context("beside")?)),
            Some(("inside", pid)) => Ok(Network::Inside(pid.parse().context("inside")?)),
            Some(("named", name)) if !name.is_empty() && !name.contains('/') => Ok(Network::Named(name.to_owned())),
            _ => bail!("{word}: new, beside=PID, inside=PID or named=NAME is needed"),
        }
    }
}

fn enter(network: Network) -> anyhow::Result<()> {
    match network {
        Network::New if geteuid().is_root() => unshare(CloneFlags::CLONE_NEWNET).context("a network namespace"),
        Network::New => {
            let (user, group) = (geteuid(), getegid());
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).context(
                "a network namespace needs root or user namespaces, and neither is available (user namespaces are \
                 enabled by kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0 and \
                 user.max_user_namespaces above 0)",
            )?;
            // Required before gid_map may be written (user_namespaces(7)).
            fs::write("/proc/self/setgroups", "deny").context("/proc/self/setgroups")?;
            fs::write("/proc/self/uid_map", format!("0 {user} 1")).context("/proc/self/uid_map")?;
            fs::write("/proc/self/gid_map", format!("0 {group} 1")).context("/proc/self/gid_map")
        }
        Network::Beside(pid) => {
            join(pid, "user", CloneFlags::CLONE_NEWUSER)?;
            unshare(CloneFlags::CLONE_NEWNET).context("a network namespace")
        }
        Network::Inside(pid) => {
            join(pid, "user", CloneFlags::CLONE_NEWUSER)?;
            join(pid, "net", CloneFlags::CLONE_NEWNET)
        }
        Network::Named(name) => {
            let path = format!("/run/netns/{name}");
            let file = File::open(&path).with_context(|| path.clone())?;
            setns(file, CloneFlags::CLONE_NEWNET).context(path)
        }
    }
}

/// Enters a namespace of another process.
fn join(pid: u32, name: &str, kind: CloneFlags) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/ns/{name}");
    match setns(File::open(&path).with_context(|| path.clone())?, kind) {
        // This process is in that user namespace already.
        Err(Errno::EINVAL) if kind == CloneFlags::CLONE_NEWUSER => Ok(()),
        other => other.context(path),
    }
}

fn read_cpus(word: &str) -> anyhow::Result<Option<CpuSet>> {
    if word == "any" {
        return Ok(None);
    }
    let mut cpus = CpuSet::new();
    for cpu in word.split(',') {
        let number = cpu.parse().ok().filter(|number| cpus.set(*number).is_ok());
        number.with_context(|| format!("{word}: CPU numbers separated by commas, or `any`, are needed"))?;
    }
    Ok(Some(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_parsed() {
        assert_eq!(Network::read("new").unwrap(), Network::New);
        assert_eq!(Network::read("beside=7").unwrap(), Network::Beside(7));
        assert_eq!(Network::read("inside=7").unwrap(), Network::Inside(7));
        assert_eq!(Network::read("named=red").unwrap(), Network::Named("red".to_owned()));
        for bad in ["", "old", "inside", "inside=", "new=1", "inside=-1", "named=", "named=../x"] {
            assert!(Network::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpus_are_parsed() {
        assert!(read_cpus("any").unwrap().is_none());
        let cpus = read_cpus("0,2").unwrap().unwrap();
        assert_eq!([0, 1, 2].map(|cpu| cpus.is_set(cpu).unwrap()), [true, false, true]);
        for bad in ["", "1,", "one", "99999999"] {
            assert!(read_cpus(bad).is_err(), "{bad}");
        }
    }
}
