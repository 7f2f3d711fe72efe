//! The handshake. A flow whose handshake is not seen stays end-to-end, as options are negotiated only there.

use super::flags::Flags;
use super::machine::Event;
use super::segment::Segment;
use super::{EarlyAck, Fallback, Flow, Mode, State, are_near};
use crate::packet::TcpFlags;
use crate::time::Nanos;
use std::sync::atomic::{Ordering, compiler_fence};

/// The largest window scale (RFC 7323, 2.3).
pub(super) const SCALE: u8 = 14;

/// Bytes of the timestamps option in every segment (RFC 7323, appendix A), which reduce the payload (RFC 6691).
const STAMPS: u16 = 12;

/// Bounds for a maximum segment size: Linux's least, and the largest retransmission.
const MSS: std::ops::RangeInclusive<u16> = 88..=8960;

/// Default maximum segment sizes (RFC 9293, 3.7.1).
const MSS_V4: u16 = 536;
const MSS_V6: u16 = 1220;

impl EarlyAck<'_> {
    /// A SYN from outside, with or without ACK.
    pub(super) fn syn_inbound(&mut self, segment: &Segment, head: &[u8], now: Nanos) {
        if segment.flags.contains(TcpFlags::ACK) {
            let Some(at) = self.find(&segment.key) else { return };
            let flow = &mut self.flows[at];
            if flow.state() == State::Opening && flow.has(Flags::GUEST_SYN) && segment.ack == flow.guest_next {
                if segment.needs_end_to_end(head) {
                    return self.fall_back(at, Fallback::Options);
                }
                note(flow, |flow| {
                    sender_syn(flow, segment, head);
                    agree(flow);
                });
            }
        } else if let Some(at) = self.open(segment, head, Flags::GUEST_SYN, Flags::SENDER_SYN, now) {
            note(&mut self.flows[at], |flow| sender_syn(flow, segment, head));
        }
    }

    /// A SYN from the guest, with or without ACK.
    pub(super) fn syn_outbound(&mut self, segment: &Segment, head: &[u8], now: Nanos) {
        if segment.flags.contains(TcpFlags::ACK) {
            let Some(at) = self.find(&segment.key) else { return };
            let flow = &mut self.flows[at];
            let is_repeated = segment.ack == flow.guest_ack && segment.end() == flow.guest_next;
            if flow.state() != State::Opening && !is_repeated {
                // The guest accepts a new connection with the same ports, and does not want what was owed to the old
                // one.
                self.stats.fell_back(Fallback::Reopened);
                return self.remove(at);
            }
            if flow.state() == State::Opening && flow.has(Flags::SENDER_SYN) && segment.ack == flow.delivered {
                if segment.needs_end_to_end(head) {
                    return self.fall_back(at, Fallback::Options);
                }
                note(flow, |flow| {
                    guest_syn(flow, segment, head);
                    agree(flow);
                    // The window of a SYN is never scaled (RFC 7323, 2.2).
                    flow.edge = segment.ack.plus(segment.window.into());
                    begin(flow, segment);
                });
            }
        } else if let Some(at) = self.open(segment, head, Flags::SENDER_SYN, Flags::GUEST_SYN, now) {
            note(&mut self.flows[at], |flow| guest_syn(flow, segment, head));
        }
    }

    /// The flow of a SYN without ACK: a new flow, or none if the SYN does not open one. `theirs` is the flag of the
    /// other end's SYN, `own` that of this end's.
    fn open(&mut self, segment: &Segment, head: &[u8], theirs: Flags, own: Flags, now: Nanos) -> Option<usize> {
        if let Some(at) = self.find(&segment.key) {
            let flow = &self.flows[at];
            // A SYN from outside does not end an open connection: anyone may have sent it, and the guest challenges it
            // (RFC 5961, 4.2). A SYN from the guest does.
            let is_open = !matches!(flow.state(), State::Opening | State::EndToEnd) && !flow.has(Flags::RESET);
            if is_open && own == Flags::SENDER_SYN {
                return None;
            }
            if flow.state() == State::Opening && flow.has(theirs) && !flow.has(own) {
                self.fall_back(at, Fallback::SimultaneousOpen);
                return None;
            }
            self.remove(at);
        }
        // The guest may or may not acknowledge data in a SYN (RFC 7413): early ack does not handle such a flow.
        if self.guest.mode == Mode::Off
            || segment.payload > 0
            || segment.flags.intersects(TcpFlags::FIN.with(TcpFlags::RST))
        {
            return None;
        }
        if !segment.is_sound || segment.needs_end_to_end(head) {
            self.stats.fell_back(Fallback::Options);
            return None;
        }
        self.insert(Flow::new(segment.key), now)
    }

    /// Completes the handshake with an ACK from outside to a guest that accepted. The ACK may be lost, so that the
    /// first data has it. A reset ends the handshake.
    pub(super) fn opened_inbound(&mut self, at: usize, segment: &Segment) {
        let flow = &mut self.flows[at];
        let acks = segment.flags.contains(TcpFlags::ACK) && segment.ack == flow.guest_next;
        if segment.flags.contains(TcpFlags::RST) {
            // Accepted as by the guest: if it follows the sender's SYN, or acknowledges the guest's (RFC 9293,
            // 3.10.7.3).
            let is_accepted = if flow.has(Flags::SENDER_SYN) { segment.seq == flow.delivered } else { acks };
            if is_accepted {
                self.remove(at);
            }
            return;
        }
        if flow.has(Flags::SYNS.with(Flags::BEGUN)) && acks && are_near(segment.seq, flow.guest_ack) {
            self.opened(at);
        }
    }

    /// Completes the handshake with an ACK of a guest that connected. If a guest that accepted continues without an ACK
    /// from outside, it got it on another path, and the flow is removed. A reset removes it, too.
    pub(super) fn opened_outbound(&mut self, at: usize, segment: &Segment) {
        let flow = &mut self.flows[at];
        if flow.has(Flags::BEGUN) || segment.flags.contains(TcpFlags::RST) {
            return self.remove(at);
        }
        let acks = segment.flags.contains(TcpFlags::ACK) && segment.ack == flow.delivered;
        if flow.has(Flags::SYNS) && acks {
            flow.edge = segment.ack.plus(u32::from(segment.window) << flow.scale);
            begin(flow, segment);
            self.opened(at);
        }
    }

    /// Opens a flow whose whole handshake was noted.
    fn opened(&mut self, at: usize) {
        let epoch = self.guest.epoch;
        self.opening.remove(at as u32);
        compiler_fence(Ordering::Release);
        self.change(at, |flow| {
            flow.epoch = epoch;
            flow.step(Event::Opened);
        });
    }
}

/// Changes a flow during the handshake. The flags are stored last: a process that ends in between leaves a flow that
/// cannot open, or that opens as both ends agreed.
fn note(entry: &mut Flow, change: impl FnOnce(&mut Flow)) {
    let mut flow = *entry;
    change(&mut flow);
    *entry = Flow { flags: entry.flags, ..flow };
    compiler_fence(Ordering::Release);
    entry.flags = flow.flags;
}

/// Notes the sender's SYN.
fn sender_syn(flow: &mut Flow, segment: &Segment, head: &[u8]) {
    let options = segment.options(head).unwrap_or_default();
    flow.flags.set(Flags::SENDER_SYN);
    if options.window_scale.is_some() {
        flow.flags.set(Flags::SENDER_SCALES);
    }
    if options.timestamps.is_some() {
        flow.flags.set(Flags::SENDER_STAMPS);
    }
    if options.sack_permitted {
        flow.flags.set(Flags::SENDER_SACKS);
    }
    flow.sender_scale = options.window_scale.unwrap_or(0);
    flow.largest_window = segment.window.into();
    flow.delivered = segment.end();
    flow.inbound_link = segment.link(head);
}

/// Notes the guest's SYN.
fn guest_syn(flow: &mut Flow, segment: &Segment, head: &[u8]) {
    let options = segment.options(head).unwrap_or_default();
    flow.flags.set(Flags::GUEST_SYN);
    if options.window_scale.is_some() {
        flow.flags.set(Flags::GUEST_SCALES);
    }
    if options.timestamps.is_some() {
        flow.flags.set(Flags::GUEST_STAMPS);
    }
    if options.sack_permitted {
        flow.flags.set(Flags::GUEST_SACKS);
    }
    flow.scale = options.window_scale.unwrap_or(0);
    flow.guest_stamp = options.timestamps.map_or(0, |(value, _)| value);
    flow.mss = options.mss.unwrap_or(if flow.key.is_v6() { MSS_V6 } else { MSS_V4 }).clamp(*MSS.start(), *MSS.end());
    flow.guest_next = segment.end();
    flow.outbound_link = segment.link(head);
}

/// Settles the options once both SYNs are known: an option that only one end offered is off.
fn agree(flow: &mut Flow) {
    let [guest, sender] = [flow.scale, flow.sender_scale].map(|scale| scale.min(SCALE));
    (flow.scale, flow.sender_scale) = if flow.has(Flags::SCALES) { (guest, sender) } else { (0, 0) };
    flow.mss -= if flow.stamps() { STAMPS } else { 0 };
}

/// Notes the guest's first ACK: nothing is retained before it.
fn begin(flow: &mut Flow, segment: &Segment) {
    flow.begin_at(segment.ack);
    flow.sender_stamp = segment.timestamps().map_or(0, |(_, echo)| echo);
    flow.advertised = flow.edge;
    flow.flags.set(Flags::BEGUN);
}
