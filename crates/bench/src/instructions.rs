//! Part instructions: instructions and cache misses of a backend per 64-byte frame, by callgrind.
//!
//! The guests are those of the parts `rx` and `forward`, and run natively. A backend that polls would execute instructions while
//! nothing waits, so each is shown full bursts only: DPDK's vhost library by a preloaded one (`full_bursts.c`), Fairlane by
//! `served.rs`. Two segments of frames are counted, and should be equal.

use crate::Run;
use crate::machine::{self, Missing};
use crate::ovs::{APART, OpenVSwitch};
use crate::process::{self, Process};
use crate::served::{self, COUNTED, DUMPED, SEGMENTS, To};
use crate::testpmd::{self, BACKEND, Traffic};
use anyhow::{Context, Result, ensure};
use fairlane_report::{Axis, Figure, Series};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TITLE: &str = "Instructions per 64-byte frame";

/// Frames of a segment: 128 of Fairlane's rounds.
const FRAMES: u64 = 32_768;

/// How long a backend may take: it is fifty to a hundred times slower than natively, and its start as well.
const PATIENCE: Duration = Duration::from_secs(180);

/// Caches of the same size on each computer: 32 KiB for instructions and for data, and 8 MiB for both.
const CACHES: [&str; 4] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];

/// The library that is preloaded into DPDK's backends.
const FULL_BURSTS: &str = include_str!("full_bursts.c");

/// What is counted: the name of its metrics, and of its events in callgrind's files.
const KINDS: [(&str, &[&str]); 3] =
    [("instructions", &["Ir"]), ("l1_misses", &["I1mr", "D1mr", "D1mw"]), ("ll_misses", &["ILmr", "DLmr", "DLmw"])];

/// A backend and what its guests do: the case of the figure, the name of its metrics.
struct Case {
    number: usize,
    path: &'static str,
    backend: &'static str,
    guests: usize,
    traffic: Traffic,
    start: Start,
}

/// Starts a backend for some sockets, with the tools, in a directory of its own.
type Start = fn(&Tools, &Path, &[PathBuf]) -> Result<Box<dyn Counted>>;

/// A backend under callgrind.
trait Counted {
    /// Its program.
    fn program(&mut self) -> &mut Process;
}

impl Counted for Process {
    fn program(&mut self) -> &mut Process {
        self
    }
}

impl Counted for OpenVSwitch {
    fn program(&mut self) -> &mut Process {
        self.switch_mut()
    }
}

const CASES: [Case; 5] = [
    Case { number: 0, path: "rx", backend: "fairlane", guests: 1, traffic: Traffic::Send, start: fairlane_to_sink },
    Case { number: 0, path: "rx", backend: "dpdk", guests: 1, traffic: Traffic::Send, start: rxonly },
    Case { number: 1, path: "forward", backend: "fairlane", guests: 2, traffic: Traffic::Exchange, start: fairlane },
    Case { number: 1, path: "forward", backend: "dpdk", guests: 2, traffic: Traffic::Exchange, start: io },
    Case { number: 1, path: "forward", backend: "ovs", guests: 2, traffic: Traffic::Exchange, start: open_vswitch },
];

/// Counts for all backends and adds the results.
///
/// # Errors
/// Missing programs, or backends that do not run.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    testpmd::find()?;
    run.machine.two_cores()?;
    let home = tempfile::tempdir()?;
    let tools = Tools::make(home.path())?;
    let mut shown = Vec::new();
    for case in &CASES {
        let what = format!("instructions: {} of {}", case.path, case.backend);
        run.show(format!("{what}, under callgrind"));
        match count(case, &tools, run.machine.real_time) {
            Ok(counts) => add(run, case, &counts, &mut shown),
            Err(error) if error.is::<Missing>() => run.skip(&format!("{what}: {error}")),
            Err(error) => return Err(error.context(what)),
        }
    }
    run.result.setting(
        "instructions",
        format!("callgrind, {SEGMENTS} segments of {FRAMES} frames in full bursts, {}", CACHES.join(" ")),
    );
    run.result.figure(
        Figure::bars(TITLE)
            .caption("Of the backend's thread, in user space, while each burst is a full one. DPDK's vhost and Fairlane's copy of the frame included, the guests' own work not.")
            .y("instructions")
            .categories(["1 guest into the backend", "guest to guest"])
            .series(shown),
    );
    Ok(())
}

/// Adds what was counted per frame in each segment: one list of segments for each of [`KINDS`].
fn add(run: &mut Run, case: &Case, counts: &[Vec<f64>; KINDS.len()], shown: &mut Vec<String>) {
    let Case { path, backend, number, .. } = case;
    for ((kind, _), counts) in KINDS.iter().zip(counts) {
        run.result.metric(&format!("{path}_64b_{kind}_{backend}"), counts, "");
    }
    let points = counts[0].iter().map(|count| [*number as f64, *count]);
    let name = format!("instructions/{backend}");
    match run.result.series.iter_mut().find(|series| series.name == name) {
        Some(known) => known.points.extend(points),
        None => {
            run.result.series(Series::new(&name, "", Axis::new("case", "")).group(backend).points(points));
            shown.push(name);
        }
    }
}

/// Runs a backend under callgrind.
fn count(case: &Case, tools: &Tools, real_time: bool) -> Result<[Vec<f64>; KINDS.len()]> {
    let home = tempfile::tempdir()?;
    let sockets = testpmd::sockets(home.path(), case.guests);
    let mut backend = (case.start)(tools, home.path(), &sockets)?;
    let there = || sockets.iter().all(|socket| socket.exists());
    backend.program().ready("its sockets were there", PATIENCE, there)?;
    let _guests = testpmd::guests(home.path(), &sockets, case.traffic, real_time)?;
    backend.program().finish(PATIENCE)?;
    let mut counts = [const { Vec::new() }; KINDS.len()];
    for segment in 1..=SEGMENTS {
        let file = home.path().join(format!("counts.{segment}"));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for ((_, events), counts) in KINDS.iter().zip(&mut counts) {
            let total = total(&text, events).with_context(|| format!("{}: no totals", file.display()))?;
            counts.push(total as f64 / FRAMES as f64);
        }
    }
    ensure!(counts[0].iter().all(|count| *count > 0.0), "callgrind counted nothing");
    Ok(counts)
}

/// The sum of some events in a file of callgrind. Its last events are left out where they are zero.
fn total(text: &str, events: &[&str]) -> Option<u64> {
    let after = |mark: &str| text.lines().find_map(|line| line.strip_prefix(mark)).map(str::split_whitespace);
    let totals: Vec<u64> = after("totals:")?.map(str::parse).collect::<Result<_, _>>().ok()?;
    let named = after("events:")?.enumerate().filter(|(_, name)| events.contains(name));
    Some(named.map(|(index, _)| totals.get(index).copied().unwrap_or(0)).sum())
}

/// The programs that count.
struct Tools {
    valgrind: PathBuf,
    /// The preloaded library.
    full_bursts: PathBuf,
    /// The vhost library that DPDK's programs load.
    vhost: String,
}

impl Tools {
    /// Finds valgrind, and builds the library that is preloaded.
    fn make(home: &Path) -> Result<Tools> {
        let valgrind = machine::find("valgrind", "valgrind")?;
        let compiler = machine::find("cc", "gcc")?;
        machine::find("setarch", "util-linux")?;
        let (source, full_bursts) = (home.join("full_bursts.c"), home.join("full_bursts.so"));
        fs::write(&source, FULL_BURSTS)?;
        let options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"].map(OsStr::new);
        let files = [full_bursts.as_os_str(), source.as_os_str()];
        process::output(&[&[compiler.as_os_str()], &options[..], &files[..]].concat())?;
        let libraries = process::output(&["ldconfig", "-p"])?;
        let names = libraries.lines().filter_map(|line| line.split_whitespace().next());
        let vhost = names.into_iter().find(|name| name.starts_with("librte_vhost.so."));
        let vhost =
            vhost.ok_or_else(|| Missing("librte_vhost is not installed: run `apt-get install dpdk-dev`".into()))?;
        Ok(Tools { valgrind, full_bursts, vhost: vhost.to_owned() })
    }

    /// The words that run a program under callgrind on the backends' core, and write to files in `home`. Addresses are not random,
    /// as misses depend on them.
    fn callgrind(&self, home: &Path, options: &[String]) -> Vec<String> {
        let mut words =
            ["setarch", "--addr-no-randomize", "taskset", "-c", &BACKEND.to_string()].map(str::to_owned).to_vec();
        words.extend([self.valgrind.display().to_string(), "--quiet".to_owned(), "--tool=callgrind".to_owned()]);
        words.extend(["--fair-sched=yes", "--collect-atstart=no"].map(str::to_owned));
        words.extend(CACHES.map(str::to_owned));
        words.push(format!("--callgrind-out-file={}", home.join("counts").display()));
        words.extend_from_slice(options);
        words
    }

    /// The environment of a program that shows it full bursts only.
    fn shown_full_bursts(&self) -> [(&str, String); 3] {
        [
            ("LD_PRELOAD", self.full_bursts.display().to_string()),
            ("FULL_BURSTS_OF", self.vhost.clone()),
            ("FULL_BURSTS_FRAMES", FRAMES.to_string()),
        ]
    }
}

fn fairlane_to_sink(tools: &Tools, home: &Path, sockets: &[PathBuf]) -> Result<Box<dyn Counted>> {
    start_fairlane(tools, home, sockets, To::Sink)
}

fn fairlane(tools: &Tools, home: &Path, sockets: &[PathBuf]) -> Result<Box<dyn Counted>> {
    start_fairlane(tools, home, sockets, To::Guests)
}

fn start_fairlane(tools: &Tools, home: &Path, sockets: &[PathBuf], to: To) -> Result<Box<dyn Counted>> {
    let options = [format!("--toggle-collect={COUNTED}"), format!("--dump-after={DUMPED}")];
    let mut words = tools.callgrind(home, &options);
    words.extend(served::words(sockets, to, Some(FRAMES))?);
    Ok(Box::new(Process::start(&words, &[])?))
}

fn rxonly(tools: &Tools, home: &Path, sockets: &[PathBuf]) -> Result<Box<dyn Counted>> {
    start_testpmd(tools, home, sockets, "rxonly")
}

fn io(tools: &Tools, home: &Path, sockets: &[PathBuf]) -> Result<Box<dyn Counted>> {
    start_testpmd(tools, home, sockets, "io")
}

fn start_testpmd(tools: &Tools, home: &Path, sockets: &[PathBuf], mode: &str) -> Result<Box<dyn Counted>> {
    let mut words = tools.callgrind(home, &[]);
    words.extend(testpmd::backend_words(sockets, mode)?);
    let variables = tools.shown_full_bursts();
    let variables = variables.iter().map(|(name, value)| (*name, OsStr::new(value)));
    let environment: Vec<_> = testpmd::environment(home).into_iter().chain(variables).collect();
    Ok(Box::new(Process::start(&words, &environment)?))
}

fn open_vswitch(tools: &Tools, home: &Path, sockets: &[PathBuf]) -> Result<Box<dyn Counted>> {
    let variables = tools.shown_full_bursts();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, OsStr::new(value))).collect();
    let words = [APART.map(str::to_owned).to_vec(), tools.callgrind(home, &[])].concat();
    Ok(Box::new(OpenVSwitch::start_under(&words, &variables, home, sockets)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_sums_of_events() {
        let text = "events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nsummary: 9 9\nfn=(1) x\ntotals: 100 30 20 1 2 3\n";
        assert_eq!(KINDS.map(|(_, events)| total(text, events)), [Some(100), Some(6), Some(0)]);
        assert_eq!(total("events: Ir\n", &["Ir"]), None);
        assert_eq!(total("events: Ir\ntotals: many\n", &["Ir"]), None);
    }
}
