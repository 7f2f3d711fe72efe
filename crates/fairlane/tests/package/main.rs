//! The Debian package on a host with systemd: installed, served, upgraded under traffic, guarded by the watchdog, and purged.
//!
//! The host is a copy-on-write view of the directory in `FAIRLANE_DEB_ROOT`, and the package that of `make deb`; `make deb-test` provides
//! both, with a clean Debian 12. Without that variable, the test is ignored. Needs root.

#[path = "../restart/gap.rs"]
mod gap;
#[path = "../missing/mod.rs"]
mod missing;
mod root;

use fairlane_lab::{Command, Guest, GuestSpec, Job, Kind, Outcome};
use fairlane_load::ping;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use root::Root;
use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 2);

const NO_ROOT: &str = "no Debian root to install the package in: run `make deb-test`";

/// Time between two pings, in seconds.
const INTERVAL: f64 = 0.005;

fn main() -> ExitCode {
    let test = Trial::ignorable_test("the_package_is_installed_upgraded_guarded_and_purged", life);
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

/// The package that was built last.
fn package() -> Result<PathBuf, String> {
    let directory = Path::new(env!("CARGO_BIN_EXE_fairlane")).ancestors().nth(2).expect("a target directory");
    let files = fs::read_dir(directory.join("debian")).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("fairlane_") && name.ends_with(".deb")
    };
    let newest = files.filter(is_ours).max_by_key(|path| path.metadata().and_then(|about| about.modified()).ok());
    newest.ok_or_else(|| "the package is not built: run `make deb PROFILE=debug`".to_owned())
}

fn life() -> Result<Completion, Failed> {
    let Some(lower) = env::var_os("FAIRLANE_DEB_ROOT").map(PathBuf::from) else {
        eprintln!("SKIPPED: {NO_ROOT}");
        return Ok(Completion::ignored_with(NO_ROOT));
    };
    let booted = package().and_then(|package| Ok((package, Root::boot(&lower)?)));
    let (package, mut root) = match booted {
        Ok(booted) => booted,
        Err(missing) => return missing::skip_or_fail(missing),
    };
    let commands = commands();
    fs::copy(&package, root.path("/root/").join(commands[0].rsplit('/').next().unwrap_or_default()))?;
    root.done(NEWER);
    root.done(&format!("{BRIDGE} && ip address add {HOST}/24 dev br0"));

    root.done(&commands[0]);
    installed(&root);
    commands[1..4].iter().for_each(|command| drop(root.done(command)));
    let home = tempfile::tempdir()?;
    let guest = served(&root, home.path())?;
    upgraded(&root, &guest)?;
    restarted(&mut root, &guest)?;
    guarded(&mut root);
    guest.stop()?;
    purged(&root);
    Ok(Completion::Completed)
}

/// The host's bridge, with a card.
const BRIDGE: &str = "ip link add br0 type bridge && ip link set br0 up && \
    ip link add eth0 type veth peer name far0 && ip link set eth0 master br0 up";

/// The commands of the guide, from the package to a served guest.
fn commands() -> Vec<String> {
    let guide = include_str!("../../../../docs/guide/install.md");
    let block = guide.split("```sh\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("a block of commands");
    let commands: Vec<String> = block.replace("\\\n", "").lines().map(str::to_owned).collect();
    assert_eq!(commands.len(), 5, "{commands:#?}");
    commands
}

/// Makes a package of a newer version in the root.
const NEWER: &str = "dpkg-deb --raw-extract fairlane_*.deb newer && \
    sed -i 's/^Version: .*/&+newer/' newer/DEBIAN/control && \
    dpkg-deb -Zgzip -z1 --build newer newer.deb && rm -r newer";

fn installed(root: &Root) {
    root.done("systemctl is-enabled fairlane && systemctl is-active fairlane");
    let properties = root.done("systemctl show --property=Type,User,WatchdogUSec fairlane");
    assert_eq!(properties, "Type=notify\nWatchdogUSec=30s\nUser=fairlane\n");
    for file in [
        "/usr/share/man/man1/fairlane-ctl-set.1.gz",
        "/usr/share/bash-completion/completions/fairlane",
        "/usr/share/fairlane/policy.schema.json",
        "/usr/share/fairlane/bpftrace/waits.bt",
        "/etc/apparmor.d/fairlane",
    ] {
        assert!(root.path(file).is_file(), "{file}");
    }
    root.done("systemd-analyze verify fairlane.service fairlane-fleet.service");
    assert!(!root.run("systemctl is-enabled fairlane-fleet").status.success(), "a fleet is for who wants one");
    root.done("fairlane check /etc/fairlane/policy.toml");
    assert!(root.done("fairlane ctl show").contains("guest"));
}

/// Boots a guest as the last command of the guide does, and lets it reach the host.
fn served(root: &Root, home: &Path) -> Result<Guest, Failed> {
    let mut spec = GuestSpec::served(Kind::Qemu, "guest", home, [0x52, 0x54, 0, 0x91, 0, 2], GUEST);
    if let Some(nic) = &mut spec.nic {
        nic.backend = fairlane_lab::Backend::VhostUser(root.path("/run/fairlane/guest.sock"));
    }
    let guest = Guest::boot(&spec)?;
    let trips = answered(pings(&guest, 50)?)?;
    assert!(trips.lost() < trips.seconds.len(), "the guest does not reach the host");
    Ok(guest)
}

/// Pings the host from the guest.
fn pings(guest: &Guest, count: u16) -> Result<Job, Failed> {
    let spec = ping::Spec { to: HOST, count, interval: INTERVAL, patience: 2.0 };
    Ok(guest.agent().start_job(Command::Ping(spec))?)
}

/// Waits for the end of pings.
fn answered(job: Job) -> Result<ping::RoundTrips, Failed> {
    match job.wait()? {
        Outcome::RoundTrips(trips) => Ok(trips),
        other => Err(format!("not round trips: {other:?}").into()),
    }
}

fn main_pid(root: &Root) -> String {
    root.done("systemctl show --property=MainPID --value fairlane")
}

/// An upgrade while the guest sends: the new daemon serves it, and the administrator's policy is kept.
fn upgraded(root: &Root, guest: &Guest) -> Result<(), Failed> {
    let (old, policy) = (main_pid(root), fs::read_to_string(root.path("/etc/fairlane/policy.toml"))?);
    let traffic = pings(guest, 1000)?;
    root.done("dpkg --install newer.deb");
    assert!(root.done("dpkg-query --show fairlane").contains("+newer"));
    assert_ne!(main_pid(root), old, "the upgrade did not restart the service");
    assert_eq!(fs::read_to_string(root.path("/etc/fairlane/policy.toml"))?, policy);
    let trips = answered(traffic)?;
    eprintln!("{} of {} pings, one every 5 ms, were lost during the upgrade", trips.lost(), trips.seconds.len());
    assert_eq!(trips.lost(), 0, "an upgrade loses nothing");
    Ok(())
}

/// Puts a new program in place of the running one, and has it take over.
const REPLACED: &str =
    "cp /usr/bin/fairlane /usr/bin/new && mv /usr/bin/new /usr/bin/fairlane && systemctl reload fairlane";

/// Upgrades, restarts and kills, `FAIRLANE_RESTARTS` of each: the guest's connection is kept.
fn restarted(root: &mut Root, guest: &Guest) -> Result<(), Failed> {
    let restarts = env::var("FAIRLANE_RESTARTS").map_or(Ok(2), |text| text.parse::<usize>())?;
    for command in ["true", REPLACED, "systemctl restart fairlane", "systemctl kill --signal=KILL fairlane"] {
        let (mut gaps, mut lost) = (Vec::new(), 0);
        for _ in 0..restarts {
            let traffic = pings(guest, 300)?;
            sleep(Duration::from_millis(300));
            root.done(command);
            let trips = answered(traffic)?;
            root.wait_for("the service runs", |root| root.run("systemctl is-active fairlane").status.success());
            lost += trips.lost();
            gaps.push(trips.gap(INTERVAL, 0.0..f64::INFINITY));
        }
        eprintln!("{command}: gap {}; {lost} pings lost", gap::summary(&gaps));
        let log = root.done("journalctl --no-pager --unit=fairlane");
        let handed_over = log.matches("handed over to process").count();
        // The upgrade was one, too.
        assert!(
            command == "true" && handed_over == 1 || handed_over == 1 + restarts,
            "{command}: {handed_over}\n{log}"
        );
    }
    let log = root.done("journalctl --no-pager --unit=fairlane");
    let (kept, again) = ("frontend kept from the former process", "its frontend must connect again");
    assert!(log.matches(kept).count() > 3 * restarts && !log.contains(again), "{log}");
    Ok(())
}

/// A worker that stands still: the service is started anew.
fn guarded(root: &mut Root) {
    root.done("mkdir -p /run/systemd/system/fairlane.service.d");
    root.done("printf '[Service]\\nWatchdogSec=1\\n' > /run/systemd/system/fairlane.service.d/test.conf");
    root.done("systemctl daemon-reload && systemctl restart fairlane");
    let worker = worker(root);
    ptrace::seize(worker, ptrace::Options::empty()).expect("root may trace");
    ptrace::interrupt(worker).expect("a thread");
    waitpid(worker, Some(WaitPidFlag::__WALL)).expect("a tracee");
    root.wait_for("the watchdog restarts the service", |root| {
        // The end of a traced thread is seen by its tracer first.
        let _ = waitpid(worker, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
        root.done("systemctl show --property=NRestarts --value fairlane") == "1\n"
    });
    root.wait_for("the service runs again", |root| root.run("systemctl is-active fairlane").status.success());
}

/// The thread of the service's worker, by its number in this process's namespace.
fn worker(root: &Root) -> Pid {
    let is_worker = |status: &str| status.contains("Name:\tfairlane-worker\n");
    let threads = fs::read_dir("/proc").expect("proc").flatten().filter_map(|entry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        fs::read_dir(entry.path().join("task")).ok()
    });
    let inside = fs::read_link(root.path("/proc/1/ns/pid")).expect("a namespace");
    let thread = threads.flatten().flatten().find(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        is_worker(&status) && fs::read_link(thread.path().join("ns/pid")).is_ok_and(|namespace| namespace == inside)
    });
    let thread = thread.expect("a worker").file_name();
    Pid::from_raw(thread.to_str().and_then(|name| name.parse().ok()).expect("a number"))
}

fn purged(root: &Root) {
    root.done("fairlane ctl set guest weight=7 && fairlane ctl save");
    root.done("dpkg --purge fairlane");
    let processes = root.run("grep --line-regexp fairlane /proc/[0-9]*/comm");
    assert_eq!(processes.status.code(), Some(1), "{processes:?}");
    for path in ["/etc/fairlane", "/etc/apparmor.d/fairlane", "/var/lib/fairlane", "/run/fairlane", "/usr/bin/fairlane"]
    {
        assert!(!root.path(path).exists(), "{path} is left");
    }
    assert!(!root.run("systemctl cat fairlane").status.success());
    let left = root.done("find /etc/systemd /var/lib/systemd -name 'fairlane*'");
    assert_eq!(left, "");
}
