//! Writes lines to a descriptor that may block for any time, such as a pipe that nobody reads. Lines wait in a bounded queue for a
//! thread that writes them. If the queue is full, lines are lost and counted, and a line with their number takes their place.

use super::Format;
use fairlane_engine::confinement::{self, Kind};
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Capacity of the queue, in lines; most have about 100 bytes.
const CAPACITY: usize = 1024;

/// How long the process, when it ends, waits for lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two looks whether there is room in a full queue.
const PAUSE: Duration = Duration::from_millis(1);

/// How often the thread calls its periodic function.
const PERIOD: Duration = Duration::from_secs(1);

enum Entry {
    /// A line, and the number of lines lost before it.
    Line(Vec<u8>, u64),
    /// Answered once all entries before it are written.
    Mark(SyncSender<()>),
}

/// The queue. Each write is one line; no write blocks. Clones share the queue.
#[derive(Clone)]
pub(super) struct Queue {
    entries: SyncSender<Entry>,
    /// Lines lost since the last one that was queued.
    lost: Arc<AtomicU64>,
}

impl Queue {
    /// Starts the thread that writes to `out` and calls `periodic` about once a second.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(out: File, format: Format, periodic: impl FnMut() + Send + 'static) -> io::Result<Queue> {
        let (entries, received) = mpsc::sync_channel(CAPACITY);
        let lost = Arc::new(AtomicU64::new(0));
        let unreported = lost.clone();
        let thread = thread::Builder::new().name("fairlane-log".to_owned());
        thread.spawn(move || {
            confinement::enter(Kind::Log);
            write_all(out, format, &received, &unreported, periodic);
        })?;
        Ok(Queue { entries, lost })
    }

    /// Waits, for at most a second, until all queued lines are written.
    pub(super) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let (done, marked) = mpsc::sync_channel(1);
        let mut mark = Entry::Mark(done);
        while let Err(TrySendError::Full(unsent)) = self.entries.try_send(mark) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(PAUSE);
            mark = unsent;
        }
        // If the descriptor blocks for longer, the lines are lost.
        let _ = marked.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let lost = self.lost.swap(0, Relaxed);
        if self.entries.try_send(Entry::Line(line.to_vec(), lost)).is_err() {
            self.lost.fetch_add(lost + 1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes lines until all clones of the queue are dropped.
fn write_all(
    mut out: File,
    format: Format,
    received: &Receiver<Entry>,
    unreported: &AtomicU64,
    mut periodic: impl FnMut(),
) {
    let mut next = Instant::now() + PERIOD;
    loop {
        // Write errors, such as of a closed pipe, are ignored: there is nowhere to report them.
        match received.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Entry::Line(line, lost)) => {
                let _ = write_lost(&mut out, format, lost).and_then(|()| out.write_all(&line));
            }
            Ok(Entry::Mark(done)) => {
                let _ = write_lost(&mut out, format, unreported.swap(0, Relaxed));
                let _ = done.send(());
            }
            Err(end) => {
                let _ = write_lost(&mut out, format, unreported.swap(0, Relaxed));
                if end == RecvTimeoutError::Disconnected {
                    return;
                }
            }
        }
        if Instant::now() >= next {
            periodic();
            next = Instant::now() + PERIOD;
        }
    }
}

/// Writes how many lines were lost, if any were.
fn write_lost(out: &mut File, format: Format, lost: u64) -> io::Result<()> {
    if lost == 0 {
        return Ok(());
    }
    let mut time = String::new();
    // The line is useful even without the time.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let (target, message) = (module_path!(), format!("{lost} lines were lost: they came faster than they were read"));
    match format {
        Format::Text => writeln!(out, "{time}  WARN {target}: {message}"),
        Format::Json => {
            let line = json!({ "timestamp": time, "level": "WARN", "message": message, "target": target });
            writeln!(out, "{line}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, fcntl};
    use std::io::{BufRead, BufReader};

    #[test]
    fn lines_are_written_in_order_and_flushed() {
        let (reader, writer) = io::pipe().unwrap();
        let mut queue = Queue::start(File::from(std::os::fd::OwnedFd::from(writer)), Format::Text, || {}).unwrap();
        for number in 0..100 {
            writeln!(queue, "{number}").unwrap();
        }
        queue.flush();
        let written: Vec<_> = BufReader::new(reader).lines().take(100).map(Result::unwrap).collect();
        assert_eq!(written, (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn writers_do_not_block_and_lost_lines_are_counted_in_their_place() {
        let (reader, writer) = io::pipe().unwrap();
        // A page: some dozens of lines.
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        let mut queue = Queue::start(File::from(std::os::fd::OwnedFd::from(writer)), Format::Text, || {}).unwrap();
        for number in 0..10_000 {
            queue.write_all(format!("{number:063}\n").as_bytes()).unwrap();
        }
        // Flushing does not block either.
        queue.flush();
        drop(queue);
        let (mut lines, mut next) = (0, 0);
        for line in BufReader::new(reader).lines().map(Result::unwrap) {
            if let Ok(number) = line.parse::<u64>() {
                assert_eq!(number, next, "after {lines} lines");
                (lines, next) = (lines + 1, next + 1);
            } else {
                let (_, rest) = line.split_once("WARN fairlane::log::queue: ").unwrap();
                next += rest
                    .strip_suffix(" lines were lost: they came faster than they were read")
                    .unwrap()
                    .parse::<u64>()
                    .unwrap();
            }
        }
        assert_eq!(next, 10_000);
        assert!(lines >= CAPACITY as u64 && lines < 5000, "{lines} lines had room");
    }
}
