//! An in-process link with a rate, a delay and a queue: joins guests without a network card and without root.
//!
//! Each direction is a lane: frames are copied into its ring when they are put at one end, and stay there until they
//! are consumed at the other. When a frame is put, the time at which its last bit leaves is known (from the rate and
//! the queue before it), and so is its arrival (`delay` later). So a lane is a queue of frames with their times, and
//! needs no thread or timer of its own. The ends may live on different threads.
//!
//! A frame to be segmented passes as a whole, and takes the link's time for its own bytes.

mod lane;

use crate::rate::Link;
use crate::{Batch, Burst, Control, Interest, Key, Poller, Put, Refusal, Room, Sink, Source, Status, Wanted};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::{Nanos, SECOND};
pub use lane::FRAME;
use lane::{Lane, Receiver, Sender};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes of arrived frames that may wait, beyond the queue and the bits in flight: a receiver that is late by so much
/// does not slow the sender.
const ARRIVED: u64 = 8 * FRAME;

/// The most memory that one direction may need.
const STORAGE: u64 = 1 << 30;

/// The properties of a wire, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bits a second, more than 0; `None` passes every frame at once.
    pub rate: Option<u64>,
    /// The time from a frame's last bit leaving to its arrival, in nanoseconds.
    pub delay: Nanos,
    /// Bytes that may wait for transmission. An empty queue accepts one frame of any size. Without a rate: bytes that
    /// may be in flight or unconsumed.
    pub queue: u64,
    /// Whether a full queue refuses frames until there is room; otherwise it drops them.
    pub backpressure: bool,
}

/// Why a wire cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rate of 0.
    #[error("a wire's rate is 0 bit/s; leave the rate out for a wire without one")]
    NoRate,
    /// Too many bytes in flight.
    #[error("a wire's queue and rate * delay come to {0} bytes; the limit is {STORAGE}")]
    TooLong(u128),
    /// No descriptor for waking the other end.
    #[error("cannot make an eventfd for a wire: {0}")]
    Wake(#[from] io::Error),
}

/// One end of a wire.
pub struct End {
    link: Link,
    backpressure: bool,
    delay: Nanos,
    outward: Sender,
    inward: Receiver,
    /// Wake this end, and the other.
    wakeups: [Arc<EventFd>; 2],
    /// Whether the other end sleeps and must be woken for something done since the last flush.
    must_wake: bool,
    /// The latest time this end was called with.
    seen: Nanos,
    /// Bytes of the frame that found no memory at the last refusal.
    short: u64,
}

/// The two ends of a new wire.
///
/// # Errors
/// See [`Error`].
pub fn pair(options: Options) -> Result<(End, End), Error> {
    if options.rate == Some(0) {
        return Err(Error::NoRate);
    }
    let flight = u128::from(options.rate.unwrap_or(0)) * u128::from(options.delay.0) / 8 / u128::from(SECOND);
    let storage = u128::from(options.queue) + flight + u128::from(ARRIVED);
    let storage = u64::try_from(storage).ok().filter(|bytes| *bytes <= STORAGE).ok_or(Error::TooLong(storage))?;
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    let wakeup = || Ok::<_, io::Error>(Arc::new(EventFd::from_flags(flags)?));
    let wakeups = [wakeup()?, wakeup()?];
    let (to_right, from_left) = Lane::pair(storage as usize);
    let (to_left, from_right) = Lane::pair(storage as usize);
    let end = |outward, inward, wakeups| End {
        link: Link::new(options.rate, options.queue),
        backpressure: options.backpressure,
        delay: options.delay,
        outward,
        inward,
        wakeups,
        must_wake: false,
        seen: Nanos(0),
        short: 0,
    };
    let [left, right] = wakeups;
    Ok((end(to_right, from_right, [left.clone(), right.clone()]), end(to_left, from_left, [right, left])))
}

impl End {
    fn refuse(&self) -> Refusal {
        if self.backpressure { Refusal::Full } else { Refusal::Never(DropReason::UplinkFull) }
    }
}

impl Source for End {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.seen = self.seen.max(now);
        self.inward.offer(burst, budget, now)
    }

    fn consume(&mut self, frames: usize) {
        self.must_wake |= self.inward.consume(frames);
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.seen = self.seen.max(now);
        self.inward.next().is_some_and(|arrival| arrival <= now)
    }
}

impl Sink for End {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        self.seen = self.seen.max(now);
        let mut accepted = 0;
        let (frames, mut refusal) = batch.fetch(frames);
        for index in frames {
            let frame = batch.frame(index);
            if frame.bytes() > FRAME {
                refusal = Some(Refusal::Never(DropReason::TooLarge));
                break;
            }
            if !self.outward.fits(frame.bytes()) {
                self.short = frame.bytes();
                refusal = Some(self.refuse());
                break;
            }
            let Some(finish) = self.link.admit(frame.bytes(), now) else {
                refusal = Some(self.refuse());
                break;
            };
            self.outward.push(&frame, finish + self.delay);
            accepted += 1;
        }
        self.must_wake |= self.outward.publish();
        Put { accepted, refusal }
    }

    fn room(&mut self, now: Nanos) -> Room {
        self.seen = self.seen.max(now);
        if self.outward.fits(self.short) { self.link.room(now) } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        if std::mem::take(&mut self.must_wake) {
            // Fails only with the counter at its maximum, and then the other end has been woken already.
            let _ = self.wakeups[1].write(1);
        }
        Nanos::NEVER
    }
}

impl Control for End {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        // Both are called, without short circuit: each also notes that this end sleeps.
        let frames = wanted.frames && self.inward.enable_notifications().is_some_and(|arrival| arrival <= self.seen);
        let room =
            wanted.room && self.outward.enable_notifications(self.short) && self.link.room(self.seen) == Room::Now;
        frames || room
    }

    fn disable_notifications(&mut self) {
        self.inward.disable_notifications();
        self.outward.disable_notifications();
    }

    /// The next arrival. A frame that arrived already is not included: [`Source::waiting`] reports it.
    fn next_event(&self) -> Nanos {
        self.inward.next().filter(|arrival| *arrival > self.seen).unwrap_or(Nanos::NEVER)
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        poller.add(self.wakeups[0].as_fd(), key, 0, Interest::Read)
    }

    fn event(&mut self, _number: u32, _poller: &Poller, _now: Nanos) {
        // Empty if it was read before: nothing to do then.
        let _ = self.wakeups[0].read();
    }

    fn status(&self) -> Status {
        if self.inward.alone() { Status::Waiting } else { Status::Up }
    }

    /// Of this direction. Queued frames pass at the new rate.
    fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        self.link.set_rate(rate, now);
    }
}

#[cfg(test)]
mod tests;
