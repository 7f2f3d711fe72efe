//! Writes the frames of a port to a pcap file: frames from its peer when they are consumed, frames for it when they are
//! accepted. The format is nanosecond pcap (magic 0xa1b23c4d), Ethernet. Frames are written as they pass here: one to
//! be segmented is one record, and a partial checksum looks wrong to a tool that checks it.
//!
//! Traffic is never delayed: the worker copies frames into bounded memory ([`Recorder`]), and a thread of the capture's
//! own writes them ([`Recording`]). Frames that find no room because the file is slow are left out and counted. A file
//! that cannot be written or reaches its size limit ends the capture with the reason, and the port continues.
//!
//! A process that succeeds this one goes on with the file ([`Recording::leave`], [`go_on`]).

mod exchange;
mod recorder;
mod recording;

pub use recorder::Recorder;
pub use recording::{Recording, Report};

use crate::keeper::Kept;
use crate::{BURST, Batch, Burst, Port, Put, Room, Sink, Source, Wrapper};
use exchange::Account;
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use std::fs::File;
use std::io;
use std::ops::Range;

/// Starts a capture into an empty file, open for appending: at most `snap` bytes of each frame, and `limit` bytes in the
/// file. The recorder is for the port's worker; the recording reports the outcome.
///
/// # Errors
/// The system's error: no thread is left.
pub fn start(file: File, snap: u32, limit: u64) -> io::Result<(Recorder, Recording)> {
    let (recording, writer) = recording::start(file, Account::new(snap, limit), || {})?;
    Ok((Recorder::new(writer), recording))
}

/// Goes on with a capture of another process, which [left](Recording::leave) this. The capture's thread calls `begin`
/// first.
///
/// # Errors
/// What is kept is damaged, or the system's error.
pub fn go_on(kept: Kept, begin: impl FnOnce() + Send + 'static) -> io::Result<(Recorder, Recording)> {
    let (file, account) = recording::left(kept).ok_or(io::ErrorKind::InvalidData)?;
    let (recording, writer) = recording::start(file, account, begin)?;
    Ok((Recorder::go_on(writer), recording))
}

/// A port under capture.
pub struct Captured {
    port: Box<dyn Port>,
    recorder: Recorder,
    /// Records of the frames offered last, and the end of each.
    offered: Vec<u8>,
    ends: Vec<usize>,
    /// Buffer for the record of a frame that was put.
    record: Vec<u8>,
}

impl Captured {
    /// Captures a port's frames.
    pub fn new(port: Box<dyn Port>, recorder: Recorder) -> Captured {
        Captured { port, recorder, offered: Vec::new(), ends: Vec::with_capacity(BURST), record: Vec::new() }
    }

    /// Hands over what it has recorded, so that the recording can be [left](Recording::leave) to another process. It may
    /// itself go on later.
    pub fn rest(&mut self) {
        self.recorder.rest();
    }

    /// Ends the capture and returns the port. The recording reports when everything is written.
    pub fn stop(self) -> Box<dyn Port> {
        self.port
    }
}

impl Source for Captured {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.offered.clear();
        self.ends.clear();
        let batch = self.port.offer(burst, budget, now);
        if self.recorder.is_running() {
            for frame in batch.frames() {
                self.recorder.record(&frame, now, &mut self.offered);
                self.ends.push(self.offered.len());
            }
        }
        batch
    }

    fn consume(&mut self, frames: usize) {
        let mut start = 0;
        for end in self.ends.drain(..).take(frames) {
            self.recorder.add(&self.offered[start..end]);
            start = end;
        }
        self.port.consume(frames);
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.port.waiting(now)
    }

    fn more(&mut self, notify: bool) -> bool {
        self.port.more(notify)
    }
}

impl Sink for Captured {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        let put = self.port.put(batch, frames.clone(), now);
        if self.recorder.is_running() {
            for index in frames.take(put.accepted) {
                self.record.clear();
                self.recorder.record(&batch.frame(index), now, &mut self.record);
                self.recorder.add(&self.record);
            }
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
        self.recorder.refresh(now);
        again
    }
}

impl Wrapper for Captured {
    type Inner = dyn Port;

    fn inner(&self) -> &(dyn Port + 'static) {
        &*self.port
    }

    fn inner_mut(&mut self) -> &mut (dyn Port + 'static) {
        &mut *self.port
    }
}

#[cfg(test)]
mod tests;
