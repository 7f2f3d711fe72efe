//! What the doctor reads: the text of a machine's files and the output of tools at one time, each under its name.
//!
//! Rules see only this text, so they can be tested with text recorded on any machine.

use fairlane_engine::control::Client;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

/// Files that are read unchanged.
const FILES: [&str; 20] = [
    "/proc/net/netstat",
    "/proc/net/snmp",
    "/proc/net/sockstat",
    "/proc/net/softnet_stat",
    "/proc/net/dev",
    "/proc/net/stat/nf_conntrack",
    "/proc/stat",
    "/proc/pressure/cpu",
    "/proc/cpuinfo",
    "/sys/hypervisor/type",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/core/netdev_max_backlog",
    "/proc/sys/net/core/netdev_budget",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/tcp_max_tw_buckets",
    "/proc/sys/net/ipv4/tcp_syncookies",
    "/proc/sys/net/ipv4/tcp_tw_reuse",
    "/proc/sys/net/netfilter/nf_conntrack_count",
    "/proc/sys/net/netfilter/nf_conntrack_max",
    "/etc/sysctl.conf",
];

/// Directories whose files are read unchanged.
const DIRECTORIES: [&str; 4] = ["/sys/kernel/debug/kvm", "/etc/xen", "/etc/sysctl.d", "/run/sysctl.d"];

/// Where netback has a directory per vif with a file per ring (drivers/net/xen-netback/xenbus.c).
pub(super) const NETBACK: &str = "/sys/kernel/debug/xen-netback";

/// The listening TCP sockets with the processes that hold them.
pub(super) const LISTENERS: &str = "ss -Hlntp";
/// The queueing disciplines of all devices with their counters.
pub(super) const QDISCS: &str = "tc -s -j qdisc show";
/// Xen's version, scheduler and processors.
pub(super) const XEN_INFO: &str = "xl info";
/// Xen's domains with the processor time that each has used.
pub(super) const XEN_DOMAINS: &str = "xl list";
/// The parameters of Xen's credit scheduler.
pub(super) const XEN_CREDIT: &str = "xl sched-credit -s";
/// A device's offloads; the device's name follows.
pub(super) const OFFLOADS: &str = "ethtool -k ";
/// A device's driver; the device's name follows.
pub(super) const DRIVER: &str = "ethtool -i ";
/// The destinations with the most connections: lines `LOCAL-ADDRESS REMOTE-ADDRESS:PORT COUNT`, addresses as in /proc/net/tcp.
pub(super) const DESTINATIONS: &str = "destinations";
/// All threads: lines `PROCESS THREAD CPU RUN WAIT SLICES NAME`, times in nanoseconds (sched-stats.rst, section
/// "/proc/<pid>/schedstat").
pub(super) const THREADS: &str = "threads";
/// The state of Fairlane's own backend, as the control protocol's JSON.
pub(super) const FAIRLANE: &str = "fairlane";

/// Tools run once per snapshot. Absent ones are skipped.
const TOOLS: [&str; 5] = [LISTENERS, QDISCS, XEN_INFO, XEN_DOMAINS, XEN_CREDIT];
/// How long a tool may run.
const TOOL_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of destinations to keep: ports run out first for the one with the most connections.
const MAX_DESTINATIONS: usize = 20;

/// A machine at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    texts: BTreeMap<String, String>,
}

impl Snapshot {
    /// Reads this machine, and the backend at `control` if there is one.
    pub(super) fn of_this_machine(control: &Path) -> Snapshot {
        let mut snapshot = Snapshot::of_files(Path::new("/"));
        for tool in TOOLS {
            snapshot.run_tool(tool);
        }
        // The doctor's own load is not judged.
        let own = format!("pid={},", std::process::id());
        let lines = snapshot.text(LISTENERS).lines().filter(|line| !line.contains(&own));
        let lines = lines.flat_map(|line| [line, "\n"]).collect();
        snapshot.put(LISTENERS, lines);
        let state = Client::connect(control).and_then(|mut client| client.show());
        if let Some(state) = state.ok().and_then(|state| serde_json::to_string(&state).ok()) {
            snapshot.put(FAIRLANE, state);
        }
        snapshot
    }

    /// Reads the offloads and drivers of the network cards that carried packets since an earlier snapshot.
    pub(super) fn read_cards(&mut self, since: &Snapshot) {
        // Loopback is no card, and its offloads are not worth changing.
        let carried = |device: &String| device != "lo" && self.packets(device) > since.packets(device);
        let devices: Vec<_> = self.devices().into_iter().filter(carried).collect();
        for device in devices {
            self.run_tool(&format!("{OFFLOADS}{device}"));
            self.run_tool(&format!("{DRIVER}{device}"));
        }
    }

    /// Reads the files below a root. Files that are absent or unreadable are skipped.
    pub(super) fn of_files(root: &Path) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for name in FILES {
            snapshot.read(root, name);
        }
        for directory in DIRECTORIES {
            for name in names(root, directory) {
                snapshot.read(root, &format!("{directory}/{name}"));
            }
        }
        for vif in names(root, NETBACK) {
            for ring in names(root, &format!("{NETBACK}/{vif}")) {
                snapshot.read(root, &format!("{NETBACK}/{vif}/{ring}"));
            }
        }
        snapshot.put(DESTINATIONS, destinations(root));
        snapshot.put(THREADS, threads(root));
        snapshot
    }

    /// The text under a name; empty if there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.texts.get(name).map_or("", String::as_str)
    }

    /// All texts whose names begin with `prefix`: the rest of the name, and the text.
    pub(super) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let from = self.texts.range(prefix.to_owned()..);
        from.map_while(move |(name, text)| Some((name.strip_prefix(prefix)?, text.as_str())))
    }

    /// Sets the text under a name.
    pub(super) fn put(&mut self, name: &str, text: String) {
        self.texts.insert(name.to_owned(), text);
    }

    fn read(&mut self, root: &Path, name: &str) {
        if let Ok(text) = fs::read(below(root, name)) {
            self.put(name, String::from_utf8_lossy(&text).into_owned());
        }
    }

    /// Runs a tool. Without output, or if it takes too long, it is skipped.
    fn run_tool(&mut self, line: &str) {
        if let Ok(output) = output(line)
            && !output.is_empty()
        {
            self.put(line, output);
        }
    }
}

/// The output of a tool that ends within [`TOOL_TIMEOUT`]: Xen's tools may wait for a daemon that does not run.
fn output(line: &str) -> io::Result<String> {
    let mut words = line.split_whitespace();
    let mut tool = Command::new(words.next().unwrap_or_default());
    tool.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut tool = tool.spawn()?;
    let stdout = tool.stdout.take();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut text));
        // Fails after the timeout, when the text is not wanted any more.
        let _ = sender.send(read.map(|_| String::from_utf8_lossy(&text).into_owned()));
    });
    let text = receiver.recv_timeout(TOOL_TIMEOUT);
    // Fails if the tool has ended already.
    let _ = tool.kill();
    tool.wait()?;
    text.map_err(io::Error::other)?
}

/// An absolute path below a root.
fn below(root: &Path, path: &str) -> std::path::PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The names in a directory, sorted; none if it cannot be read.
fn names(root: &Path, directory: &str) -> Vec<String> {
    let entries = fs::read_dir(below(root, directory)).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Counts the ports in use per destination: sockets in any state whose local port is in the ephemeral range.
fn destinations(root: &Path) -> String {
    let range = fs::read_to_string(below(root, "/proc/sys/net/ipv4/ip_local_port_range")).unwrap_or_default();
    let mut bounds = range.split_whitespace().filter_map(|bound| bound.parse::<u16>().ok());
    let (Some(first), Some(last)) = (bounds.next(), bounds.next()) else { return String::new() };
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let Ok(file) = fs::File::open(below(root, table)) else { continue };
        for line in BufReader::new(file).lines().skip(1).map_while(Result::ok) {
            let mut words = line.split_whitespace();
            let (Some(local), Some(remote), Some(state)) = (words.nth(1), words.next(), words.next()) else { continue };
            let Some((address, port)) = local.split_once(':') else { continue };
            // 0A is a listener (include/net/tcp_states.h).
            let ephemeral = u16::from_str_radix(port, 16).is_ok_and(|port| (first..=last).contains(&port));
            if ephemeral && state != "0A" {
                *counts.entry((address.to_owned(), remote.to_owned())).or_default() += 1;
            }
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.truncate(MAX_DESTINATIONS);
    counts.iter().fold(String::new(), |mut text, ((local, remote), count)| {
        let _ = writeln!(text, "{local} {remote} {count}");
        text
    })
}

/// The processor on which each thread ran last, and how long it ran and waited.
fn threads(root: &Path) -> String {
    let mut text = String::new();
    for process in names(root, "/proc").iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        for thread in names(root, &format!("/proc/{process}/task")) {
            let file = |name| fs::read_to_string(below(root, &format!("/proc/{process}/task/{thread}/{name}")));
            let (Ok(stat), Ok(times)) = (file("stat"), file("schedstat")) else { continue };
            // The name is in parentheses and may contain any character, so the other fields are found after the last parenthesis.
            let (Some((_, named)), Some((_, rest))) = (stat.split_once('('), stat.rsplit_once(')')) else { continue };
            let name = named.rsplit_once(')').map_or("", |(name, _)| name);
            let Some(cpu) = rest.split_whitespace().nth(36) else { continue };
            let _ =
                writeln!(text, "{process} {thread} {cpu} {} {}", times.trim(), name.replace(char::is_whitespace, "_"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files below a temporary directory.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = below(root.path(), name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_tool_has_output_or_an_error() {
        assert_eq!(output("echo two words").unwrap(), "two words\n");
        assert!(output("no-such-tool-anywhere").is_err());
    }

    #[test]
    fn files_are_read_and_destinations_and_threads_listed() {
        let stat = format!("7 (a) b) S{} 3 0", " 0".repeat(35));
        let head = "  sl  local_address rem_address   st\n";
        let sockets = [
            " 0: 0100007F:8000 00000000:0000 0A 0\n",
            " 1: 0100007F:8001 0100007F:0050 06 0\n",
            " 2: 0100007F:8002 0100007F:0050 01 0\n",
            " 3: 0100007F:8003 0200007F:0050 01 0\n",
            " 4: 0100007F:0050 0100007F:8002 01 0\n",
        ];
        let root = tree(&[
            ("/proc/net/tcp", &(head.to_owned() + &sockets.concat())),
            ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("/proc/7/task/7/stat", &stat),
            ("/proc/7/task/7/schedstat", "11 22 33\n"),
            ("/sys/kernel/debug/xen-netback/vif1.0/io_ring_q0", "ring"),
            ("/etc/sysctl.d/a.conf", "x"),
        ]);
        let snapshot = Snapshot::of_files(root.path());
        assert_eq!(snapshot.text(DESTINATIONS), "0100007F 0100007F:0050 2\n0100007F 0200007F:0050 1\n");
        assert_eq!(snapshot.text(THREADS), "7 7 3 11 22 33 a)_b\n");
        assert_eq!(snapshot.below(NETBACK).collect::<Vec<_>>(), [("/vif1.0/io_ring_q0", "ring")]);
        assert_eq!((snapshot.text("/etc/sysctl.d/a.conf"), snapshot.text("/proc/stat")), ("x", ""));
    }
}
