//! A tap device: the host's network stack as a port's peer, with checksum and segmentation offload in both directions.
//!
//! A tap never pushes back by itself. `write` passes the frame to the stack at once (linux/drivers/net/tun.c,
//! `tun_get_user`) and succeeds even if the stack then drops it, for instance because the bridge's other side is
//! slower. For back-pressure give the tap the rate of the link behind it, with [`Paced`](crate::paced::Paced). Only if
//! an administrator limited the tap's send buffer (TUNSETSNDBUF) are frames refused; the port is then full as well.
//!
//! In the other direction frames wait in the device's own queues (each of `txqueuelen`), where the stack drops them if we
//! are slow. There are several, filled by destination ([`turns`]).

mod device;
mod steering;

use crate::{
    BURST, Batch, Burst, Control, Frame, Interest, Key, Poller, Put, Refusal, Room, Sink, Source, Status, Wanted,
};
use crate::{turns, vnet};
use device::Device;
use fairlane_core::ack::Ring;
use fairlane_core::packet::{self, Offload};
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// The tap's form of virtio's header: without `num_buffers`.
const HEADER: usize = 10;

/// Bytes of the largest frame and its header, and one more, to detect larger ones.
const BUFFER: usize = HEADER + 65_536 + 22 + 1;

/// Segments that one `writev` accepts; a frame of more is assembled first. 64 KiB of pages are 17.
const SEGMENTS: usize = 32;

/// An empty queue is not read again for so long, and so many times as long as there are queues if it was empty before,
/// too: each read is a system call, and a busy worker would make one every round.
const PAUSE: Nanos = Nanos::from_micros(4);

/// As much as tells whether a frame waits.
const ONE: Budget = Budget { bytes: 1, frames: 1 };

/// How long to wait after the system had no room.
const RETRY: Nanos = Nanos::from_micros(100);

/// Why a tap cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid name.
    #[error("{0:?} is not an interface name: 1 to 15 bytes, without '/', '%' and spaces")]
    Name(String),
    /// The kernel has no taps, or the device is not accessible.
    #[error("cannot open /dev/net/tun ({0}): load the module (`modprobe tun`), or give this process the device")]
    Device(io::Error),
    /// Permission denied.
    #[error(
        "no permission to use tap {name}: create it once with `ip tuntap add {name} mode tap multi_queue user $USER`, \
         or run with CAP_NET_ADMIN"
    )]
    NotAllowed {
        /// The interface.
        name: String,
    },
    /// Another process uses it.
    #[error("tap {name} is in use by another process: stop that, or name another tap")]
    Busy {
        /// The interface.
        name: String,
    },
    /// It is down, and there is no permission to set it up.
    #[error("tap {name} is down: set it up with `ip link set {name} up`, or run with CAP_NET_ADMIN")]
    Down {
        /// The interface.
        name: String,
    },
    /// Anything else.
    #[error("cannot set tap {name} up: {step}: {error}")]
    Step {
        /// The interface.
        name: String,
        /// The system call that failed.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// An open tap. If it did not exist before it is removed when closed by all that have it, so not while the
/// [store](crate::store) does.
pub struct Tap {
    device: Device,
    /// What is known of each of its queues, and whose turn it is.
    queues: Vec<Queue>,
    turn: usize,
    /// Space for a burst of frames with their headers. The system allocates the memory on first use.
    buffers: Box<[u8]>,
    /// Frames read and not consumed: a ring over `buffers`.
    frames: [Waiting; BURST],
    first: usize,
    count: usize,
    /// The worker was about to sleep until the poller reports something.
    slept: bool,
    /// When to try to write again.
    retry: Nanos,
    scratch: Vec<u8>,
    refused: u64,
    status: Status,
}

/// What is known of a queue of frames from the stack.
#[derive(Clone, Default)]
struct Queue {
    /// When to read it again.
    next_read: Nanos,
    /// It was found empty, and the poller has not reported anything since.
    drained: bool,
    /// No frame was read since it was found empty.
    idle: bool,
}

/// A frame that was read.
#[derive(Clone, Copy, Default)]
struct Waiting {
    len: usize,
    offload: Offload,
}

impl Tap {
    /// Opens a tap, creates it if it does not exist, and sets it up.
    ///
    /// # Errors
    /// See [`Error`]: each variant says what to do.
    pub fn open(name: &str) -> Result<Tap, Error> {
        let device = device::open(name)?;
        Ok(Tap {
            queues: vec![Queue::default(); device.queues().len()],
            device,
            turn: 0,
            buffers: vec![0; BURST * BUFFER].into_boxed_slice(),
            frames: [Waiting::default(); BURST],
            first: 0,
            count: 0,
            slept: false,
            retry: Nanos(0),
            scratch: Vec::new(),
            refused: 0,
            status: Status::Up,
        })
    }

    /// Frames from the tap that were dropped because their header was wrong or they were too large. The kernel sends
    /// none.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Reads until as many frames wait as the budget allows to offer, or all queues are empty, from each in turn. More
    /// would be lost with the process: those that wait in the kernel's queues are the next one's.
    fn fill(&mut self, budget: Budget, now: Nanos) {
        if std::mem::take(&mut self.slept) {
            // If something else woke the worker: the poller would have reported a frame.
            let pause = self.pause();
            for queue in self.queues.iter_mut().filter(|queue| queue.drained) {
                queue.next_read = now + pause;
            }
        }
        let missing = BURST.min(budget.frames as usize).saturating_sub(self.count);
        let waiting = (0..self.count).map(|index| self.frames[(self.first + index) % BURST].len as u64);
        let mut bytes = budget.bytes.saturating_sub(waiting.sum());
        if bytes == 0 {
            return;
        }
        let (queues, turn) = (self.queues.len(), self.turn);
        let all = turns::ALL >> (turns::MOST - queues);
        self.turn =
            turns::read(queues, all, turn, missing, |queue, most| self.read_queue(queue, most, &mut bytes, now));
    }

    /// How long a queue is not read in which nothing arrived.
    fn pause(&self) -> Nanos {
        Nanos(PAUSE.0 * self.queues.len() as u64)
    }

    /// What frames are written to: any queue.
    fn file(&self) -> &File {
        &self.device.queues()[0]
    }

    /// Reads at most `most` frames of a queue, until `bytes`, which it counts down, are reached. Returns how many: fewer
    /// if the queue has no more. None once the bytes are reached.
    fn read_queue(&mut self, number: usize, most: usize, bytes: &mut u64, now: Nanos) -> Option<usize> {
        let mut count = 0;
        while count < most && *bytes > 0 {
            let pause = self.pause();
            let queue = &mut self.queues[number];
            if now < queue.next_read || self.status != Status::Up {
                break;
            }
            let place = (self.first + self.count) % BURST;
            let buffer = &mut self.buffers[place * BUFFER..][..BUFFER];
            match (&self.device.queues()[number]).read(buffer) {
                Ok(read) => {
                    queue.idle = false;
                    match waiting(&buffer[..read]) {
                        Ok(frame) => {
                            *bytes = bytes.saturating_sub(frame.len as u64);
                            self.frames[place] = frame;
                            self.count += 1;
                            count += 1;
                        }
                        Err(rule) => {
                            self.refused += 1;
                            tracing::warn!("dropped a frame from a tap: {rule}");
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let pause = if queue.idle { pause } else { PAUSE };
                    (queue.next_read, queue.drained, queue.idle) = (now + pause, true, true);
                    self.check_deleted(&error);
                    break;
                }
            }
        }
        (*bytes > 0).then_some(count)
    }

    /// Writes a frame directly from its sender's memory.
    fn write(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let header = vnet::encode(frame.offload(), 0);
        let segments = frame.body();
        if segments.len() > SEGMENTS {
            self.scratch.clear();
            self.scratch.extend_from_slice(&header[..HEADER]);
            frame.read(&mut self.scratch);
            return self.file().write(&self.scratch).map(drop);
        }
        let vector = |start: *const u8, len: usize| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
        let mut vectors = [const { MaybeUninit::uninit() }; 2 + SEGMENTS];
        vectors[0].write(vector(header.as_ptr(), HEADER));
        vectors[1].write(vector(frame.head().as_ptr(), frame.head().len()));
        for (to, segment) in vectors[2..].iter_mut().zip(segments) {
            to.write(vector(segment.start, segment.len as usize));
        }
        let count = (2 + segments.len()) as libc::c_int;
        // SAFETY: the first `count` vectors are set and readable: the header and head are ours, and the segments are
        // readable as long as the frame lives. The kernel only reads them, once.
        let written = unsafe { libc::writev(self.file().as_raw_fd(), vectors.as_ptr().cast(), count) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Notes that the device is gone, if the error means that.
    fn check_deleted(&mut self, error: &io::Error) {
        if error.raw_os_error() == Some(libc::EBADFD) {
            self.status = Status::Disabled("the tap was deleted: create it again and restart".into());
        }
    }
}

/// Checks a frame read from a tap.
fn waiting(read: &[u8]) -> Result<Waiting, packet::Error> {
    let short = packet::Error::Short { header: "virtio's header", has: read.len(), needs: HEADER };
    let (header, frame) = read.split_at_checked(HEADER).ok_or(short)?;
    if read.len() == BUFFER {
        let right = "less: a tap's frames have at most 64 KiB of IP";
        return Err(packet::Error::Value { field: "the frame's length", value: frame.len() as u32, right });
    }
    let offload = vnet::decode(header, frame.len() as u32, &frame[..frame.len().min(crate::HEAD)])?;
    Ok(Waiting { len: frame.len(), offload })
}

impl Source for Tap {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.fill(budget, now);
        let mut filler = burst.fill();
        let frame = |index| {
            let place = (self.first + index) % BURST;
            let Waiting { len, offload } = self.frames[place];
            (&self.buffers[place * BUFFER + HEADER..][..len], offload)
        };
        filler.push_all(budget, (0..self.count).map(frame));
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        assert!(frames <= self.count, "no more frames are consumed than were offered");
        self.first = (self.first + frames) % BURST;
        self.count -= frames;
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.fill(ONE, now);
        self.count > 0
    }
}

impl Sink for Tap {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        let mut accepted = 0;
        let (frames, lost) = batch.fetch(frames);
        for index in frames {
            if let Err(error) = self.write(&batch.frame(index)) {
                self.check_deleted(&error);
                let refusal = match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => {
                        self.retry = now + RETRY;
                        Refusal::Full
                    }
                    // EFAULT: the sender truncated the file of its memory meanwhile.
                    Some(libc::EINVAL | libc::EFAULT) => Refusal::Never(DropReason::Malformed),
                    Some(libc::EMSGSIZE) => Refusal::Never(DropReason::TooLarge),
                    // EIO: the interface is down. EBADFD: it is gone.
                    _ => Refusal::Never(DropReason::ReceiverDown),
                };
                return Put { accepted, refusal: Some(refusal) };
            }
            accepted += 1;
        }
        Put { accepted, refusal: lost }
    }

    fn room(&mut self, now: Nanos) -> Room {
        if now >= self.retry { Room::Now } else { Room::At(self.retry) }
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    /// Does nothing: each frame is a write of its own.
    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Tap {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        // The poller reports each arrival once, so a queue must be known to be empty before. If it was found empty and
        // nothing was reported since, it need not be read again.
        if wanted.frames && self.queues.iter().any(|queue| !queue.drained) {
            self.queues.iter_mut().filter(|queue| !queue.drained).for_each(|queue| queue.next_read = Nanos(0));
            self.fill(ONE, Nanos(0));
        }
        self.slept = true;
        wanted.frames && self.count > 0
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        let mut queues = self.device.queues().iter().zip(0..);
        queues.try_for_each(|(queue, number)| poller.add(queue.as_fd(), key, number, Interest::Arrival))
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        if let Some(queue) = self.queues.get_mut(number as usize) {
            (queue.next_read, queue.drained) = (Nanos(0), false);
        }
    }

    fn status(&self) -> Status {
        self.status.clone()
    }
}

#[cfg(test)]
mod tests;
