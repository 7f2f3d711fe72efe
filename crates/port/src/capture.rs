//! Writes what passes through a port to a pcap file: frames that its peer sent when they are consumed, frames put into
//! it when they are accepted. Nanosecond pcap (magic 0xa1b23c4d), Ethernet. Frames are written as they pass here: one to be segmented is
//! one record, and a checksum left to be completed looks wrong to whoever checks it.
//!
//! Traffic never suffers: if the file cannot be written the capture ends with the reason and the port works on.

use crate::{BURST, Batch, Burst, Frame, Key, Poller, Port, Put, Room, Status, Wanted};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Grant;
use fairlane_core::stats::Drops;
use fairlane_core::time::{Nanos, SECOND};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes collected before they are written.
const BUFFER: usize = 256 * 1024;

/// After this long what was collected is written, so that the file can be watched.
const FRESH: Nanos = Nanos::from_millis(200);

/// A port under capture.
pub struct Captured {
    port: Box<dyn Port>,
    writer: Writer,
    /// Records of the frames offered last, and where each ends.
    offered: Vec<u8>,
    ends: Vec<usize>,
}

/// What a capture came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames written.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Why the capture ended before it was stopped.
    pub error: Option<String>,
}

impl Captured {
    /// Captures a port's frames into an empty file, of each at most the first `snap` bytes.
    pub fn start(port: Box<dyn Port>, file: File, snap: u32) -> Captured {
        Captured { port, writer: Writer::new(file, snap), offered: Vec::new(), ends: Vec::with_capacity(BURST) }
    }

    /// Ends the capture: everything is written, and the port is as it was.
    pub fn stop(mut self) -> (Box<dyn Port>, Report) {
        self.writer.write();
        (self.port, std::mem::take(&mut self.writer.report))
    }

    /// What was written so far.
    pub fn report(&self) -> &Report {
        &self.writer.report
    }
}

impl Port for Captured {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, grant: Grant, now: Nanos) -> Batch<'a> {
        self.offered.clear();
        self.ends.clear();
        let batch = self.port.offer(burst, grant, now);
        if self.writer.file.is_some() {
            for frame in batch.frames() {
                self.writer.record(&frame, now, &mut self.offered);
                self.ends.push(self.offered.len());
            }
        }
        batch
    }

    fn consume(&mut self, frames: usize) {
        if let Some(last) = frames.min(self.ends.len()).checked_sub(1) {
            self.writer.add(&self.offered[..self.ends[last]], last as u64 + 1);
        }
        self.ends.clear();
        self.port.consume(frames);
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.port.waiting(now)
    }

    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        let put = self.port.put(batch, frames.clone(), now);
        if self.writer.file.is_some() {
            let mut records = std::mem::take(&mut self.writer.records);
            records.clear();
            for index in frames.take(put.accepted) {
                self.writer.record(&batch.frame(index), now, &mut records);
            }
            self.writer.add(&records, put.accepted as u64);
            self.writer.records = records;
        }
        put
    }

    fn room(&mut self, now: Nanos) -> Room {
        self.port.room(now)
    }

    fn ring(&self) -> Ring {
        self.port.ring()
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        let again = self.port.flush(now);
        if now.since(self.writer.written) >= FRESH {
            self.writer.written = now;
            self.writer.write();
        }
        again
    }

    fn arm(&mut self, wanted: Wanted) -> bool {
        self.port.arm(wanted)
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }

    fn next_event(&self) -> Nanos {
        self.port.next_event()
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        self.port.register(poller, key)
    }

    fn event(&mut self, number: u32, poller: &Poller, now: Nanos) {
        self.port.event(number, poller, now);
    }

    fn limit(&self) -> Option<crate::Limit> {
        self.port.limit()
    }

    fn status(&self) -> Status {
        self.port.status()
    }

    fn lost(&self) -> Drops {
        self.port.lost()
    }

    fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        self.port.set_rate(rate, now);
    }
}

struct Writer {
    /// Gone after an error.
    file: Option<File>,
    snap: u32,
    /// Wall-clock time at the port's time zero, in nanoseconds, known with the first frame.
    epoch: Option<u64>,
    buffer: Vec<u8>,
    /// Whole frames in `buffer`.
    buffered: u64,
    /// Room for one burst's records.
    records: Vec<u8>,
    /// When the buffer was last written.
    written: Nanos,
    report: Report,
}

impl Writer {
    fn new(file: File, snap: u32) -> Writer {
        let mut buffer = Vec::with_capacity(BUFFER);
        buffer.extend(0xa1b2_3c4d_u32.to_le_bytes());
        buffer.extend([2, 0, 4, 0]); // Version 2.4.
        buffer.extend([0; 8]); // Times are UTC.
        buffer.extend(snap.to_le_bytes());
        buffer.extend(1u32.to_le_bytes()); // LINKTYPE_ETHERNET.
        Writer {
            file: Some(file),
            snap,
            epoch: None,
            buffer,
            buffered: 0,
            records: Vec::new(),
            written: Nanos(0),
            report: Report::default(),
        }
    }

    /// Appends a frame's record.
    fn record(&mut self, frame: &Frame<'_>, now: Nanos, out: &mut Vec<u8>) {
        let epoch = *self.epoch.get_or_insert_with(|| {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (wall.as_nanos() as u64).saturating_sub(now.0)
        });
        let time = epoch.saturating_add(now.0);
        let kept = frame.bytes().min(u64::from(self.snap)) as usize;
        for word in [(time / SECOND) as u32, (time % SECOND) as u32, kept as u32, frame.bytes() as u32] {
            out.extend(word.to_le_bytes());
        }
        let start = out.len();
        frame.read(out);
        out.truncate(start + kept);
    }

    /// Adds whole records of `frames` frames.
    fn add(&mut self, records: &[u8], frames: u64) {
        if self.file.is_none() {
            return;
        }
        if self.buffer.len() + records.len() > BUFFER {
            self.write();
        }
        self.buffer.extend_from_slice(records);
        self.buffered += frames;
    }

    /// Writes the buffer, or ends the capture with the reason.
    fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        match file.write_all(&self.buffer) {
            Ok(()) => {
                self.report.bytes += self.buffer.len() as u64;
                self.report.frames += self.buffered;
            }
            Err(error) => {
                // Half a record would make the whole file unreadable to some. What is no ordinary file stays as it is.
                let _ = file.set_len(self.report.bytes);
                let frames = self.report.frames;
                self.report.error =
                    Some(format!("the capture ended after {frames} frames: cannot write its file: {error}"));
                self.file = None;
            }
        }
        self.buffer.clear();
        self.buffered = 0;
    }
}

/// What was collected is written also where nobody stops the capture: the port vanished under it.
impl Drop for Writer {
    fn drop(&mut self) {
        self.write();
    }
}

#[cfg(test)]
mod tests;
