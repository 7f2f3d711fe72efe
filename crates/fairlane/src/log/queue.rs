//! Lines on their way to a descriptor that may take none for any time, such as a pipe that nobody reads. They wait in a bounded queue
//! for a thread that writes them; where that is full they are lost and counted, and the number stands where they would.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use fairlane_engine::confinement::{self, Kind};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Lines that may wait; mostly of about 100 bytes.
const WAITING: usize = 1024;

/// How long the end of the process waits for lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the thread looks after what is said later.
const PAUSE: Duration = Duration::from_secs(1);

enum Entry {
    /// A line, and how many before it were lost.
    Line(Vec<u8>, u64),
    /// Answered once all before it is written.
    Mark(Sender<()>),
}

/// Where lines are put. Each write is a line; none waits. Clones are the same.
#[derive(Clone)]
pub struct Queue {
    entries: Sender<Entry>,
    /// Lines that found no room since the last one that did.
    lost: Arc<AtomicU64>,
}

impl Queue {
    /// Starts the thread that writes to `out`, and calls `later` about once a second.
    ///
    /// # Errors
    /// What the system says: no thread is left.
    pub fn start(out: File, later: impl FnMut() + Send + 'static) -> io::Result<Queue> {
        let (entries, received) = bounded(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let unsaid = lost.clone();
        let thread = std::thread::Builder::new().name("fairlane-log".to_owned());
        thread.spawn(move || {
            confinement::enter(Kind::Log);
            write_all(out, &received, &unsaid, later);
        })?;
        Ok(Queue { entries, lost })
    }

    /// Waits, for a second at most, until what was put so far is written.
    pub fn flush(&self) {
        let until = Instant::now() + PATIENCE;
        let (done, marked) = bounded(1);
        if self.entries.send_deadline(Entry::Mark(done), until).is_ok() {
            // A descriptor that takes nothing for so long is not waited for.
            let _ = marked.recv_deadline(until);
        }
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

/// The thread's work, until all ends of the queue are dropped.
fn write_all(mut out: File, received: &Receiver<Entry>, unsaid: &AtomicU64, mut later: impl FnMut()) {
    let mut next = Instant::now() + PAUSE;
    loop {
        // A descriptor that takes nothing for good, as a closed pipe, has nobody who could be told.
        match received.recv_deadline(next) {
            Ok(Entry::Line(line, lost)) => {
                let _ = tell_lost(&mut out, lost).and_then(|()| out.write_all(&line));
            }
            Ok(Entry::Mark(done)) => {
                let _ = tell_lost(&mut out, unsaid.swap(0, Relaxed));
                let _ = done.send(());
            }
            Err(end) => {
                let _ = tell_lost(&mut out, unsaid.swap(0, Relaxed));
                if end == RecvTimeoutError::Disconnected {
                    return;
                }
            }
        }
        if Instant::now() >= next {
            later();
            next = Instant::now() + PAUSE;
        }
    }
}

/// Says how many lines are missing here, if some are.
fn tell_lost(out: &mut File, lost: u64) -> io::Result<()> {
    if lost == 0 {
        return Ok(());
    }
    let mut time = String::new();
    // Without the time it is worth saying too.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    writeln!(
        out,
        "{time}  WARN {}: {lost} lines are missing here: they came faster than they were read",
        module_path!()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, fcntl};
    use std::io::{BufRead, BufReader};

    #[test]
    fn lines_come_out_in_order_and_at_the_end() {
        let (reader, writer) = io::pipe().unwrap();
        let mut queue = Queue::start(File::from(std::os::fd::OwnedFd::from(writer)), || {}).unwrap();
        for number in 0..100 {
            writeln!(queue, "{number}").unwrap();
        }
        queue.flush();
        let written: Vec<_> = BufReader::new(reader).lines().take(100).map(Result::unwrap).collect();
        assert_eq!(written, (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn who_writes_waits_for_no_reader_and_what_is_missing_is_counted_in_its_place() {
        let (reader, writer) = io::pipe().unwrap();
        // A page: some dozens of lines.
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        let mut queue = Queue::start(File::from(std::os::fd::OwnedFd::from(writer)), || {}).unwrap();
        for number in 0..10_000 {
            queue.write_all(format!("{number:063}\n").as_bytes()).unwrap();
        }
        // Nor does the end of the process.
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
                    .strip_suffix(" lines are missing here: they came faster than they were read")
                    .unwrap()
                    .parse::<u64>()
                    .unwrap();
            }
        }
        assert_eq!(next, 10_000);
        assert!(lines >= WAITING as u64 && lines < 5000, "{lines} lines had room");
    }
}
