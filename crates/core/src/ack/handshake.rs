//! The handshake: a flow begins with it, or stays end-to-end. What both ends agree on is said in it and never again.

use super::flags::Flags;
use super::machine::Event;
use super::segment::Segment;
use super::{EarlyAck, Fallback, Flow, Mode, State, are_near};
use crate::packet::TcpFlags;
use crate::time::Nanos;
use std::sync::atomic::{Ordering, compiler_fence};

/// The largest window scale (RFC 7323, 2.3).
pub(super) const SCALE: u8 = 14;

/// Bytes that timestamps take of every segment (RFC 7323, appendix A; RFC 6691 has them taken off the payload).
const STAMPS: u16 = 12;

/// Bounds of what is taken for a maximum segment size: Linux's least, and what no retransmission is larger than.
const MSS: std::ops::RangeInclusive<u16> = 88..=8960;

/// What segments hold if nothing is said (RFC 9293, 3.7.1).
const MSS_V4: u16 = 536;
const MSS_V6: u16 = 1220;

impl EarlyAck<'_> {
    /// A SYN from outside, with or without ACK.
    pub(super) fn syn_toward(&mut self, segment: &Segment, head: &[u8], now: Nanos) {
        if segment.flags.contains(TcpFlags::ACK) {
            let Some(at) = self.find(&segment.key) else { return };
            let flow = &mut self.flows[at];
            if flow.state() == State::Opening && flow.has(Flags::GUEST_SYN) && segment.ack == flow.guest_next {
                if segment.wants_more(head) {
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
    pub(super) fn syn_from(&mut self, segment: &Segment, head: &[u8], now: Nanos) {
        if segment.flags.contains(TcpFlags::ACK) {
            let Some(at) = self.find(&segment.key) else { return };
            let flow = &mut self.flows[at];
            let is_repeated = segment.ack == flow.guest_ack && segment.end() == flow.guest_next;
            if flow.state() != State::Opening && !is_repeated {
                // The guest accepts another connection of the same ports: what was owed to the one before it does not want.
                self.stats.fell_back(Fallback::Reopened);
                return self.remove(at);
            }
            if flow.state() == State::Opening && flow.has(Flags::SENDER_SYN) && segment.ack == flow.seen {
                if segment.wants_more(head) {
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

    /// The flow of a first SYN: a new one, or the one that it is a retransmission of. `theirs` is the flag of the other end's
    /// SYN, `own` of this end's.
    fn open(&mut self, segment: &Segment, head: &[u8], theirs: Flags, own: Flags, now: Nanos) -> Option<usize> {
        if let Some(at) = self.find(&segment.key) {
            let flow = &self.flows[at];
            // Within a connection it ends nothing: anyone may have sent it, and the guest asks its sender (RFC 5961, 4.2). If the guest
            // begins anew itself, it does.
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
        // Data in a SYN (RFC 7413) are acknowledged or not as the guest likes: not a flow for us.
        if self.guest.mode == Mode::Off
            || segment.payload > 0
            || segment.flags.intersects(TcpFlags::FIN.with(TcpFlags::RST))
        {
            return None;
        }
        if !segment.is_sound || segment.wants_more(head) {
            self.stats.fell_back(Fallback::Options);
            return None;
        }
        self.insert(Flow::new(segment.key), now)
    }

    /// Completes the handshake with an ACK from outside to a guest that accepted. It may be lost, and data be the first to
    /// carry it. A connection that is refused is none.
    pub(super) fn opened_toward(&mut self, at: usize, segment: &Segment) {
        let flow = &mut self.flows[at];
        let acks = segment.flags.contains(TcpFlags::ACK) && segment.ack == flow.guest_next;
        if segment.flags.contains(TcpFlags::RST) {
            // Believed as by the guest: where it goes on from its sender's SYN, or acknowledges the guest's (RFC 9293, 3.10.7.3).
            let is_believed = if flow.has(Flags::SENDER_SYN) { segment.seq == flow.seen } else { acks };
            if is_believed {
                self.remove(at);
            }
            return;
        }
        if flow.has(Flags::SYNS.with(Flags::BEGUN)) && acks && are_near(segment.seq, flow.guest_ack) {
            self.opened(at);
        }
    }

    /// Completes the handshake with an ACK of a guest that connected. One that accepted and goes on without such an ACK from
    /// outside has it from elsewhere: its flow is not ours to know. Nor is one that it refuses.
    pub(super) fn opened_from(&mut self, at: usize, segment: &Segment) {
        let flow = &mut self.flows[at];
        if flow.has(Flags::BEGUN) || segment.flags.contains(TcpFlags::RST) {
            return self.remove(at);
        }
        let acks = segment.flags.contains(TcpFlags::ACK) && segment.ack == flow.seen;
        if flow.has(Flags::SYNS) && acks {
            flow.edge = segment.ack.plus(u32::from(segment.window) << flow.scale);
            begin(flow, segment);
            self.opened(at);
        }
    }

    /// The handshake is complete, all of which was noted.
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

/// Notes something of a handshake. Its flags say what is known, so they are stored when it is: a process that ends half-way leaves a
/// flow that cannot open, or that opens as both ends agreed.
fn note(place: &mut Flow, change: impl FnOnce(&mut Flow)) {
    let mut flow = *place;
    change(&mut flow);
    *place = Flow { flags: place.flags, ..flow };
    compiler_fence(Ordering::Release);
    place.flags = flow.flags;
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
    flow.seen = segment.end();
    flow.toward = segment.link(head);
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
    flow.from = segment.link(head);
}

/// Both SYNs are known: what one end alone offered does not hold.
fn agree(flow: &mut Flow) {
    let [guest, sender] = [flow.scale, flow.sender_scale].map(|scale| scale.min(SCALE));
    (flow.scale, flow.sender_scale) = if flow.has(Flags::SCALES) { (guest, sender) } else { (0, 0) };
    flow.mss -= if flow.stamps() { STAMPS } else { 0 };
}

/// The guest's first ACK: nothing is retained before it.
fn begin(flow: &mut Flow, segment: &Segment) {
    flow.begin_at(segment.ack);
    flow.sender_stamp = segment.timestamps().map_or(0, |(_, echo)| echo);
    flow.told = flow.edge;
    flow.flags.set(Flags::BEGUN);
}
