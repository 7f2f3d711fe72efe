//! Hands a sweep's parts to HyperQueue: an array of tasks, one a part, on whatever workers its server has.

use crate::grid::Grid;
use crate::local::Progress;
use crate::store::{Error, Store, at};
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// HyperQueue's command.
const HQ: &str = "hq";

/// How often parts that are done are counted.
const PAUSE: Duration = Duration::from_millis(200);

/// How often a task may lose its worker.
const CRASHES: &str = "unlimited";

#[derive(Deserialize)]
struct Submitted {
    id: u64,
}

/// Submits all parts that are not done and waits for them. `worker` and its arguments do the part that `HQ_TASK_ID` names.
///
/// A task whose worker dies is given to another one by HyperQueue.
///
/// # Errors
/// There is no HyperQueue, its server is not running, or tasks failed: their messages are in the directory.
pub fn run(store: &Store, grid: &Grid, worker: &[OsString], progress: Progress) -> Result<(), Error> {
    let (parts, missing) = (store.parts(), store.missing()?);
    progress(parts - missing.len() as u64, parts);
    if missing.is_empty() {
        return Ok(());
    }
    let log = store.path().join("log");
    std::fs::create_dir_all(&log).map_err(at(&log))?;
    let stderr = std::path::absolute(&log).map_err(at(&log))?.join("%{TASK_ID}.txt");
    let job = submit(grid, &array(&missing), &stderr, worker)?;
    let mut wait = hq().args(["job", "wait", &job]).stdout(Stdio::null()).spawn().map_err(absent)?;
    let ended = loop {
        if let Some(ended) = wait.try_wait().map_err(absent)? {
            break ended;
        }
        std::thread::sleep(PAUSE);
        progress(parts - store.missing()?.len() as u64, parts);
    };
    let left = store.missing()?;
    progress(parts - left.len() as u64, parts);
    match left.first() {
        None => Ok(()),
        Some(part) => {
            let why = message(&log.join(format!("{part}.txt")));
            let why =
                why.map_or_else(|| format!("`hq job wait {job}` ended with {ended}"), |why| why.trim().to_owned());
            let text =
                format!("{} of {parts} parts were not done by HyperQueue's job {job}; part {part}: {why}", left.len());
            Err(Error::HyperQueue(text))
        }
    }
}

fn hq() -> Command {
    let mut command = Command::new(HQ);
    command.stdin(Stdio::null());
    command
}

fn absent(why: std::io::Error) -> Error {
    Error::HyperQueue(format!(
        "cannot run {HQ}: {why}. Install HyperQueue and start `hq server start` and `hq worker start`"
    ))
}

fn submit(grid: &Grid, array: &str, stderr: &Path, worker: &[OsString]) -> Result<String, Error> {
    let mut command = hq();
    command.args(["--output-mode", "json", "submit", "--name", &grid.name, "--array", array, "--crash-limit", CRASHES]);
    if grid.is_experiment() {
        command.args(["--cpus", "all"]);
    }
    command.args(["--stdout", "none", "--stderr"]).arg(stderr).arg("--").args(worker);
    let output = command.output().map_err(absent)?;
    let id = serde_json::from_slice::<Submitted>(&output.stdout).ok().filter(|_| output.status.success());
    let said = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    id.map(|job| job.id.to_string()).ok_or_else(|| Error::HyperQueue(format!("hq submit: {}", said.trim())))
}

/// What a task wrote.
fn message(file: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(file).ok()?.take(4096).read_to_string(&mut text).ok()?;
    (!text.trim().is_empty()).then_some(text)
}

/// Numbers in order as HyperQueue reads them: `0-3,7`.
fn array(parts: &[u64]) -> String {
    let runs = parts.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[u64]| match run {
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_range() {
        assert_eq!(array(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
