//! A flow: its state, its sequence numbers, and its retained copies.

use super::flags::Flags;
use super::machine::{Event, State};
use super::pool::Chain;
use super::segment::{Key, Link, Segment};
use super::sequence::Seq;
use super::stats::Fallback;
use std::sync::atomic::{Ordering, compiler_fence};

/// A flow. Like a [`super::Block`] it is in the caller's memory and holds only numbers and bytes. The first 128 bytes
/// have everything that each frame needs.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Flow {
    pub(super) key: Key,
    /// The number of a [`State`].
    pub(super) state: u8,
    /// The guest's window scale.
    pub(super) scale: u8,
    pub(super) flags: Flags,
    /// The guest's greatest ACK.
    pub(super) guest_ack: Seq,
    /// The greatest ACK sent to the sender, by the guest or for it.
    pub(super) acked: Seq,
    /// The right edge of the guest's window, as the guest advertised it last.
    pub(super) edge: Seq,
    /// The right edge that the sender was sent last.
    pub(super) advertised: Seq,

    /// The range of retained bytes, `start..next`; empty if equal.
    pub(super) start: Seq,
    pub(super) next: Seq,
    /// The end of the data put into the guest's ring.
    pub(super) delivered: Seq,
    /// The end of the data sent by the guest.
    pub(super) guest_next: Seq,
    /// The guest's latest timestamp.
    pub(super) guest_stamp: u32,
    /// The sender's latest timestamp: as the guest echoes it, or, while data is retained, from a verified segment.
    pub(super) sender_stamp: u32,
    /// Echo, ACK and window of the same segment, used in retransmissions and so valid only while data is retained.
    /// While both ends are reset, the ACK is the number that the sender expects.
    pub(super) sender_echo: u32,
    pub(super) sender_ack: Seq,
    pub(super) sender_window: u16,
    /// The most payload bytes in a segment to the guest.
    pub(super) mss: u16,
    /// Rounds of retransmission since the guest's ACK last advanced.
    pub(super) tries: u8,
    /// The sender's window scale.
    pub(super) sender_scale: u8,
    /// Duplicate ACKs of the guest in a row.
    pub(super) duplicates: u8,
    /// 1 more than the number of the [`Fallback`]; 0 if there was none.
    pub(super) fallback: u8,
    pub(super) chain: Chain,
    /// When a segment was last looked up, in seconds.
    pub(super) last_seen: u32,
    /// [`super::guest::Guest::epoch`] when the flow was last learned or opened.
    pub(super) epoch: u32,
    /// The largest window that the sender advertised, in bytes.
    pub(super) largest_window: u32,
    /// When to retransmit, in nanoseconds.
    pub(super) deadline: u64,

    /// The end of the current recovery: an ACK before it triggers the next retransmission.
    pub(super) recover: Seq,
    /// The next byte to retransmit.
    pub(super) resend: Seq,
    pub(super) inbound_link: Link,
    pub(super) outbound_link: Link,
    pub(super) early_acks: u32,
    pub(super) suppressed: u32,
    pub(super) retransmissions: u32,
    /// The end of the first segment noted while learning.
    pub(super) mark: Seq,
}

const _: () = assert!(std::mem::offset_of!(Flow, recover) == 128, "the fields that each frame needs come before");
const _: () = assert!(std::mem::offset_of!(Flow, suppressed) <= 192, "the fields that early ACKs need come before");

impl Flow {
    /// A flow at its first SYN.
    pub(super) fn new(key: Key) -> Flow {
        let mut flow = Flow { key, ..Flow::default() };
        flow.step(Event::Syn);
        flow
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        State::of(self.state)
    }

    /// Changes the state by an event.
    #[inline]
    pub(super) fn step(&mut self, event: Event) {
        self.state = self.state().after(event) as u8;
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub(super) fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Whether the handshake is incomplete, the sender's FIN waits for the guest's ACK, or both ends are being reset.
    #[inline]
    pub(super) fn is_unsettled(&self) -> bool {
        match self.state() {
            State::Opening => true,
            State::Free | State::EndToEnd => false,
            _ => self.has(Flags::FIN) || self.has(Flags::RESET),
        }
    }

    /// Sets the flow's numbers from a guest's segment, while nothing is retained.
    #[inline]
    pub(super) fn adopt(&mut self, segment: &Segment) {
        let ack = segment.ack;
        self.guest_next = segment.end();
        (self.guest_stamp, self.sender_stamp) = segment.timestamps().unwrap_or_default();
        self.begin_at(ack);
        self.edge = ack.plus(u32::from(segment.window) << self.scale);
        self.advertised = self.edge;
        (self.tries, self.duplicates) = (0, 0);
    }

    /// Notes that the guest has everything before `ack`, and that nothing is retained.
    #[inline]
    pub(super) fn begin_at(&mut self, ack: Seq) {
        self.guest_ack = ack;
        // If the process ends here, the flow does not owe data that was never retained.
        compiler_fence(Ordering::Release);
        (self.acked, self.start, self.next) = (ack, ack, ack);
    }

    /// Whether the guest accepts data with this ACK: it acknowledges what the guest sent, and is not so old that the
    /// guest challenges it. The bound is that of RFC 5961, 5.2, but counted back from SND.NXT instead of SND.UNA, so
    /// never wider.
    #[inline]
    pub(super) fn accepts_ack(&self, ack: Seq) -> bool {
        self.guest_next.since(ack) <= self.largest_window
    }

    /// Whether a segment overlaps or touches the guest's window (RFC 9293, 3.10.7.4).
    #[inline]
    pub(super) fn is_in_window(&self, segment: &Segment) -> bool {
        !segment.seq.after(self.edge) && !segment.end().before(self.guest_ack)
    }

    /// Whether the sender expects an answer to a segment: it repeats acknowledged data or probes a closed window (RFC
    /// 9293, 3.8.4 and 3.8.6.1).
    #[inline]
    pub(super) fn is_probe(&self, segment: &Segment) -> bool {
        segment.seq.before(self.acked) || (segment.payload > 0 && !self.advertised.after(self.acked))
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

    /// Whether data was acknowledged to the sender that the guest has not acknowledged: that data is owed to the guest.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.acked.after(self.guest_ack)
    }

    /// Whether everything owed is retained. It is, unless the memory was damaged.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        !self.start.after(self.guest_ack) && !self.acked.after(self.next)
    }

    /// Bytes retained.
    #[inline]
    pub(super) fn retained(&self) -> u32 {
        self.next.since(self.start)
    }

    /// The window field that reaches from `ack` to `edge` and no further; 0 if `edge` is earlier.
    #[inline]
    pub(super) fn window(&self, ack: Seq, edge: Seq) -> u16 {
        (ack.room(edge) >> self.scale).min(u16::MAX.into()) as u16
    }

    /// The flow's public view.
    pub(super) fn view(&self) -> FlowView {
        let key = self.key;
        // A guest that is reset is owed nothing any more.
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

/// A flow, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowView {
    /// The outer VLAN; 0 if there is none.
    pub vlan: u16,
    /// Address and port outside.
    pub outside: std::net::SocketAddr,
    /// Address and port of the guest.
    pub inside: std::net::SocketAddr,
    /// Its state.
    pub state: State,
    /// Bytes retained.
    pub retained: u32,
    /// Bytes acknowledged early that the guest has not acknowledged.
    pub owed: u32,
    /// Early ACKs sent.
    pub early_acks: u32,
    /// ACKs of the guest that had no news and were dropped.
    pub suppressed: u32,
    /// Segments retransmitted to the guest.
    pub retransmissions: u32,
    /// Why the flow is draining or end-to-end.
    pub fallback: Option<Fallback>,
}
