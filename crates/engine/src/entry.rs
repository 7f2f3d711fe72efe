//! A port in its bridge: the port, its counters, and its state.

use crate::bill::UnitTime;
use crate::bridge::Asleep;
use crate::early::Early;
use crate::messages::Messages;
use crate::rx_queue::RxQueue;
use crate::snapshot::ReceiveState;
use crate::waiters::{Ticket, Waiters};
use crate::waiting::Waiting;
use fairlane_core::inflow::Owner;
use fairlane_core::receive::Receive;
use fairlane_core::sched::Share;
use fairlane_core::stats::Counters;
use fairlane_core::time::Nanos;
use fairlane_core::{PortId, TenantId};
use fairlane_port::capture::Captured;
use fairlane_port::{Limit, Port};
use std::ops::{Deref, DerefMut};

/// A port's state toward the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its ring was empty when last polled. It is polled now and then, or its peer was asked to wake the worker.
    Idle,
    /// The scheduler knows that it has frames.
    Active,
    /// Its frames wait for room in this port. If that is a guest's, all frames in its ring are for that guest.
    Parked(PortId),
}

/// Frames that fill half of no ring: the largest, of 64 KiB, take up to 20 of Xen's 256 slots. So little is not worth asking the port.
const FEW_FRAMES: u64 = 6;

/// The state of a guest's receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxState {
    /// It is empty.
    Idle,
    /// The receivers' scheduler knows that it has frames.
    Ready,
    /// The guest's ring has no room.
    Full,
}

/// A port, captured or not.
pub(crate) enum Attached {
    Plain(Box<dyn Port>),
    Captured(Box<Captured>),
}

impl Deref for Attached {
    type Target = dyn Port;

    #[inline]
    fn deref(&self) -> &(dyn Port + 'static) {
        match self {
            Attached::Plain(port) => &**port,
            Attached::Captured(port) => &**port,
        }
    }
}

impl DerefMut for Attached {
    #[inline]
    fn deref_mut(&mut self) -> &mut (dyn Port + 'static) {
        match self {
            Attached::Plain(port) => &mut **port,
            Attached::Captured(port) => &mut **port,
        }
    }
}

/// A port and its state in a bridge. What each service needs comes first: with thousands of ports that is what it waits for, as none
/// of it is in the processor's nearer caches.
#[repr(C)]
pub(crate) struct PortEntry {
    pub port: Attached,
    /// Early ack for its guest.
    pub early: Option<Box<Early>>,
    pub turn: Turn,
    /// Since when its next frame has waited for service.
    pub since: Nanos,
    /// Whether it had more to send when it was served last.
    pub is_backlogged: bool,
    /// Its place among the idle ports that are polled, if it is one.
    pub idle_place: Option<usize>,
    /// How often it was polled in vain since it was served.
    pub vain_polls: u32,
    pub asleep: Asleep,
    /// Whether the switch checks the IP addresses of its frames.
    pub judged_by_ip: bool,
    /// Whether it waited for a guest as long as allowed, and was not served since.
    pub may_not_wait: bool,
    /// Whether the next frame in its ring is known to be for the uplink, which refused it.
    pub is_for_uplink: bool,
    /// For the uplink: whether it refused the last frame.
    pub refused: bool,
    /// Whether it is in the list of ports to flush.
    pub touched: bool,
    /// Frames that were taken from it since it was flushed, and are perhaps [withheld](fairlane_port::Withheld).
    pub taken: u64,
    /// Whether it or its tenant has a highest rate for what it sends.
    pub is_limited: bool,
    /// Its weight and its tenant's for what it sends.
    pub tx_owner: Owner,
    /// Its ticket for the guest that it last waited for.
    pub ticket: Option<Ticket>,
    /// Average time of the worker for what its frames are.
    pub unit_time: UnitTime,
    /// The worker's time that was not charged yet, in nanoseconds: to look into its ring while it waited for a guest; and for services of
    /// which the uplink took nothing.
    pub uncharged: u64,
    pub in_vain: u64,
    /// The worker's time for messages of its frontend.
    pub messages: Messages,
    /// Bytes of its frames that went to the uplink.
    pub uplink_bytes: u64,
    pub waiting: Waiting,
    pub counters: Counters,
    pub name: String,
    /// Its share in the policy.
    pub share: Share,
    /// The tenant whose share it uses.
    pub tenant: Option<TenantId>,
    /// A limit from elsewhere (xenstore).
    pub limit: Option<Limit>,
    /// Its measured share of the link in the last whole second, and its bytes at the second's start.
    pub measured_share: f64,
    pub marked: u64,
    /// How frames for its guest are queued and scheduled.
    pub receive: Receive,
    /// Whether its guest receives through its queue only, as it or its tenant has a highest rate.
    pub is_paced: bool,
    pub rx_state: RxState,
    /// Its weight and its tenant's for what its guest receives.
    pub rx_owner: Owner,
    /// Senders that wait for room in its guest's ring.
    pub waiters: Waiters,
    /// When its guest last received a frame.
    pub last_received: Nanos,
    /// Frames that wait for room in its guest's ring.
    pub queue: RxQueue,
    /// How long frames for its guest waited in the queue; frames that were not queued count as zero.
    pub rx_waiting: Waiting,
}

impl PortEntry {
    pub(crate) fn new(name: String, port: Box<dyn Port>, share: Share) -> PortEntry {
        PortEntry {
            name,
            port: Attached::Plain(port),
            early: None,
            share,
            tenant: None,
            limit: None,
            judged_by_ip: false,
            counters: Counters::default(),
            uplink_bytes: 0,
            waiting: Waiting::default(),
            turn: Turn::Idle,
            idle_place: None,
            vain_polls: 0,
            asleep: Asleep::default(),
            since: Nanos(0),
            is_backlogged: false,
            receive: Receive::with_weight(share.weight),
            is_paced: false,
            is_limited: share.is_limited(),
            tx_owner: Owner { weight: share.weight, tenant: None },
            rx_owner: Owner { weight: share.weight, tenant: None },
            queue: RxQueue::default(),
            rx_state: RxState::Idle,
            rx_waiting: Waiting::default(),
            waiters: Waiters::default(),
            last_received: Nanos(0),
            may_not_wait: false,
            ticket: None,
            is_for_uplink: false,
            refused: false,
            measured_share: 0.0,
            marked: 0,
            touched: false,
            taken: 0,
            uncharged: 0,
            in_vain: 0,
            unit_time: UnitTime::default(),
            messages: Messages::default(),
        }
    }
}

impl PortEntry {
    /// Its share in the policy, with the other limit if the policy has no `max_rate`.
    pub(crate) fn effective_share(&self) -> Share {
        match self.limit {
            Some(Limit { rate, burst }) if self.share.max_rate.is_none() => {
                Share { max_rate: Some(rate), burst, ..self.share }
            }
            _ => self.share,
        }
    }

    /// The receiving direction for a snapshot.
    pub(crate) fn receive_state(&self) -> ReceiveState {
        let Receive { share, queue, timeout } = self.receive;
        ReceiveState {
            weight: share.weight,
            min_rate: share.min_rate,
            max_rate: share.max_rate,
            burst: share.burst,
            max_frames: share.max_frames,
            frame_burst: share.frame_burst,
            queue,
            timeout: timeout.0,
            queued_frames: self.queue.len() as u64,
            queued_bytes: self.queue.bytes(),
            waiting: self.rx_waiting.clone(),
            marked_frames: self.counters.marked_frames,
        }
    }

    /// Whether frames wait in its ring, or early ack has frames to send for its guest.
    #[inline]
    pub(crate) fn has_frames(&mut self, now: Nanos) -> bool {
        self.sends_for_guest() || self.port.waiting(now)
    }

    /// Whether its ring is to be flushed before its guest can send more.
    #[inline]
    pub(crate) fn withholds_sent(&self) -> bool {
        self.taken >= FEW_FRAMES && self.port.withheld().sent
    }

    /// Whether early ack has frames to send for its guest.
    #[inline]
    pub(crate) fn sends_for_guest(&self) -> bool {
        self.early.as_ref().is_some_and(|early| early.waiting())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_fall_into_their_buckets() {
        let mut waiting = Waiting::default();
        for (wait, bucket) in [(0, 0), (1, 1), (2, 2), (3, 2), (1024, 11), (u64::from(u32::MAX), 32), (1 << 60, 35)] {
            let before = waiting.buckets[bucket];
            waiting.sum = 0;
            waiting.record(Nanos(wait));
            assert_eq!(waiting.buckets[bucket], before + 1, "{wait}");
            assert_eq!(waiting.sum, wait);
        }
    }
}
