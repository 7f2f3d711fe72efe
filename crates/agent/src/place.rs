//! Places a program on the host: in a network namespace and on CPUs, then becomes it.
//!
//! Who is not root makes a user namespace first, in which it is. All namespaces of one machine then lie in that one,
//! so that cards can be moved between them.

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

/// The network a program is put in.
#[derive(Clone, Debug, PartialEq)]
enum Network {
    /// A new one.
    New,
    /// A new one, where the process of this id may move cards to.
    Beside(u32),
    /// That of the process of this id.
    Inside(u32),
    /// That of `ip netns add NAME`.
    Named(String),
}

/// Becomes `command` in a network (`new`, `beside=PID`, `inside=PID` or `named=NAME`) and on CPUs (`0,2`, or `any`); returns only when
/// that cannot be.
pub fn place(network: &str, cpus: &str, command: &[OsString]) -> ExitCode {
    let Err(error) = become_placed(network, cpus, command);
    eprintln!("{error:#}");
    ExitCode::FAILURE
}

fn become_placed(network: &str, cpus: &str, command: &[OsString]) -> anyhow::Result<Infallible> {
    enter(Network::read(network)?)?;
    if let Some(cpus) = read_cpus(cpus)? {
        sched_setaffinity(Pid::from_raw(0), &cpus).context("run on the CPUs wanted")?;
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
                "a network namespace needs root, or user namespaces, and this system allows neither (the latter are \
                 allowed by kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0 and \
                 user.max_user_namespaces above 0)",
            )?;
            // A group's mapping may be written only after this (user_namespaces(7)).
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
        // It is the user namespace of this process already.
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
        number.with_context(|| format!("{word}: numbers of CPUs with commas between, or any, are needed"))?;
    }
    Ok(Some(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        assert_eq!(Network::read("new").unwrap(), Network::New);
        assert_eq!(Network::read("beside=7").unwrap(), Network::Beside(7));
        assert_eq!(Network::read("inside=7").unwrap(), Network::Inside(7));
        assert_eq!(Network::read("named=red").unwrap(), Network::Named("red".to_owned()));
        for bad in ["", "old", "inside", "inside=", "new=1", "inside=-1", "named=", "named=../x"] {
            assert!(Network::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpus_are_read() {
        assert!(read_cpus("any").unwrap().is_none());
        let cpus = read_cpus("0,2").unwrap().unwrap();
        assert_eq!([0, 1, 2].map(|cpu| cpus.is_set(cpu).unwrap()), [true, false, true]);
        for bad in ["", "1,", "one", "99999999"] {
            assert!(read_cpus(bad).is_err(), "{bad}");
        }
    }
}
