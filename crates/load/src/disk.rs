//! Extensive disk operations: reads or writes to a block device or a file, counted by interval.
//!
//! Workers go through the same span each from a place of its own, block after block and round again. The page cache
//! is passed by (O_DIRECT), so that every operation reaches the block device and whoever serves it. Where the
//! file system has no such way, each write is synchronous instead, and the answer says so.

use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use crate::{about, invalid, seconds, within};

/// What direct operations must be aligned to, in memory and on any common device.
const ALIGNMENT: usize = 4096;

/// Orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The block device, or a file; **what it holds is lost if it is written to**. A file is made, and made longer, if need be.
    pub path: PathBuf,
    /// Reads or writes.
    pub operation: Operation,
    /// Bytes an operation: a multiple of 4096, at most 16 MiB.
    pub block: usize,
    /// How much of the device or file is gone through, in bytes: a block a worker at least.
    pub span: u64,
    /// Operations under way at once, 1 to 64: a thread each.
    pub workers: usize,
    /// Seconds an interval.
    pub interval: f64,
    /// How long, in seconds.
    pub seconds: f64,
}

/// What is done to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operation {
    Read,
    Write,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Whether the page cache was passed by.
    pub direct: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Every interval in order, the last perhaps cut short.
    pub samples: Vec<Sample>,
}

/// What was done in one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its end, in seconds since operations began.
    pub t: f64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Operations that ended.
    pub operations: u64,
}

/// Reads or writes until the time is up, calling `started` as the first operation begins.
///
/// # Errors
/// Orders out of range, a path that cannot be opened, a device shorter than the span, an operation that fails.
pub fn run(spec: &Spec, started: impl FnOnce()) -> io::Result<Done> {
    let duration = seconds("seconds", spec.seconds)?;
    let interval = seconds("interval", spec.interval)?;
    let blocks = check(spec)?;
    let (file, direct) = open(spec).map_err(about(spec.path.display()))?;
    let (operations, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut samples = Vec::new();
    started();
    let start = Instant::now();
    thread::scope(|scope| {
        let workers = (0..spec.workers as u64).map(|worker| {
            let (file, operations, over) = (&file, &operations, &over);
            scope.spawn(move || {
                let outcome = work(spec, file, blocks * worker / spec.workers as u64, blocks, operations, over);
                // One that fails ends all.
                over.store(true, Ordering::Relaxed);
                outcome
            })
        });
        let workers: Vec<_> = workers.collect();
        let mut boundary = Duration::ZERO;
        while boundary < duration && !over.load(Ordering::Relaxed) {
            boundary = (boundary + interval).min(duration);
            thread::sleep(boundary.saturating_sub(start.elapsed()));
            let operations = operations.swap(0, Ordering::Relaxed);
            // The time it really is: a sleeper may be woken late.
            let t = start.elapsed().as_secs_f64();
            samples.push(Sample { t, bytes: operations * spec.block as u64, operations });
        }
        over.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker's thread"))
    })
    .map_err(about(spec.path.display()))?;
    Ok(Done { direct, seconds: start.elapsed().as_secs_f64(), samples })
}

/// The blocks of the span.
fn check(spec: &Spec) -> io::Result<u64> {
    within("workers", spec.workers, 1, 64)?;
    within("block", spec.block, ALIGNMENT, 16 << 20)?;
    if !spec.block.is_multiple_of(ALIGNMENT) {
        return Err(invalid(format!("block is {}: a multiple of {ALIGNMENT} is needed", spec.block)));
    }
    within("span", spec.span, (spec.block * spec.workers) as u64, i64::MAX as u64)?;
    Ok(spec.span / spec.block as u64)
}

/// Opens the path past the page cache, or else with synchronous writes; makes a file as long as the span.
fn open(spec: &Spec) -> io::Result<(File, bool)> {
    let open = |flag: OFlag| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flag.bits())
            .open(&spec.path)
    };
    let (mut file, direct) = match open(OFlag::O_DIRECT) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => (open(OFlag::O_DSYNC)?, false),
        Err(error) => return Err(error),
    };
    // A device's metadata tell no length; its end does.
    let length = file.seek(SeekFrom::End(0))?;
    if length < spec.span {
        if !file.metadata()?.is_file() {
            return Err(invalid(format!("is {length} bytes long, less than the span of {}", spec.span)));
        }
        file.set_len(spec.span)?;
    }
    Ok((file, direct))
}

fn work(
    spec: &Spec,
    file: &File,
    first: u64,
    blocks: u64,
    operations: &AtomicU64,
    over: &AtomicBool,
) -> io::Result<()> {
    let mut memory = vec![0x5a; spec.block + ALIGNMENT];
    let skip = memory.as_ptr().align_offset(ALIGNMENT);
    let block = &mut memory[skip..skip + spec.block];
    let mut at = first;
    while !over.load(Ordering::Relaxed) {
        let place = at * spec.block as u64;
        match spec.operation {
            Operation::Read => file.read_exact_at(block, place)?,
            Operation::Write => file.write_all_at(block, place)?,
        }
        operations.fetch_add(1, Ordering::Relaxed);
        at = (at + 1) % blocks;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn spec(name: &str) -> Spec {
        let path = std::env::temp_dir().join(format!("fairlane-disk-{}-{name}", std::process::id()));
        let operation = Operation::Write;
        Spec { path, operation, block: 8192, span: 1 << 20, workers: 2, interval: 0.1, seconds: 0.35 }
    }

    #[test]
    fn operations_are_counted_by_interval() {
        let write = spec("count");
        let mut begun = false;
        let written = run(&write, || begun = true).unwrap();
        let read = run(&Spec { operation: Operation::Read, ..write.clone() }, || ()).unwrap();
        assert_eq!(fs::metadata(&write.path).unwrap().len(), 1 << 20);
        fs::remove_file(&write.path).unwrap();
        assert!(begun);
        for done in [written, read] {
            assert!(done.samples.is_sorted_by(|a, b| a.t < b.t) && done.samples.len() <= 4, "{done:?}");
            assert!(done.samples.iter().map(|sample| sample.operations).sum::<u64>() > 0);
            assert!(done.samples.iter().all(|sample| sample.bytes == sample.operations * 8192));
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let good = spec("bad");
        for (bad, named) in [
            (Spec { block: 1000, ..good.clone() }, "block"),
            (Spec { block: 5000, ..good.clone() }, "multiple"),
            (Spec { span: 8192, ..good.clone() }, "span"),
            (Spec { workers: 0, ..good.clone() }, "workers"),
            (Spec { seconds: 0.0, ..good.clone() }, "seconds"),
            (Spec { path: "/no/such/disk".into(), ..good.clone() }, "/no/such/disk"),
            (Spec { path: "/dev/null".into(), ..good.clone() }, "/dev/null"),
        ] {
            let error = run(&bad, || ()).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(!good.path.exists());
    }
}
