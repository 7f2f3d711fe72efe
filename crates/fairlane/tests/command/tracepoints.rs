//! The static tracepoints: those of the reference are in the binary, and the scripts of `deploy/bpftrace` count what the backend counts.

use crate::bpftrace::interrupt;
use crate::guests::{Flood, guest, wait_for};
use crate::workspace::Workspace;
use nix::unistd::Pid;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A link on which everybody receives what the others flood: one with little room, one at a limited rate, one with a false address.
const POLICY: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
rate = "100Mbit/s"
uplink = { wire = "far" }
[[link]]
name = "far"
[[vif]]
name = "web"
link = "lan"
socket = "DIR/web.sock"
[[vif]]
name = "sleeper"
link = "lan"
rx_queue = "64KiB"
rx_timeout = "10ms"
socket = "DIR/sleeper.sock"
[[vif]]
name = "paced"
link = "lan"
rx_max_rate = "200kbit/s"
socket = "DIR/paced.sock"
[[vif]]
name = "liar"
link = "lan"
max_rate = "5Mbit/s"
mac = "52:54:00:00:00:99"
socket = "DIR/liar.sock"
"#;

/// Each tracepoint of the binary, and the number of its arguments.
fn built() -> BTreeSet<(String, usize)> {
    let bytes = fs::read(env!("CARGO_BIN_EXE_fairlane")).unwrap();
    let file = ElfFile64::<object::LittleEndian>::parse(&*bytes).unwrap();
    let mut notes = file.section_by_name(".note.stapsdt").expect("a section of tracepoints").data().unwrap();
    let mut found = BTreeSet::new();
    while !notes.is_empty() {
        let size = |at: usize| u32::from_le_bytes(notes[at..at + 4].try_into().unwrap()) as usize;
        let (name, description) = (size(0).next_multiple_of(4), size(4).next_multiple_of(4));
        let note = &notes[12 + name..12 + name + size(4)];
        notes = &notes[12 + name + description..];
        // Where it is, a base, its semaphore; then texts, each with a zero at its end.
        let address = |at: usize| u64::from_le_bytes(note[at..at + 8].try_into().unwrap());
        let texts: Vec<_> = note[24..].split(|byte| *byte == 0).map(|text| str::from_utf8(text).unwrap()).collect();
        if texts[0] == "fairlane" {
            assert!(address(0) > 0 && address(16) > 0, "{texts:?} has a place and a semaphore");
            found.insert((texts[1].to_owned(), texts[2].split_whitespace().count()));
        }
    }
    found
}

/// The same in the reference.
fn documented() -> BTreeSet<(String, usize)> {
    let reference = include_str!("../../../../docs/reference/tracepoints.md");
    let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(name, rest)| (name.to_owned(), rest.split(" | ").next().unwrap().split(", ").count())).collect()
}

#[test]
fn the_binary_has_the_tracepoints_of_the_reference() {
    assert_eq!(built(), documented());
    assert_eq!(documented().len(), 5);
}

/// A script that runs.
struct Script {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Script {
    /// Starts a script on a process, and waits until its tracepoints are attached.
    fn start(workspace: &Workspace, name: &str, pid: Pid) -> Script {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/bpftrace").join(name);
        let mut process = Command::new("bpftrace")
            .args(["-f", "json", "-p", &pid.to_string()])
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(workspace.path(name)).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        // What a script prints at its begin is shown once everything is attached.
        let begin = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("Ctrl-C")));
        assert!(begin.is_some(), "{}", fs::read_to_string(workspace.path(name)).unwrap());
        Script { process, lines }
    }

    /// Ends it. Returns the sums of each map by key; of a histogram, the number of its entries.
    fn end(mut self) -> BTreeMap<(String, String), u64> {
        let mut sums = BTreeMap::new();
        for line in interrupt(&self.process, self.lines.by_ref().map(Result::unwrap)) {
            let Ok(printed) = serde_json::from_str::<Value>(&line) else { continue };
            if printed["type"] != "map" && printed["type"] != "hist" {
                continue;
            }
            for (map, keys) in printed["data"].as_object().unwrap() {
                for (key, value) in keys.as_object().unwrap() {
                    let entries = || value.as_array().unwrap().iter().map(|bucket| bucket["count"].as_u64().unwrap());
                    let sum = value.as_u64().unwrap_or_else(|| entries().sum());
                    *sums.entry((map.clone(), key.clone())).or_default() += sum;
                }
            }
        }
        let _ = self.process.wait();
        sums
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Why the scripts cannot run here.
fn missing() -> Option<String> {
    let tried = Command::new("bpftrace").args(["-e", "uprobe:/bin/sh:main { } BEGIN { exit(); }"]).output();
    match tried {
        Err(error) => Some(format!("bpftrace is not installed: {error}")),
        Ok(tried) if !tried.status.success() => {
            Some(format!("bpftrace cannot run here: {}", String::from_utf8_lossy(&tried.stderr)))
        }
        Ok(_) => None,
    }
}

#[test]
fn the_scripts_count_what_the_backend_counts() {
    if let Some(missing) = missing() {
        assert!(std::env::var_os("FAIRLANE_GUESTS").is_none_or(|value| value != "required"), "{missing}");
        let _ = writeln!(io::stderr(), "SKIPPED: {missing}");
        return;
    }
    let workspace = Workspace::new();
    workspace.write("policy.toml", POLICY);
    let backend = workspace.up();
    let [waits, drops] = ["waits.bt", "drops.bt"].map(|name| Script::start(&workspace, name, backend.pid()));
    let show = || serde_json::from_str::<Value>(&workspace.ctl("show --json").out).unwrap();
    let ports = |shown: &Value| {
        let vifs = shown["vifs"].as_array().unwrap().iter().map(|vif| (vif["name"].as_str().unwrap().to_owned(), vif));
        vifs.map(|(name, vif)| (name, vif.clone())).collect::<BTreeMap<_, _>>()
    };
    let sleeper = guest(&workspace.path("sleeper.sock"));
    let paced = guest(&workspace.path("paced.sock"));
    let floods = [Flood::start(&workspace.path("web.sock"), 1), Flood::start(&workspace.path("liar.sock"), 2)];
    let dropped = |shown: &Value, vif: &str, reason: &str| ports(shown)[vif]["drops"][reason].as_u64().unwrap_or(0);
    wait_for("traffic of all kinds", || {
        let shown = show();
        let waited = ports(&shown)["paced"]["received_frames"].as_u64().unwrap() > 10;
        let reasons = [("liar", "spoofed_mac"), ("sleeper", "rx_queue_full"), ("sleeper", "rx_queue_timeout")];
        waited && reasons.iter().all(|(vif, reason)| dropped(&shown, vif, reason) > 0)
    });
    drop((floods, sleeper, paced));
    let mut last = show();
    wait_for("the end of the traffic", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let before = std::mem::replace(&mut last, show());
        ports(&before) == ports(&last)
    });

    let (waits, drops) = (waits.end(), drops.end());
    let of = |map: &str, key: &str| waits.get(&(map.to_owned(), key.to_owned())).copied().unwrap_or(0);
    for (name, vif) in ports(&last) {
        assert_eq!(of("@sent_frames", &name), vif["sent_frames"].as_u64().unwrap(), "{name} sent");
        let received = of("@received_at_once", &name) + of("@room_us", &name);
        assert_eq!(received, vif["received_frames"].as_u64().unwrap(), "{name} received");
        for (reason, count) in vif["drops"].as_object().unwrap() {
            let whose = |whose: &str| drops.get(&("@".to_owned(), format!("{name},{whose},{reason}"))).unwrap_or(&0);
            assert_eq!(whose("sent") + whose("received"), count.as_u64().unwrap(), "{name} {reason}: {drops:?}");
        }
    }
    assert!(of("@room_us", "paced") > 0 && of("@turn_us", "web") > 0, "{waits:?}");
}
