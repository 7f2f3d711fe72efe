//! What is known of a flow: the state of its machine, its numbers, and where its retained copies are.

use super::flags::Flags;
use super::machine::{Event, State};
use super::pool::Chain;
use super::segment::{Key, Link, Segment};
use super::sequence::Seq;
use super::stats::Fallback;
use std::sync::atomic::{Ordering, compiler_fence};

/// A flow. Like a [`super::Block`] it lies in the caller's memory, and is numbers and bytes alone. What each frame needs
/// is in its first 128 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Flow {
    pub(super) key: Key,
    /// A number of [`State`].
    pub(super) state: u8,
    /// How far the guest's windows are shifted.
    pub(super) scale: u8,
    pub(super) flags: Flags,
    /// The guest's greatest ACK.
    pub(super) guest_ack: Seq,
    /// The greatest ACK that was sent outside, by the guest or for it.
    pub(super) acked: Seq,
    /// The right edge of the guest's window, as it said last.
    pub(super) edge: Seq,
    /// The right edge that the sender was told last.
    pub(super) told: Seq,

    /// First and next number of what is retained; equal if nothing is.
    pub(super) start: Seq,
    pub(super) next: Seq,
    /// The number behind all that was put into the guest's ring.
    pub(super) seen: Seq,
    /// The number behind all that the guest sent.
    pub(super) guest_next: Seq,
    /// The guest's latest timestamp.
    pub(super) guest_stamp: u32,
    /// The sender's latest timestamp: as the guest echoes it, or, while something is retained, as a verified segment had it.
    pub(super) sender_stamp: u32,
    /// What a verified segment had beside it, its echo, ACK and window: copies have these numbers, so they mean something only while there
    /// are any. Of a flow whose ends are reset, the ACK is what the sender expects.
    pub(super) sender_echo: u32,
    pub(super) sender_ack: Seq,
    pub(super) sender_window: u16,
    /// Payload bytes of a segment the guest takes.
    pub(super) mss: u16,
    /// Rounds of retransmission since the guest's ACK moved on.
    pub(super) tries: u8,
    /// How far the sender's windows are shifted.
    pub(super) sender_scale: u8,
    /// Equal ACKs of the guest in a row.
    pub(super) duplicates: u8,
    /// 1 more than the number of the [`Fallback`]; 0 if there was none.
    pub(super) fallback: u8,
    pub(super) chain: Chain,
    /// When it was last heard of, in seconds.
    pub(super) heard: u32,
    /// [`super::guest::Guest::epoch`] when it was heard of last.
    pub(super) epoch: u32,
    /// Bytes of the largest window that the sender gave the guest.
    pub(super) largest_window: u32,
    /// When to retransmit, in nanoseconds.
    pub(super) deadline: u64,

    /// The guest is repaired up to here, each ACK of it calling for more.
    pub(super) recover: Seq,
    /// What is to be retransmitted next.
    pub(super) resend: Seq,
    pub(super) toward: Link,
    pub(super) from: Link,
    pub(super) early_acks: u32,
    pub(super) suppressed: u32,
    pub(super) retransmissions: u32,
    /// While it learns, the number behind the first segment that was noted.
    pub(super) mark: Seq,
}

const _: () = assert!(std::mem::offset_of!(Flow, recover) == 128, "what each frame needs is before it");
const _: () = assert!(std::mem::offset_of!(Flow, suppressed) <= 192, "what acknowledging needs beside is before it");

impl Flow {
    /// A flow whose first SYN is being seen.
    pub(super) fn new(key: Key) -> Flow {
        let mut flow = Flow { key, ..Flow::default() };
        flow.step(Event::Syn);
        flow
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        State::of(self.state)
    }

    /// Has its machine take the step that an event asks for.
    #[inline]
    pub(super) fn step(&mut self, event: Event) {
        self.state = self.state().after(event) as u8;
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub(super) fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Whether its handshake is not complete, the sender's FIN waits for the guest's ACK, or its ends are being reset.
    #[inline]
    pub(super) fn is_unsettled(&self) -> bool {
        match self.state() {
            State::Opening => true,
            State::Free | State::EndToEnd => false,
            _ => self.has(Flags::FIN) || self.has(Flags::RESET),
        }
    }

    /// Notes that the guest is where a segment of it says, while nothing is retained.
    #[inline]
    pub(super) fn stand(&mut self, segment: &Segment) {
        let ack = segment.ack;
        self.guest_next = segment.end();
        (self.guest_stamp, self.sender_stamp) = segment.timestamps().unwrap_or_default();
        self.begin_at(ack);
        self.edge = ack.plus(u32::from(segment.window) << self.scale);
        self.told = self.edge;
        (self.tries, self.duplicates) = (0, 0);
    }

    /// Notes that the guest has everything before `ack`, and that nothing is retained.
    #[inline]
    pub(super) fn begin_at(&mut self, ack: Seq) {
        self.guest_ack = ack;
        // A process that ends here leaves no flow that owes what was never retained.
        compiler_fence(Ordering::Release);
        (self.acked, self.start, self.next) = (ack, ack, ack);
    }

    /// Whether the guest takes data under this ACK: one of what it sent, and not so old that it is challenged. The bound is RFC
    /// 5961's, 5.2, but behind what was sent instead of what is unacknowledged, and so not wider.
    #[inline]
    pub(super) fn takes_ack(&self, ack: Seq) -> bool {
        self.guest_next.since(ack) <= self.largest_window
    }

    /// Whether a segment is in the guest's window, or at its beginning or end (RFC 9293, 3.10.7.4).
    #[inline]
    pub(super) fn is_in_window(&self, segment: &Segment) -> bool {
        !segment.seq.after(self.edge) && !segment.end().before(self.guest_ack)
    }

    /// Whether the sender wants an answer to a segment: it repeats what was acknowledged, or probes a window that it was told is closed
    /// (RFC 9293, 3.8.4 and 3.8.6.1).
    #[inline]
    pub(super) fn is_probe(&self, segment: &Segment) -> bool {
        segment.seq.before(self.acked) || (segment.payload > 0 && !self.told.after(self.acked))
    }

    /// Whether both ends agreed on timestamps (RFC 7323, 3.2).
    #[inline]
    pub(super) fn stamps(&self) -> bool {
        self.has(Flags::STAMPS)
    }

    /// Whether both ends permitted SACK (RFC 2018, 2).
    #[inline]
    pub(super) fn sacks(&self) -> bool {
        self.has(Flags::SACKS)
    }

    /// Whether the sender was told of bytes that the guest has not acknowledged: those are ours to deliver.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.acked.after(self.guest_ack)
    }

    /// Whether all that was acknowledged early is retained. It is, but where memory was damaged.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        !self.start.after(self.guest_ack) && !self.acked.after(self.next)
    }

    /// Bytes retained.
    #[inline]
    pub(super) fn retained(&self) -> u32 {
        self.next.since(self.start)
    }

    /// A window field that reaches from `ack` to `edge` and no further; 0 if the edge lies behind.
    #[inline]
    pub(super) fn window(&self, ack: Seq, edge: Seq) -> u16 {
        (ack.room(edge) >> self.scale).min(u16::MAX.into()) as u16
    }

    /// What is to be seen of it.
    pub(super) fn view(&self) -> FlowView {
        let key = self.key;
        // Who was reset is owed nothing any more.
        let owed = if self.has(Flags::RESET) { 0 } else { self.guest_ack.room(self.acked) };
        FlowView {
            vlan: key.vlan(),
            outside: key.outside().into(),
            inside: key.inside().into(),
            state: self.state(),
            retained: self.retained(),
            owed,
            early_acks: self.early_acks,
            suppressed: self.suppressed,
            retransmissions: self.retransmissions,
            fallback: Fallback::from_number(self.fallback),
        }
    }
}

/// What is to be seen of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowView {
    /// The outer VLAN; 0 if there is none.
    pub vlan: u16,
    /// Address and port outside.
    pub outside: std::net::SocketAddr,
    /// Address and port of the guest.
    pub inside: std::net::SocketAddr,
    /// The state of its machine.
    pub state: State,
    /// Bytes of which a copy is kept.
    pub retained: u32,
    /// Bytes of those that the sender was told of and the guest has not acknowledged.
    pub owed: u32,
    /// Early ACKs sent.
    pub early_acks: u32,
    /// ACKs of the guest that said nothing new and were dropped.
    pub suppressed: u32,
    /// Segments sent to the guest again.
    pub retransmissions: u32,
    /// Why it is draining or end-to-end.
    pub fallback: Option<Fallback>,
}
