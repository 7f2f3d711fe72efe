//! The way of a burst from its sender to its receivers: verdicts, runs of equal verdicts, and what a receiver says.

use crate::slot::Slot;
use fairlane_core::PortId;
use fairlane_core::stats::{DropReason, Drops};
use fairlane_core::switch::{Switch, Verdict};
use fairlane_core::time::Nanos;
use fairlane_port::{BURST, Batch, Refusal, Status};
use std::ops::Range;

/// The uplink's number on every bridge. Guests count from 1.
pub const UPLINK: PortId = PortId(0);

/// How long a guest may take nothing before frames for it are dropped instead of waiting.
pub const PATIENCE: Nanos = Nanos::from_millis(20);

/// How often the uplink gets new patience.
const PATIENCE_PERIOD: Nanos = Nanos::from_millis(320);

/// What is left of the uplink's patience with guests.
///
/// Frames from the uplink are for many guests, and one that waits holds up all behind it. So while a guest may make another
/// guest wait as long as it makes progress, all guests together hold the uplink up for at most [`PATIENCE`] of each 320 ms.
#[derive(Default)]
pub(crate) struct Patience {
    left: Nanos,
    renewed: Option<Nanos>,
    /// Since when the uplink waits.
    since: Option<Nanos>,
}

impl Patience {
    /// Starts to wait; false if there is no patience left.
    fn begin(&mut self, now: Nanos) -> bool {
        if self.renewed.is_none_or(|renewed| now.since(renewed) >= PATIENCE_PERIOD) {
            self.left = PATIENCE;
            self.renewed = Some(now);
        }
        if self.left > Nanos(0) {
            self.since = Some(now);
        }
        self.since.is_some()
    }

    /// When the present wait must end.
    pub fn deadline(&self) -> Nanos {
        self.since.map_or(Nanos::NEVER, |since| since + self.left)
    }

    /// Ends a wait.
    pub fn end(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            self.left = self.left - now.since(since);
        }
    }
}

/// What became of a batch.
pub(crate) struct Passed {
    /// Frames dealt with, from the first on: given to a receiver or dropped.
    pub frames: usize,
    /// The receiver that the next frame waits for; none if all were dealt with.
    pub blocked: Option<PortId>,
    /// Bytes that went to the uplink.
    pub uplink_bytes: u64,
}

/// The switch and the ports behind it. The sender of a burst is out of the table while it is served.
pub(crate) struct Fabric {
    pub switch: Switch,
    pub slots: Vec<Option<Box<Slot>>>,
    /// Ports to flush at the end of the round.
    pub touched: Vec<PortId>,
    pub patience: Patience,
}

impl Fabric {
    /// Gives the frames of a batch to whom they are for, in order, until one must wait. Drops are counted in `drops`.
    pub fn pass(&mut self, from: PortId, batch: &Batch<'_>, drops: &mut Drops, now: Nanos) -> Passed {
        let mut verdicts = [Verdict::Flood; BURST];
        for (verdict, frame) in verdicts.iter_mut().zip(batch.frames()) {
            *verdict = self.switch.forward(from, frame.head(), now);
        }
        let verdicts = &verdicts[..batch.len()];
        let mut passed = Passed { frames: 0, blocked: None, uplink_bytes: 0 };
        while let Some(&verdict) = verdicts.get(passed.frames) {
            let equal = verdicts[passed.frames..].iter().take_while(|next| **next == verdict).count();
            let run = passed.frames..passed.frames + equal;
            let to = match verdict {
                Verdict::Drop(reason) => {
                    drops.add(reason, equal as u64);
                    passed.frames = run.end;
                    continue;
                }
                Verdict::To(to) => {
                    passed.frames = self.deliver(from, to, batch, run.clone(), drops, &mut passed.uplink_bytes, now);
                    to
                }
                Verdict::Flood => {
                    passed.frames = self.flood(from, batch, run.clone(), drops, &mut passed.uplink_bytes, now);
                    UPLINK
                }
            };
            if passed.frames < run.end {
                passed.blocked = Some(to);
                break;
            }
        }
        passed
    }

    /// Gives a run to one port. Returns the first frame that was neither taken nor dropped: it waits for room.
    #[expect(clippy::too_many_arguments, reason = "the parts of one burst's way, borrowed from different owners")]
    fn deliver(
        &mut self,
        from: PortId,
        to: PortId,
        batch: &Batch<'_>,
        run: Range<usize>,
        drops: &mut Drops,
        uplink_bytes: &mut u64,
        now: Nanos,
    ) -> usize {
        let Some(slot) = self.slots.get_mut(to.index()).and_then(Option::as_mut) else {
            drops.add(DropReason::ReceiverDown, run.len() as u64);
            return run.end;
        };
        let before = slot.counters.received_bytes;
        let next = slot.take(batch, run.clone(), drops, &mut self.touched, to, now);
        if to == UPLINK {
            *uplink_bytes += slot.counters.received_bytes - before;
        }
        if next == run.end {
            return next;
        }
        let refusing = *slot.refusing.get_or_insert(now);
        let reason = if slot.port.status() != Status::Up {
            DropReason::ReceiverDown
        } else if to == UPLINK {
            return next;
        } else if now.since(refusing) >= PATIENCE || (from == UPLINK && !self.patience.begin(now)) {
            DropReason::ReceiverStalled
        } else {
            return next;
        };
        drops.add(reason, (run.end - next) as u64);
        run.end
    }

    /// Gives copies of a run to all that may hear its sender. Returns the first frame that waits for the uplink.
    ///
    /// The uplink comes first: where it has no room, a frame waits as a whole, before anyone has a copy. A guest that has no
    /// room misses its copy.
    fn flood(
        &mut self,
        from: PortId,
        batch: &Batch<'_>,
        mut run: Range<usize>,
        drops: &mut Drops,
        uplink_bytes: &mut u64,
        now: Nanos,
    ) -> usize {
        let mut copies = 0;
        if self.switch.flood(from).any(|to| to == UPLINK) {
            run.end = self.deliver(from, UPLINK, batch, run.clone(), drops, uplink_bytes, now);
            copies += 1;
        }
        let Fabric { switch, slots, touched, .. } = self;
        for to in switch.flood(from).filter(|to| *to != UPLINK) {
            let Some(slot) = slots.get_mut(to.index()).and_then(Option::as_mut) else { continue };
            copies += 1;
            let next = slot.take(batch, run.clone(), drops, touched, to, now);
            if next < run.end {
                let up = slot.port.status() == Status::Up;
                let reason = if up { DropReason::ReceiverStalled } else { DropReason::ReceiverDown };
                drops.add(reason, (run.end - next) as u64);
            }
        }
        if copies == 0 {
            drops.add(DropReason::NoDestination, run.len() as u64);
        }
        run.end
    }
}

impl Slot {
    /// Puts a run into the port, past frames that it will never take. Returns the first frame that found it full.
    fn take(
        &mut self,
        batch: &Batch<'_>,
        run: Range<usize>,
        drops: &mut Drops,
        touched: &mut Vec<PortId>,
        id: PortId,
        now: Nanos,
    ) -> usize {
        let mut next = run.start;
        while next < run.end {
            let put = self.port.put(batch, next..run.end, now);
            if put.accepted > 0 {
                self.counters.received_frames += put.accepted as u64;
                self.counters.received_bytes += bytes(batch, next..next + put.accepted);
                self.refusing = None;
                self.touch(id, touched);
                next += put.accepted;
            }
            match put.refusal {
                Some(Refusal::Never(reason)) => {
                    drops.add(reason, 1);
                    next += 1;
                }
                Some(Refusal::Full) | None => break,
            }
        }
        next
    }

    /// Has the port flushed at the end of the round.
    pub fn touch(&mut self, id: PortId, touched: &mut Vec<PortId>) {
        if !self.touched {
            self.touched = true;
            touched.push(id);
        }
    }
}

/// Bytes of some frames of a batch.
#[inline]
pub(crate) fn bytes(batch: &Batch<'_>, frames: Range<usize>) -> u64 {
    frames.map(|index| batch.frame(index).bytes()).sum()
}
