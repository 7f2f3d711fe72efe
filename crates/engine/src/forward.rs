//! The way of a burst from its sender to its receivers: verdicts, runs of equal verdicts, and what a receiver says.

use crate::entry::PortEntry;
use crate::waiters::Ticket;
use fairlane_core::PortId;
use fairlane_core::stats::{DropReason, Drops};
use fairlane_core::switch::{Switch, Verdict};
use fairlane_core::time::Nanos;
use fairlane_port::{Batch, Refusal, Status};
use std::ops::Range;

/// The uplink's number on every bridge. Guests count from 1.
pub const UPLINK: PortId = PortId(0);

/// How long a guest may take nothing before frames for it are dropped instead of waiting.
///
/// A guest that shares its processor takes nothing while others have it: some slices of 30 ms under Xen's credit scheduler.
/// A wait of 200 ms bears six of them, and more is of no use to TCP, which by then has sent again (Linux's TCP_RTO_MIN).
/// Who waits is a guest that sends to it; a receiver that never comes back costs it one such wait.
pub const PATIENCE: Nanos = Nanos::from_millis(200);

/// How long the uplink waits for guests in each [`PATIENCE_PERIOD`]: less, as it is others' frames that wait behind.
const UPLINK_PATIENCE: Nanos = Nanos::from_millis(100);

/// How often the uplink gets new patience.
const PATIENCE_PERIOD: Nanos = Nanos::from_millis(400);

/// What is left of the uplink's patience with guests.
///
/// Frames from the uplink are for many guests, and one that waits holds up all behind it. So while a guest may make another
/// guest wait as long as it makes progress, all guests together hold the uplink up for at most 100 ms of each 400 ms.
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
            self.left = UPLINK_PATIENCE;
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

/// A batch on its way.
pub(crate) struct Sending<'a> {
    pub from: PortId,
    pub batch: Batch<'a>,
    /// Whether the sender is pinned to IP addresses, so that frames with equal Ethernet headers may differ.
    pub judged_by_ip: bool,
    pub now: Nanos,
    /// That of the guest that called the sender, ahead of others that wait for it.
    pub ticket: Option<&'a mut Ticket>,
    /// A bit for each frame that early ack has dropped.
    pub suppressed: u32,
    /// Frames dealt with, from the first on: given to a receiver or dropped.
    pub done: usize,
    /// What was dropped of them.
    pub drops: &'a mut Drops,
    /// Bytes that went to the uplink.
    pub uplink_bytes: u64,
}

/// The switch and the ports behind it. The sender of a burst is out of the table while it is served.
pub(crate) struct Fabric {
    pub switch: Switch,
    pub entries: Vec<Option<Box<PortEntry>>>,
    /// Ports to flush at the end of the round.
    pub touched: Vec<PortId>,
    pub patience: Patience,
}

impl Fabric {
    /// A port that is there.
    #[inline]
    pub fn entry(&mut self, port: PortId) -> Option<&mut PortEntry> {
        self.entries.get_mut(port.index())?.as_deref_mut()
    }

    /// Bytes that a port was given; none of one that is gone.
    pub fn received_bytes(&self, port: PortId) -> u64 {
        let entry = self.entries.get(port.index()).and_then(Option::as_ref);
        entry.map_or(0, |entry| entry.counters.received_bytes)
    }

    /// Gives the frames of a batch to whom they are for, in order. Returns the port that the first one left waits for.
    pub fn pass(&mut self, sending: &mut Sending<'_>) -> Option<PortId> {
        let frames = sending.batch.len();
        let mut last = None;
        let mut next = self.judge(sending, 0, &mut last);
        while sending.done < frames {
            let verdict = next;
            let mut end = sending.done + 1;
            while end < frames {
                next = self.judge(sending, end, &mut last);
                if next != verdict {
                    break;
                }
                end += 1;
            }
            match verdict {
                Verdict::Drop(reason) => sending.drop(sending.done..end, reason),
                Verdict::To(to) => self.deliver(sending, to, end),
                Verdict::Flood => self.flood(sending, end),
            }
            if sending.done < end {
                return Some(if let Verdict::To(to) = verdict { to } else { UPLINK });
            }
        }
        None
    }

    /// What becomes of a frame: as `last` says, if that is of a frame of the same addresses.
    // Called, it takes 40 instructions a frame more.
    #[inline(always)]
    fn judge<'a>(&mut self, sending: &Sending<'a>, frame: usize, last: &mut Option<Judged<'a>>) -> Verdict {
        let head = sending.batch.head(frame);
        let verdict = match last {
            Some(Judged { addresses, verdict }) if head.starts_with(*addresses) => *verdict,
            _ => self.ask(sending, head, last),
        };
        let suppressed = sending.suppressed & 1 << frame != 0;
        if suppressed { Verdict::Drop(DropReason::Suppressed) } else { verdict }
    }

    /// Asks the switch. Once for all frames in a row whose addresses are all that it looks at.
    #[inline(never)]
    fn ask<'a>(&mut self, sending: &Sending<'a>, head: &'a [u8], last: &mut Option<Judged<'a>>) -> Verdict {
        let verdict = self.switch.forward(sending.from, head, sending.now);
        let addresses = if sending.judged_by_ip { None } else { addresses(head) };
        *last = addresses.map(|addresses| Judged { addresses, verdict });
        verdict
    }

    /// Gives the frames before `end` to one port, until one must wait for room.
    fn deliver(&mut self, sending: &mut Sending<'_>, to: PortId, end: usize) {
        let Some(entry) = self.entries.get_mut(to.index()).and_then(Option::as_mut) else {
            return sending.drop(sending.done..end, DropReason::ReceiverDown);
        };
        // Room that a port has by now is for whom it refused: whoever comes later would overtake the order in which it is
        // given away, the uplink's by the scheduler and a guest's by its waiters. What the uplink brings is in no such order.
        let promised = match to {
            UPLINK => entry.refusing.is_some(),
            guest => sending.from != UPLINK && !sending.is_called_by(guest) && !entry.waiters.is_empty(),
        };
        if promised && entry.port.status() == Status::Up {
            return;
        }
        let before = entry.counters.received_bytes;
        sending.done = entry.take(sending, to, sending.done..end, &mut self.touched);
        if to == UPLINK {
            sending.uplink_bytes += entry.counters.received_bytes - before;
        }
        if sending.done == end {
            return;
        }
        let now = sending.now;
        let waited = sending.ticket.as_ref().filter(|ticket| ticket.on == to).map_or(Nanos(0), |ticket| ticket.waited);
        // The uplink, served between the call and this, may have found a little room and ended the wait for itself.
        let refusing = entry.refusing.unwrap_or(now).min(now - waited);
        entry.refusing = Some(refusing);
        if entry.port.status() != Status::Up {
            sending.drop(sending.done..end, DropReason::ReceiverDown);
        } else if to != UPLINK {
            let stalled = now.since(refusing) >= PATIENCE;
            if stalled || (sending.from == UPLINK && !self.patience.begin(now)) {
                sending.drop(sending.done..end, DropReason::ReceiverStalled);
            }
        }
    }

    /// Gives copies of the frames before `end` to all that may hear their sender, until one must wait for the uplink.
    ///
    /// The uplink comes first: where it has no room, a frame waits as a whole, before anyone has a copy. A guest that has no
    /// room misses its copy.
    fn flood(&mut self, sending: &mut Sending<'_>, end: usize) {
        let start = sending.done;
        if self.switch.flood(sending.from).any(|to| to == UPLINK) {
            self.deliver(sending, UPLINK, end);
        } else {
            sending.done = end;
        }
        let run = start..sending.done;
        for to in self.switch.flood(sending.from).filter(|to| *to != UPLINK) {
            let Some(entry) = self.entries.get_mut(to.index()).and_then(Option::as_mut) else { continue };
            let next = entry.take(sending, to, run.clone(), &mut self.touched);
            if next < run.end {
                let up = entry.port.status() == Status::Up;
                let reason = if up { DropReason::ReceiverStalled } else { DropReason::ReceiverDown };
                sending.drops.add(reason, (run.end - next) as u64);
            }
        }
    }
}

impl Sending<'_> {
    /// Whether it is a guest's turn for the sender.
    fn is_called_by(&self, guest: PortId) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.on == guest)
    }

    /// Drops frames; the next one to deal with is the one behind them.
    fn drop(&mut self, frames: Range<usize>, reason: DropReason) {
        self.drops.add(reason, frames.len() as u64);
        self.done = frames.end;
    }
}

impl PortEntry {
    /// Puts a run into the port, past frames that it will never take. Returns the first frame that found it full.
    fn take(&mut self, sending: &mut Sending<'_>, id: PortId, run: Range<usize>, touched: &mut Vec<PortId>) -> usize {
        let mut next = run.start;
        while next < run.end {
            let put = self.port.put(&sending.batch, next..run.end, sending.now);
            if put.accepted > 0 {
                self.counters.received_frames += put.accepted as u64;
                self.counters.received_bytes += sending.batch.bytes_of(next..next + put.accepted);
                self.progress(sending.ticket.as_deref_mut().filter(|ticket| ticket.on == id));
                self.touch(id, touched);
                if let Some(early) = &mut self.early {
                    early.delivered(&sending.batch, next..next + put.accepted, sending.now);
                }
                next += put.accepted;
            }
            match put.refusal {
                Some(Refusal::Never(reason)) => {
                    sending.drops.add(reason, 1);
                    next += 1;
                }
                Some(Refusal::Full) | None => break,
            }
        }
        next
    }

    /// Notes that it took something, of whom it called if there is a `ticket`. While others wait, what comes past them (from the uplink,
    /// and copies for all) ends no wait: a little room now and then, and a small frame that finds it, would hold a larger one for ever.
    #[inline]
    fn progress(&mut self, ticket: Option<&mut Ticket>) {
        let called = ticket.is_some();
        if let Some(ticket) = ticket {
            ticket.waited = Nanos(0);
        }
        if called || self.waiters.is_empty() {
            self.refusing = None;
        }
    }

    /// Has the port flushed at the end of the round.
    pub fn touch(&mut self, id: PortId, touched: &mut Vec<PortId>) {
        if !self.touched {
            self.touched = true;
            touched.push(id);
        }
    }
}

/// A frame that the switch was asked about.
struct Judged<'a> {
    addresses: &'a [u8; 14],
    verdict: Verdict,
}

/// The Ethernet header of an untagged frame: all that the switch looks at, but for pinned IP addresses. Frames of a burst that
/// have the same are judged once.
#[inline]
fn addresses(head: &[u8]) -> Option<&[u8; 14]> {
    let header = head.first_chunk::<14>()?;
    let tagged = matches!(header, [.., 0x81, 0x00] | [.., 0x88, 0xa8]);
    (!tagged).then_some(header)
}
