//! Frames that the guest sends: its ACKs free copies, and never go back behind an early ACK.

use super::flags::Flags;
use super::segment::Segment;
use super::sequence::Seq;
use super::{EarlyAck, Fallback, Flow, LookupBatch, RETRANSMIT, State, Verdict, are_near};
use crate::packet::{Amend, Checksum, TcpFlags};
use crate::time::Nanos;
use std::ops::Range;

/// Duplicate ACKs that indicate a missing segment (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// Bytes of a TCP header without options.
const HEADER: usize = 20;

/// The option kind of selective acknowledgments (RFC 2018, 3).
const SACK_BLOCKS: u8 = 5;

/// The ACK in a guest's segment.
struct GuestAck {
    ack: Seq,
    /// The right edge of its window.
    edge: Seq,
    /// Whether the segment has nothing else.
    pure: bool,
    /// Whether it acknowledges new data.
    advances: bool,
}

impl EarlyAck<'_> {
    /// Judges a frame that the guest sends, with its [lookup](EarlyAck::look_up). The ACK in `head` is raised if it is
    /// older than an early ACK; `checksum` tells whether the frame's checksum is complete.
    ///
    /// If any frame of a burst has to be noted, every frame is judged, once and in order, before it is forwarded.
    #[inline]
    pub fn from_guest(&mut self, lookup: &LookupBatch, head: &mut [u8], checksum: Checksum, now: Nanos) -> Verdict {
        let Some((segment, at)) = self.recall(lookup) else { return Verdict::Pass };
        if segment.flags.contains(TcpFlags::SYN) {
            self.syn_outbound(segment, head, now);
            return Verdict::Pass;
        }
        let Some(at) = at else { return Verdict::Pass };
        if self.flows[at].state() == State::Opening {
            self.opened_outbound(at, segment);
        }
        if matches!(self.flows[at].state(), State::Free | State::Opening | State::EndToEnd) {
            return Verdict::Pass;
        }
        if self.flows[at].has(Flags::RESET) {
            return self.reset_guest_again(at, segment, now);
        }
        if self.learns(at) {
            self.learn_outbound(at, segment);
            return Verdict::Pass;
        }
        self.judge(at, segment, head, checksum, now)
    }

    fn judge(&mut self, at: usize, segment: &Segment, head: &mut [u8], checksum: Checksum, now: Nanos) -> Verdict {
        let flow = &mut self.flows[at];
        if note_expected(flow, segment) {
            return Verdict::Pass;
        }
        let is_next = segment.seq == flow.guest_next;
        if are_near(segment.end(), flow.guest_next) {
            flow.guest_next = flow.guest_next.latest(segment.end());
        }
        if segment.flags.contains(TcpFlags::RST) {
            // The other end accepts a reset with this exact number (RFC 5961, 3.2), but perhaps no other.
            if is_next {
                self.remove(at);
            } else {
                self.fall_back(at, Fallback::Reset);
            }
            return Verdict::Pass;
        }
        if !segment.flags.contains(TcpFlags::ACK) {
            return Verdict::Pass;
        }
        let is_beyond = segment.ack.after(flow.edge);
        if !segment.is_sound {
            self.fall_back(at, Fallback::Options);
        } else if segment.ack.after(flow.delivered) {
            self.fall_back(at, Fallback::AckedUnsent);
            // It may have data that passed unnoted, but no more than fits its window.
            if is_beyond {
                return Verdict::Pass;
            }
        }
        let flow = &mut self.flows[at];
        if let Some((value, echo)) = segment.timestamps() {
            if value.wrapping_sub(flow.guest_stamp) as i32 > 0 {
                flow.guest_stamp = value;
            }
            if flow.retained() == 0 || echo.wrapping_sub(flow.sender_stamp) as i32 > 0 {
                flow.sender_stamp = echo;
            }
        }
        let plain = segment.flags.without(TcpFlags::PSH) == TcpFlags::ACK;
        let guest_ack = GuestAck {
            ack: segment.ack,
            edge: segment.ack.plus(u32::from(segment.window) << flow.scale),
            pure: segment.payload == 0 && is_next && plain,
            advances: segment.ack.after(flow.guest_ack),
        };
        if flow.state() != State::Idle {
            segment.note_link(head, &mut flow.outbound_link);
        }
        self.note_ack(at, &guest_ack, now);
        let verdict = self.raise_or_drop(at, segment, &guest_ack, head, checksum);
        self.settle(at);
        verdict
    }

    /// Notes a guest's frame that is not a whole segment. The ACK in a fragment cannot be raised, so its flow becomes
    /// end-to-end.
    #[cold]
    pub(super) fn note_fragment(&mut self, head: &[u8]) {
        if let Some(key) = Segment::fragment(head)
            && let Some(at) = self.find(&key)
        {
            self.fall_back(at, Fallback::Fragment);
        }
    }

    /// Notes the guest's ACK and window, and starts a retransmission if they call for one.
    fn note_ack(&mut self, at: usize, guest_ack: &GuestAck, now: Nanos) {
        let &GuestAck { ack, edge, pure, advances } = guest_ack;
        let flow = &mut self.flows[at];
        if ack.before(flow.guest_ack) {
            return;
        }
        if advances {
            (flow.tries, flow.duplicates) = (0, 0);
            self.release(at, ack);
            let flow = &mut self.flows[at];
            if flow.owes() {
                let repairs = ack.before(flow.recover);
                (flow.resend, flow.recover) = (ack, flow.recover.latest(ack));
                flow.deadline = if repairs { now.0 } else { (now + RETRANSMIT).0 };
                self.schedule(at);
            }
        } else if pure && flow.owes() && edge == flow.edge {
            flow.duplicates = flow.duplicates.saturating_add(1);
            if flow.duplicates == DUPLICATES && !flow.recover.after(ack) {
                flow.deadline = now.0;
                self.schedule(at);
            }
        }
        let flow = &mut self.flows[at];
        flow.edge = edge;
        if edge == ack {
            self.answered_closed(at);
        }
    }

    /// Raises the ACK of a segment to the last early ACK, or drops the segment if it has no news.
    fn raise_or_drop(
        &mut self,
        at: usize,
        segment: &Segment,
        guest_ack: &GuestAck,
        head: &mut [u8],
        checksum: Checksum,
    ) -> Verdict {
        let flow = &mut self.flows[at];
        let &GuestAck { ack, edge, pure, advances } = guest_ack;
        let window = flow.window(flow.acked, edge);
        let advertised = flow.acked.plus(u32::from(window) << flow.scale);
        let blocks = if flow.sacks() { selective(&head[segment.header()]) } else { None };
        let stale = blocks.clone().is_some_and(|blocks| {
            head[segment.header()][blocks].as_chunks::<8>().0.iter().any(|block| left_edge(block).before(flow.acked))
        });
        let is_old = ack.before(flow.acked);
        let repeats = is_old || (ack == flow.acked && advances);
        let has_sack = blocks.is_some() && !stale;
        let has_no_news = pure && repeats && !has_sack && !is_news(flow, advertised);
        if has_no_news && !flow.has(Flags::ASKED) {
            flow.suppressed = flow.suppressed.wrapping_add(1);
            self.stats.suppressed += 1;
            return Verdict::Drop;
        }
        flow.flags.clear(Flags::ASKED);
        if !is_old {
            flow.acked = ack;
            flow.advertised = edge;
            return Verdict::Pass;
        }
        let mut header = Amend::new(head, segment.header().start, checksum);
        header.acknowledgment(flow.acked.0);
        header.window(window);
        if let Some(blocks) = blocks.filter(|_| stale) {
            // Blocks below the ACK would report duplicate data (RFC 2883, 4).
            header.blank(blocks.start - 2, blocks.len() + 2);
        }
        flow.advertised = advertised;
        self.stats.raised += 1;
        Verdict::Pass
    }
}

/// The fast path of [`EarlyAck::judge`]: notes a plain segment in order, with nothing retained, as nearly all are (a
/// prediction like Van Jacobson's in RFC 1144, appendix A). Returns false for any other segment.
fn note_expected(flow: &mut Flow, segment: &Segment) -> bool {
    let Some((value, _)) = segment.timestamps() else { return false };
    let ack = segment.ack;
    let is_plain = segment.flags.without(TcpFlags::PSH) == TcpFlags::ACK && segment.is_sound && segment.window > 0;
    let is_watched =
        flow.state() == State::Idle && flow.retained() == 0 && flow.acked == flow.guest_ack && !flow.has(Flags::FIN);
    let moves_on =
        !ack.before(flow.guest_ack) && !ack.after(flow.delivered) && value.wrapping_sub(flow.guest_stamp) as i32 >= 0;
    if !(is_plain && is_watched && moves_on && segment.seq == flow.guest_next) {
        return false;
    }
    flow.adopt(segment);
    true
}

/// Whether a right edge is news for the sender: it may send more than was advertised, or much less.
fn is_news(flow: &Flow, advertised: Seq) -> bool {
    advertised.after(flow.advertised) || flow.advertised.since(advertised) >= u32::from(flow.mss).max(1 << flow.scale)
}

/// The position of the SACK blocks in a TCP header with well-formed options.
fn selective(header: &[u8]) -> Option<Range<usize>> {
    let mut at = HEADER;
    loop {
        match *header.get(at..)? {
            [] | [0, ..] => return None,
            [1, ..] => at += 1,
            [SACK_BLOCKS, len, ..] if len >= 2 => return Some(at + 2..(at + usize::from(len)).min(header.len())),
            [_, len, ..] if len >= 2 => at += usize::from(len),
            _ => return None,
        }
    }
}

fn left_edge(block: &[u8; 8]) -> Seq {
    let [a, b, c, d, ..] = *block;
    Seq(u32::from_be_bytes([a, b, c, d]))
}
