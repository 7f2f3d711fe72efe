//! Disk load: reads or writes of a block device or a file, counted by interval.
//!
//! Each worker starts at a different block of the span and goes through it cyclically. Operations bypass the page cache (O_DIRECT), so
//! that each reaches the block device and its backend. If the file system does not support that, each write is synchronous
//! instead, and the result says so.

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

/// The alignment of direct I/O, in memory and on all common devices.
const ALIGNMENT: usize = 4096;

/// Parameters of the load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The block device, or a file. **Writing destroys its contents.** A file is created or extended if necessary.
    pub path: PathBuf,
    /// Reads or writes.
    pub operation: Operation,
    /// Bytes of an operation: a multiple of 4096, at most 16 MiB.
    pub block: usize,
    /// The used part of the device or file, in bytes: at least one block per worker.
    pub span: u64,
    /// The number of concurrent operations, 1 to 64, each in its own thread.
    pub workers: usize,
    /// The length of an interval, in seconds.
    pub interval: f64,
    /// The duration, in seconds.
    pub seconds: f64,
}

/// The kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operation {
    Read,
    Write,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Whether the page cache was bypassed.
    pub direct: bool,
    /// The duration, in seconds.
    pub seconds: f64,
    /// All intervals in order; the last may be shorter.
    pub samples: Vec<Sample>,
}

/// The operations of one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its end, in seconds since the start.
    pub t: f64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Completed operations.
    pub operations: u64,
}

/// Reads or writes until the time is up; calls `started` before the first operation.
///
/// # Errors
/// If a parameter is out of range, the path cannot be opened, the device is shorter than the span, or an operation fails.
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
                // A worker that fails ends all.
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
            // The actual time, as the thread may wake up late.
            let t = start.elapsed().as_secs_f64();
            samples.push(Sample { t, bytes: operations * spec.block as u64, operations });
        }
        over.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker's thread"))
    })
    .map_err(about(spec.path.display()))?;
    Ok(Done { direct, seconds: start.elapsed().as_secs_f64(), samples })
}

/// The number of blocks in the span.
fn check(spec: &Spec) -> io::Result<u64> {
    within("workers", spec.workers, 1, 64)?;
    within("block", spec.block, ALIGNMENT, 16 << 20)?;
    if !spec.block.is_multiple_of(ALIGNMENT) {
        return Err(invalid(format!("block is {}: a multiple of {ALIGNMENT} is needed", spec.block)));
    }
    within("span", spec.span, (spec.block * spec.workers) as u64, i64::MAX as u64)?;
    Ok(spec.span / spec.block as u64)
}

/// Opens the path with direct I/O, or else with synchronous writes; extends a file to the span.
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
    // A device's metadata have no length, so it seeks to the end.
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
    fn errors_name_what_is_invalid() {
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
