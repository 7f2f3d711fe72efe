//! Forwards a burst from its sender to its receivers: verdicts, runs of frames with equal verdicts, and delivery of a run.

use crate::bill::work;
use crate::clock::Clock;
use crate::entry::{PortEntry, RxState};
use crate::receivers::Receivers;
use fairlane_core::PortId;
use fairlane_core::sched::Budget;
use fairlane_core::stats::{DropReason, Drops};
use fairlane_core::switch::{Switch, Verdict};
use fairlane_core::time::Nanos;
use fairlane_port::trace::{self, Whose};
use fairlane_port::{BURST, Batch, Burst, Refusal, Status};
use std::ops::Range;

/// The uplink's number on every bridge. Guests count from 1.
pub const UPLINK: PortId = PortId(0);

/// A batch to forward.
pub(crate) struct Sending<'a> {
    pub from: PortId,
    /// Its sender's name and weight.
    pub name: &'a str,
    pub weight: u32,
    pub batch: Batch<'a>,
    /// Whether the sender is pinned to IP addresses, so that frames with equal Ethernet headers may differ.
    pub judged_by_ip: bool,
    pub now: Nanos,
    /// Whether the sender may wait for a guest. If not, frames that the guest's queue does not admit are dropped.
    pub may_wait: bool,
    /// The guest whose turn to send this sender has, ahead of others that wait for it.
    pub turn_at: Option<PortId>,
    /// A bit for each frame that early ack has dropped.
    pub suppressed: u32,
    /// Number of frames that were delivered, queued or dropped, from the first on.
    pub done: usize,
    /// Drops among them.
    pub drops: &'a mut Drops,
    /// Bytes that went to the uplink.
    pub uplink_bytes: u64,
}

/// The switch and the ports. The sender of a burst is not in the table while it is served.
pub(crate) struct Fabric {
    pub switch: Switch,
    pub entries: Vec<Option<Box<PortEntry>>>,
    /// Ports to flush at the end of the round.
    pub touched: Vec<PortId>,
    pub receivers: Receivers,
}

impl Fabric {
    /// A port, if it exists.
    #[inline]
    pub(crate) fn entry(&mut self, port: PortId) -> Option<&mut PortEntry> {
        self.entries.get_mut(port.index())?.as_deref_mut()
    }

    /// Whether all frames in a sender's ring are for one guest, as far as can be seen: then no other frame waits for them.
    ///
    /// A ring with a whole burst of frames is assumed to have others: more frames may wait in the guest for the ring.
    #[cold]
    pub(crate) fn has_only_frames_for(
        &mut self,
        (from, to): (PortId, PortId),
        sender: &mut PortEntry,
        burst: &mut Burst,
        now: Nanos,
    ) -> bool {
        if sender.sends_for_guest() {
            return false;
        }
        let batch = sender.port.offer(burst, Budget { bytes: u64::MAX, frames: BURST as u32 }, now);
        let is_for = |frame| self.switch.forward(from, batch.head(frame), now) == Verdict::To(to);
        batch.len() < BURST && (0..batch.len()).all(is_for) && !sender.port.more(false)
    }

    /// Whether a sender that waits for a guest may have frames for others, as new frames arrived in its ring. The time to look is
    /// charged to the sender, and `now` advanced by it.
    pub(crate) fn may_have_others_than_for(
        &mut self,
        from: PortId,
        to: PortId,
        burst: &mut Burst,
        now: &mut Nanos,
        clock: &impl Clock,
    ) -> bool {
        let Some(mut sender) = self.entries[from.index()].take() else { return true };
        let came = sender.sends_for_guest() || sender.port.more(false);
        let has_more = came && !self.has_only_frames_for((from, to), &mut sender, burst, *now);
        if came {
            let end = clock.now();
            sender.uncharged += end.since(*now).0;
            *now = end;
        }
        self.entries[from.index()] = Some(sender);
        has_more
    }

    /// Bytes that a guest received; 0 if it is gone.
    pub(crate) fn received_bytes(&self, guest: PortId) -> u64 {
        let entry = self.entries.get(guest.index()).and_then(Option::as_ref);
        entry.map_or(0, |entry| entry.counters.received_bytes)
    }

    /// Delivers the frames of a batch in order. Returns the port that the first undelivered frame waits for.
    pub(crate) fn forward(&mut self, sending: &mut Sending<'_>) -> Option<PortId> {
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

    /// The name of whoever receives frames with a verdict, for a tracepoint.
    #[cold]
    fn receiver(&self, verdict: Verdict) -> &str {
        match verdict {
            Verdict::To(to) => self.entries.get(to.index()).and_then(Option::as_ref).map_or("", |entry| &entry.name),
            Verdict::Flood => "*",
            Verdict::Drop(_) => "",
        }
    }

    /// The verdict on a frame; that of the last frame if the addresses are the same.
    // Not inlined, it takes 40 instructions more per frame.
    #[inline(always)]
    fn judge<'a>(&mut self, sending: &Sending<'a>, frame: usize, last: &mut Option<Judged<'a>>) -> Verdict {
        let head = sending.batch.head(frame);
        let verdict = match last {
            Some(Judged { addresses, verdict }) if head.starts_with(*addresses) => *verdict,
            _ => self.look_up(sending, head, last),
        };
        let suppressed = sending.suppressed & 1 << frame != 0;
        if suppressed { Verdict::Drop(DropReason::Suppressed) } else { verdict }
    }

    /// Asks the switch, once for consecutive frames with the same addresses, if it looks at nothing else.
    #[inline(never)]
    fn look_up<'a>(&mut self, sending: &Sending<'a>, head: &'a [u8], last: &mut Option<Judged<'a>>) -> Verdict {
        let verdict = self.switch.forward(sending.from, head, sending.now);
        // Not in the loop that judges frames: there it takes 5 instructions more per frame.
        trace::verdict(sending.name, head, || self.receiver(verdict));
        let addresses = if sending.judged_by_ip { None } else { addresses(head) };
        *last = addresses.map(|addresses| Judged { addresses, verdict });
        verdict
    }

    /// Delivers the frames before `end` to one port, until one must wait for room.
    fn deliver(&mut self, sending: &mut Sending<'_>, to: PortId, end: usize) {
        if to == UPLINK { self.deliver_to_uplink(sending, end) } else { self.deliver_to_guest(sending, to, end) }
    }

    fn deliver_to_uplink(&mut self, sending: &mut Sending<'_>, end: usize) {
        let Some(entry) = self.entries[UPLINK.index()].as_deref_mut() else {
            return sending.drop(sending.done..end, DropReason::ReceiverDown);
        };
        // Room that became free meanwhile belongs to the sender that was refused: a later one would overtake the scheduler's order.
        if !entry.refused {
            let before = entry.counters.received_bytes;
            sending.done = entry.take(sending, UPLINK, sending.done..end, &mut self.touched);
            sending.uplink_bytes += entry.counters.received_bytes - before;
            entry.refused = sending.done < end;
        }
        if sending.done < end && entry.port.status() != Status::Up {
            sending.drop(sending.done..end, DropReason::ReceiverDown);
        }
    }

    fn deliver_to_guest(&mut self, sending: &mut Sending<'_>, to: PortId, end: usize) {
        let Fabric { entries, touched, receivers, .. } = self;
        match entries.get_mut(to.index()).and_then(Option::as_deref_mut) {
            Some(guest) => guest.receive(sending, to, end, touched, receivers),
            None => sending.drop(sending.done..end, DropReason::ReceiverDown),
        }
    }

    /// Delivers copies of the frames before `end` to all ports that may receive from their sender, until one must wait for the
    /// uplink.
    ///
    /// The uplink comes first: if it has no room, the frame waits before any port has a copy. No copy waits in its sender's ring
    /// for a guest.
    fn flood(&mut self, sending: &mut Sending<'_>, end: usize) {
        let start = sending.done;
        if self.switch.flood(sending.from).any(|to| to == UPLINK) {
            self.deliver(sending, UPLINK, end);
        } else {
            sending.done = end;
        }
        let done = sending.done;
        let may_wait = std::mem::replace(&mut sending.may_wait, false);
        let Fabric { switch, entries, touched, receivers } = self;
        for to in switch.flood(sending.from).filter(|to| *to != UPLINK) {
            if let Some(guest) = entries.get_mut(to.index()).and_then(Option::as_deref_mut) {
                sending.done = start;
                guest.receive(sending, to, done, touched, receivers);
            }
        }
        (sending.done, sending.may_wait) = (done, may_wait);
    }
}

impl Sending<'_> {
    /// Drops frames, up to the end of the range.
    fn drop(&mut self, frames: Range<usize>, reason: DropReason) {
        self.lose(frames.len() as u64, reason);
        self.done = frames.end;
    }

    /// Counts drops.
    fn lose(&mut self, frames: u64, reason: DropReason) {
        self.drops.add(reason, frames);
        trace::drop(self.name, frames, reason, Whose::Sent);
    }
}

impl PortEntry {
    /// Puts a run into the port and drops frames that it can never take. Returns the first frame that found it full.
    fn take(&mut self, sending: &mut Sending<'_>, id: PortId, run: Range<usize>, touched: &mut Vec<PortId>) -> usize {
        let mut next = run.start;
        while next < run.end {
            let put = self.port.put(&sending.batch, next..run.end, sending.now);
            if put.accepted > 0 {
                let (frames, bytes) = (put.accepted as u64, sending.batch.bytes_of(next..next + put.accepted));
                self.counters.received_frames += frames;
                self.counters.received_bytes += bytes;
                trace::put(&self.name, frames, bytes, Nanos(0));
                self.last_received = sending.now;
                self.touch(id, touched);
                if let Some(early) = &mut self.early {
                    early.delivered(&sending.batch, next..next + put.accepted, sending.now);
                }
                next += put.accepted;
            }
            match put.refusal {
                Some(Refusal::Never(reason)) => {
                    sending.lose(1, reason);
                    next += 1;
                }
                Some(Refusal::Full) | None => break,
            }
        }
        next
    }

    /// Delivers the frames before `end` to the guest, or drops them if they are from the uplink and the guest is above its share. The
    /// work for frames of guests is charged to their senders.
    fn receive(
        &mut self,
        sending: &mut Sending<'_>,
        id: PortId,
        end: usize,
        touched: &mut Vec<PortId>,
        receivers: &mut Receivers,
    ) {
        let run = sending.done..end;
        let is_inward = sending.from == UPLINK;
        let units = if is_inward { work(run.len() as u64, sending.batch.bytes_of(run)) } else { 0 };
        if is_inward && !receivers.inflow.admits(id) {
            return self.refuse(sending, id, end, units, receivers);
        }
        self.accept(sending, id, end, touched, receivers);
        if is_inward {
            receivers.uplink_work.units += units;
            let nanos = receivers.uplink_work.time_of(units);
            receivers.inflow.received(id, self.rx_owner, nanos);
        }
    }

    /// Drops the frames before `end`, whose work would have been so many units.
    #[cold]
    fn refuse(&mut self, sending: &mut Sending<'_>, id: PortId, end: usize, units: u64, receivers: &mut Receivers) {
        self.lose((end - sending.done) as u64, DropReason::RxOverShare);
        receivers.uplink_work.has_drops = true;
        let nanos = receivers.uplink_work.time_of(units);
        receivers.inflow.refused(id, self.rx_owner, nanos);
        sending.done = end;
    }

    /// Delivers the frames before `end` to the guest: into its ring, and those without room there into its queue. If the sender may
    /// wait instead, some frames are left.
    // Not inlined, it takes 20 instructions more a run.
    #[inline(always)]
    fn accept(
        &mut self,
        sending: &mut Sending<'_>,
        id: PortId,
        end: usize,
        touched: &mut Vec<PortId>,
        receivers: &mut Receivers,
    ) {
        // Room that became free meanwhile belongs to the sender whose turn it is: a later one would overtake those that wait.
        let promised = sending.may_wait && !self.waiters.is_empty() && sending.turn_at != Some(id);
        let paced = self.is_paced || (sending.from == UPLINK && !receivers.pace.passes(sending.now));
        let tried = self.rx_state == RxState::Idle && !paced && !promised;
        if tried {
            let (frames, bytes) = (self.counters.received_frames, self.counters.received_bytes);
            sending.done = self.take(sending, id, sending.done..end, touched);
            if sending.from == UPLINK {
                receivers.pace.take(self.counters.received_bytes - bytes, sending.now);
            }
            // These did not wait.
            self.rx_waiting.buckets[0] += self.counters.received_frames - frames;
        }
        if sending.done == end {
            return;
        }
        if self.port.status() != Status::Up {
            return sending.drop(sending.done..end, DropReason::ReceiverDown);
        }
        if tried && self.port.withheld().received {
            receivers.end_round(true);
        }
        let is_full = self.rx_state == RxState::Idle && !self.is_paced;
        let waits = sending.may_wait && (is_full || self.queue.is_of(sending.from));
        if !waits {
            self.enqueue(sending, end, receivers);
            if tried && !self.queue.is_empty() {
                receivers.wait_for_room(id, self);
            } else if !self.queue.is_empty() {
                receivers.queued(id, self, sending.now);
            }
        }
    }

    /// Queues the frames before `end`, and drops those that the queue does not admit.
    fn enqueue(&mut self, sending: &mut Sending<'_>, end: usize, receivers: &mut Receivers) {
        let (bound, own) = (self.receive.queue, self.receive.share.weight);
        // Senders outside have the weight of their receiver.
        let from = (sending.from, if sending.from == UPLINK { own } else { sending.weight });
        for frame in sending.done..end {
            let bytes = sending.batch.bytes(frame);
            if !receivers.pool.admits(&self.queue, bytes, bound, own) || !self.queue.admits(from, bytes, bound) {
                self.lose(1, DropReason::RxQueueFull);
            } else if !self.queue.push(&mut receivers.pool, from, &sending.batch, frame, sending.now) {
                sending.lose(1, DropReason::Malformed);
            }
        }
        sending.done = end;
    }

    /// Counts drops of frames for the guest.
    pub(crate) fn lose(&mut self, frames: u64, reason: DropReason) {
        self.counters.receive_drops.add(reason, frames);
        trace::drop(&self.name, frames, reason, Whose::Received);
    }

    /// Adds the port to those flushed at the end of the round.
    pub(crate) fn touch(&mut self, id: PortId, touched: &mut Vec<PortId>) {
        if !self.touched {
            self.touched = true;
            touched.push(id);
        }
    }
}

/// The last verdict of the switch.
struct Judged<'a> {
    addresses: &'a [u8; 14],
    verdict: Verdict,
}

/// The Ethernet header of an untagged frame, which is all that the switch looks at unless IP addresses are pinned. Frames of a
/// burst with the same header have the same verdict.
#[inline]
fn addresses(head: &[u8]) -> Option<&[u8; 14]> {
    let header = head.first_chunk::<14>()?;
    let tagged = matches!(header, [.., 0x81, 0x00] | [.., 0x88, 0xa8]);
    (!tagged).then_some(header)
}
