//! What a guest sends: its ACKs let go of copies, and never go back behind what was said for it.

use super::flags::Flags;
use super::segment::Segment;
use super::sequence::Seq;
use super::{EarlyAck, Fallback, Flow, LookupBatch, RETRANSMIT, State, Verdict, are_near};
use crate::packet::{Amend, Checksum, TcpFlags};
use crate::time::Nanos;
use std::ops::Range;

/// Equal ACKs that mean that a segment is missing (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// Bytes of a TCP header without options.
const HEADER: usize = 20;

/// The kind of the option with selective acknowledgments (RFC 2018, 3).
const SACK_BLOCKS: u8 = 5;

/// What a segment of the guest acknowledges.
struct Said {
    ack: Seq,
    /// The right edge of its window.
    edge: Seq,
    /// Whether it carries nothing but that.
    pure: bool,
    /// Whether the guest is further than it was.
    moves: bool,
}

impl EarlyAck<'_> {
    /// Judges a frame that the guest sends, as it was [looked at](EarlyAck::look). Its `head` is made fit to what was said for the
    /// guest; `checksum` says whether the one in it is complete.
    ///
    /// Every frame of a burst in which something is to be noted is shown, once and in order, before it goes out.
    #[inline]
    pub fn from_guest(&mut self, sight: &LookupBatch, head: &mut [u8], checksum: Checksum, now: Nanos) -> Verdict {
        let Some((segment, at)) = self.recall(sight) else { return Verdict::Pass };
        if segment.flags.contains(TcpFlags::SYN) {
            self.syn_from(segment, head, now);
            return Verdict::Pass;
        }
        let Some(at) = at else { return Verdict::Pass };
        if self.flows[at].state() == State::Opening {
            self.opened_from(at, segment);
        }
        if matches!(self.flows[at].state(), State::Free | State::Opening | State::EndToEnd) {
            return Verdict::Pass;
        }
        if self.flows[at].has(Flags::RESET) {
            return self.reset_guest_again(at, segment, now);
        }
        if self.learns(at) {
            self.learn_from(at, segment);
            return Verdict::Pass;
        }
        self.judge(at, segment, head, checksum, now)
    }

    fn judge(&mut self, at: usize, segment: &Segment, head: &mut [u8], checksum: Checksum, now: Nanos) -> Verdict {
        let flow = &mut self.flows[at];
        if goes_on(flow, segment) {
            return Verdict::Pass;
        }
        let is_next = segment.seq == flow.guest_next;
        if are_near(segment.end(), flow.guest_next) {
            flow.guest_next = flow.guest_next.latest(segment.end());
        }
        if segment.flags.contains(TcpFlags::RST) {
            // The other end takes one with just this number (RFC 5961, 3.2), and any other perhaps not.
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
        } else if segment.ack.after(flow.seen) {
            self.fall_back(at, Fallback::AckedUnsent);
            // It may have what went past us, but no more than it had room for.
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
        let said = Said {
            ack: segment.ack,
            edge: segment.ack.plus(u32::from(segment.window) << flow.scale),
            pure: segment.payload == 0 && is_next && plain,
            moves: segment.ack.after(flow.guest_ack),
        };
        if flow.state() != State::Idle {
            segment.note_link(head, &mut flow.from);
        }
        self.note_ack(at, &said, now);
        let verdict = self.answer(at, segment, &said, head, checksum);
        self.settle(at);
        verdict
    }

    /// Notes a frame that the guest sends and that is no segment. A fragment's ACK cannot be raised, so its flow is left to its ends.
    #[cold]
    pub(super) fn note_fragment(&mut self, head: &[u8]) {
        if let Some(key) = Segment::fragment(head)
            && let Some(at) = self.find(&key)
        {
            self.fall_back(at, Fallback::Fragment);
        }
    }

    /// Notes how far the guest is, and what it takes.
    fn note_ack(&mut self, at: usize, said: &Said, now: Nanos) {
        let &Said { ack, edge, pure, moves } = said;
        let flow = &mut self.flows[at];
        if ack.before(flow.guest_ack) {
            return;
        }
        if moves {
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

    /// Raises the ACK of a segment to what was said for the guest, or finds that it says nothing new.
    fn answer(&mut self, at: usize, segment: &Segment, said: &Said, head: &mut [u8], checksum: Checksum) -> Verdict {
        let flow = &mut self.flows[at];
        let &Said { ack, edge, pure, moves } = said;
        let window = flow.window(flow.acked, edge);
        let told = flow.acked.plus(u32::from(window) << flow.scale);
        let blocks = if flow.sacks() { selective(&head[segment.header()]) } else { None };
        let stale = blocks.clone().is_some_and(|blocks| {
            head[segment.header()][blocks].as_chunks::<8>().0.iter().any(|block| left_edge(block).before(flow.acked))
        });
        let is_old = ack.before(flow.acked);
        let repeats = is_old || (ack == flow.acked && moves);
        let says_blocks = blocks.is_some() && !stale;
        let says_nothing = pure && repeats && !says_blocks && !is_news(flow, told);
        if says_nothing && !flow.has(Flags::ASKED) {
            flow.suppressed = flow.suppressed.wrapping_add(1);
            self.stats.suppressed += 1;
            return Verdict::Drop;
        }
        flow.flags.clear(Flags::ASKED);
        if !is_old {
            flow.acked = ack;
            flow.told = edge;
            return Verdict::Pass;
        }
        let mut header = Amend::new(head, segment.header().start, checksum);
        header.acknowledgment(flow.acked.0);
        header.window(window);
        if let Some(blocks) = blocks.filter(|_| stale) {
            // Below the ACK they would say that data came twice (RFC 2883, 4).
            header.blank(blocks.start - 2, blocks.len() + 2);
        }
        flow.told = told;
        self.stats.raised += 1;
        Verdict::Pass
    }
}

/// Notes a segment of a guest for which nothing is retained, and that goes on in order, as nearly all do (a prediction as Van
/// Jacobson's in RFC 1144, appendix A, of what the rest of [`EarlyAck::judge`] would make of it). False if it is none, and is to be judged.
fn goes_on(flow: &mut Flow, segment: &Segment) -> bool {
    let Some((value, _)) = segment.timestamps() else { return false };
    let ack = segment.ack;
    let is_plain = segment.flags.without(TcpFlags::PSH) == TcpFlags::ACK && segment.is_sound && segment.window > 0;
    let is_watched =
        flow.state() == State::Idle && flow.retained() == 0 && flow.acked == flow.guest_ack && !flow.has(Flags::FIN);
    let moves_on =
        !ack.before(flow.guest_ack) && !ack.after(flow.seen) && value.wrapping_sub(flow.guest_stamp) as i32 >= 0;
    if !(is_plain && is_watched && moves_on && segment.seq == flow.guest_next) {
        return false;
    }
    flow.stand(segment);
    true
}

/// Whether a right edge tells the sender something: it may send more, or a good deal less than it was told.
fn is_news(flow: &Flow, told: Seq) -> bool {
    told.after(flow.told) || flow.told.since(told) >= u32::from(flow.mss).max(1 << flow.scale)
}

/// Where the blocks of a selective acknowledgment are in a TCP header whose options are sound.
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
