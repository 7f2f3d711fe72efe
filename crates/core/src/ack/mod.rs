//! Early ack: TCP at full speed to guests that wait for their CPU.
//!
//! A guest that is not scheduled acknowledges nothing for tens of milliseconds, and senders outside slow down. So data that
//! reached its ring are acknowledged for it (vSnoop: Kangarlou, Gamage, Kompella, Xu, SC'10; seed 003). A guest may
//! yet refuse data that were in order and in its window. So a copy is retained of all that is acknowledged early, and sent to the
//! guest again until its own ACK covers it (Snoop: Balakrishnan, Seshan, Amir, Katz, MobiCom'95; RFC 3135, 3.1.2).
//!
//! The caller has a burst [looked at](EarlyAck::look), shows every frame of it, if any has something to note, that it
//! [put into the guest's ring](EarlyAck::delivered) or that the guest [sends](EarlyAck::from_guest), says how the ring
//! [stands](EarlyAck::observe), takes the [ACKs](EarlyAck::next_ack) that wait, before the guest's next frames, and asks at its
//! [time](EarlyAck::poll_timeout) for what the guest is [due](EarlyAck::on_timeout). Answers are verdicts and frames; the caller sends.
//!
//! # Rules
//! 1. Acknowledged early is only what is in the guest's ring, verified, and retained, and what the guest will take: its sequence
//!    and ACK numbers are as RFC 9293, 3.10.7.4, and RFC 5961, 5.2, ask, its timestamp is not old (RFC 7323, 5). No number of
//!    a segment is believed before.
//! 2. Never beyond the right edge of the guest's window, as it said last; the window in an early ACK ends at that edge.
//! 3. ACKs never go back. A segment of the guest's with an older ACK has it raised (RFC 9293, 3.10.7.4: a window is taken with
//!    an ACK that is not older; RFC 5961, 5.2: one far too old is challenged). One that says nothing new then is dropped.
//! 4. The timestamp of an early ACK is the guest's last, never extrapolated (RFC 7323, 5.3), its echo the segment's.
//! 5. No early SACK (RFC 2018, 8: it may be taken back). None for SYN, FIN, RST, URG, data out of order or beyond the window, or
//!    marked as congested (RFC 3168: the guest is to echo that). A probe for which there is none is answered by the guest.
//! 6. An early ACK has the sequence number of what the guest sent last, and goes out before what it sends next.
//! 7. Copies are capped for each flow and guest; at a cap acknowledging stops. Only the guest's ACK lets go of
//!    them. They are sent again on its equal ACKs (RFC 5681, 3.2) and by a timer that backs off (RFC 6298, 5.5).
//! 8. After an anomaly a flow is end-to-end for good, once nothing is owed to the guest. If that cannot be, both ends are reset, as
//!    often as either says something more.
//! 9. Engaged only while the guest does not drain its ring, and for a while after ([`LINGER`]). Else it is [let alone](watch).
//! 10. Copies travel with their flow ([`EarlyAck::export`]), or it drains first ([`EarlyAck::set_mode`] with [`Mode::Off`]). What was
//!     exported stands still here, and nothing more is acknowledged, until the guest is heard of again.
//! 11. Off unless turned on.
//!
//! The states of a flow, and what leads from one to the next, are in [`machine`].

mod extent;
mod flags;
mod flow;
mod from;
mod guest;
mod handshake;
mod index;
mod lookup;
mod machine;
mod pool;
mod resend;
mod resume;
mod segment;
mod sequence;
mod stats;
mod toward;
mod transfer;
mod watch;

pub use extent::Extent;
pub use flow::{Flow, FlowView};
pub use guest::{LINGER, Mode, Ring, STALL};
pub use lookup::LookupBatch;
pub use machine::State;
pub use pool::{BLOCK, Block};
pub use resend::{GIVE_UP, RETRANSMIT};
pub use segment::Direction;
pub use stats::{Fallback, Stats};
pub use transfer::{ImportError, VERSION};

use crate::sched::heap::Heap;
use crate::table::Secrets;
use crate::time::{Nanos, SECOND};
use extent::Part;
use flags::Flags;
use guest::Guest;
use index::Index;
use machine::Event;
use pool::{Chain, Pool};
use resend::Attempt;
use segment::Key;
use sequence::Seq;
use std::collections::VecDeque;
use std::sync::atomic::{Ordering, compiler_fence};

/// Seconds after which a flow that nobody hears of is forgotten, if nothing of it is retained: it is end-to-end then.
/// RFC 5382, section 5 has the same for address translators.
pub const AGEING: u32 = 2 * 3600 + 240;

/// Seconds after which a handshake that is not completed is forgotten (RFC 5382, section 5), and a flow that is end-to-end.
pub const OPENING: u32 = 240;

/// One in so many flows of the table can be in a handshake.
const HANDSHAKES: usize = 4;

/// The number that changes with the meaning of [`Flow`] and [`Block`]. Memory of another layout is not resumed.
pub const LAYOUT: u32 = 5;

/// Bytes of a frame at most, with its headers: what IP can say, and Ethernet with two tags.
const FRAME: usize = 65_535 + 22;

/// Where flows and copies are kept: the caller's memory, so that they may outlive the process. All zero is empty.
pub struct Memory<'m> {
    /// As many as there can be flows.
    pub flows: &'m mut [Flow],
    /// All copies go into these.
    pub blocks: &'m mut [Block],
}

/// Caps of a guest, and a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes retained for a flow at most.
    pub flow_bytes: u32,
    /// Bytes retained for the guest at most, of all its flows.
    pub guest_bytes: u64,
    /// A random number that guests do not know: it keys the table's hash.
    pub seed: u64,
    /// How much of the memory is used until it [grows](EarlyAck::grow).
    pub extent: Extent,
}

impl Default for Config {
    /// 1 MiB a flow, 16 MiB a guest, a seed that everyone knows, and all of the memory.
    fn default() -> Config {
        Config { flow_bytes: 1 << 20, guest_bytes: 16 << 20, seed: 0, extent: Extent::ALL }
    }
}

/// A whole frame, wherever its bytes lie.
pub trait Frame {
    /// The first bytes, as they were checked and delivered: all headers, or as many of them as can be decided on.
    fn head(&self) -> &[u8];
    /// Bytes of the frame.
    fn len(&self) -> usize;
    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Appends all bytes, the head as [`Frame::head`] has it. False if they cannot be had any more.
    fn append_to(&self, out: &mut Vec<u8>) -> bool;
}

impl Frame for [u8] {
    fn head(&self) -> &[u8] {
        self
    }
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
    fn append_to(&self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(self);
        true
    }
}

/// What becomes of a guest's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes where it is for, with the head as it is now.
    Pass,
    /// It says nothing that was not said for the guest already, and is dropped.
    Drop,
}

/// Early ack for one guest.
pub struct EarlyAck<'m> {
    config: Config,
    secrets: Secrets<6>,
    flows: Part<'m, Flow>,
    index: Index,
    /// Grows with every flow that comes in or goes: what was looked up before may be another now.
    changes: u64,
    /// Numbers that are not used.
    free: Vec<u32>,
    /// The flow whose age is looked at next.
    hand: usize,
    pool: Pool<'m>,
    guest: Guest,
    timers: Heap,
    /// Flows whose handshake is not complete, by the time they began.
    opening: Heap,
    /// Flows for which a frame waits to go out.
    pending: VecDeque<u32>,
    /// The copy that was sent last, and how its flow stood before.
    attempt: Option<Attempt>,
    stats: Stats,
    /// The frame being retained, in one piece.
    whole: Vec<u8>,
    /// The frame being written.
    out: Vec<u8>,
}

impl<'m> EarlyAck<'m> {
    /// Starts with no flow, whatever is in the memory.
    pub fn new(memory: Memory<'m>, config: Config, mode: Mode) -> EarlyAck<'m> {
        let mut early = EarlyAck::empty(memory, config, mode);
        early.flows.fill(Flow::default());
        early.pool.sweep(&[]);
        early.free.extend((0..early.flows.len() as u32).rev());
        early
    }

    /// Everything but the lists of what is free.
    fn empty(memory: Memory<'m>, config: Config, mode: Mode) -> EarlyAck<'m> {
        let flows = Part::new(memory.flows, config.extent.flows.min(pool::NONE as usize));
        let usable = flows.len();
        let (mut timers, mut opening) = (Heap::default(), Heap::default());
        timers.grow(usable);
        opening.grow(usable);
        EarlyAck {
            config,
            secrets: Secrets::new(config.seed),
            index: Index::new(usable),
            changes: 0,
            free: Vec::with_capacity(usable),
            flows,
            hand: 0,
            pool: Pool::new(memory.blocks, config.extent.blocks),
            guest: Guest::new(mode),
            timers,
            opening,
            pending: VecDeque::new(),
            attempt: None,
            stats: Stats::default(),
            whole: Vec::with_capacity(FRAME),
            out: Vec::with_capacity(FRAME),
        }
    }

    /// How much of the memory is used.
    pub fn extent(&self) -> Extent {
        Extent { flows: self.flows.len(), blocks: self.pool.len() }
    }

    /// Whether little of that is free, less than a quarter of the flows, of the blocks less than half, as a burst takes many at once: it is
    /// time to [grow](EarlyAck::grow), before something is turned away.
    #[inline]
    pub fn is_short(&self) -> (bool, bool) {
        (self.free.len() < self.flows.len() / 4, self.pool.free_blocks() < self.pool.len() / 2)
    }

    /// Takes more of the memory into use, up to `extent` in all.
    pub fn grow(&mut self, extent: Extent) {
        let before = self.flows.grow(extent.flows.min(pool::NONE as usize));
        let now = self.flows.len();
        (*self.flows)[before..].fill(Flow::default());
        self.free.extend((before as u32..now as u32).rev());
        self.timers.grow(now);
        self.opening.grow(now);
        self.index.grow(now);
        self.pool.grow(extent.blocks);
        // What was looked up is where it was, but where it is to be looked for has changed.
        self.changes += 1;
    }

    /// Sets whether the guest's flows are acknowledged early. Turned off, they are left to their ends, each as soon as nothing is owed to
    /// the guest.
    pub fn set_mode(&mut self, mode: Mode) {
        self.guest.mode = mode;
        if mode == Mode::Off {
            for at in self.known_flows() {
                self.fall_back(at, Fallback::TurnedOff);
                if self.flows[at].state() == State::EndToEnd {
                    self.remove(at);
                }
            }
        }
    }

    /// Notes how the guest's receive ring stands. The caller tells it every round in which frames wait there, and when none
    /// wait any more. Returns when it is to tell it again at the latest: a guest that waits for its CPU gives no other occasion.
    pub fn observe(&mut self, ring: Ring, now: Nanos) -> Nanos {
        if self.guest.is_alive(ring) {
            self.thaw(now);
        }
        self.guest.observe(ring, now)
    }

    /// Whether data are acknowledged early now.
    #[inline]
    pub fn is_engaged(&self, now: Nanos) -> bool {
        self.guest.is_engaged(now)
    }

    /// Bytes retained. Zero means that its flows can be taken from the guest.
    pub fn retained(&self) -> u64 {
        self.guest.retained
    }

    /// Flows in the table.
    pub fn known(&self) -> u32 {
        self.guest.flows
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Every flow that is known.
    pub fn flows(&self) -> impl Iterator<Item = FlowView> + '_ {
        self.flows.iter().filter(|flow| flow.state() != State::Free).map(Flow::view)
    }

    /// The numbers of all flows that are known.
    fn known_flows(&self) -> Vec<usize> {
        (0..self.flows.len()).filter(|at| self.flows[*at].state() != State::Free).collect()
    }

    /// Whether the guest's frames need no look: it has no flows, and will have none.
    #[inline]
    fn is_out(&self) -> bool {
        self.guest.mode == Mode::Off && self.guest.flows == 0
    }

    /// The number of a flow.
    #[inline]
    fn find(&self, key: &Key) -> Option<usize> {
        self.index.find(key.hash(&self.secrets), |at| self.flows[at].key == *key)
    }

    /// Takes in a flow that is not there yet, if there is room.
    fn insert(&mut self, flow: Flow, now: Nanos) -> Option<usize> {
        // Two flows are looked at for each that comes: all are, in the time in which the table fills.
        self.age(now);
        self.age(now);
        let opens = flow.state() == State::Opening;
        if opens {
            self.make_room_for_a_handshake();
        }
        let Some(at) = self.free.pop() else {
            self.stats.fell_back(Fallback::TableFull);
            return None;
        };
        let at = at as usize;
        self.index.insert(flow.key.hash(&self.secrets), at);
        self.changes += 1;
        let guest = &mut self.guest;
        guest.flows += 1;
        guest.unsettled += u32::from(flow.is_unsettled());
        let place = &mut self.flows[at];
        *place = Flow { heard: seconds(now), epoch: guest.epoch, state: State::Free as u8, ..flow };
        // It is a flow when all of it is there.
        compiler_fence(Ordering::Release);
        place.state = flow.state;
        if opens {
            self.opening.push(at as u32, now);
        }
        self.stats.flows += 1;
        Some(at)
    }

    /// Handshakes that are not completed have a part of the table, in which the oldest gives way: senders who begin and never go on
    /// keep nobody else out. The table is as large as it can become, but where it is full before that it does not [grow](EarlyAck::grow).
    fn make_room_for_a_handshake(&mut self) {
        let table = if self.free.is_empty() { self.flows.len() } else { self.flows.most() };
        if self.opening.len() >= (table / HANDSHAKES).max(1)
            && let Some((_, oldest)) = self.opening.peek()
        {
            self.stats.fell_back(Fallback::TableFull);
            self.remove(oldest as usize);
        }
    }

    /// Forgets a flow and its copies.
    fn remove(&mut self, at: usize) {
        if self.flows[at].has(Flags::PENDING) {
            // It would be taken for that of the flow which has the number next.
            self.pending.retain(|waits| *waits as usize != at);
        }
        self.change(at, |flow| flow.step(Event::Forgotten));
        compiler_fence(Ordering::Release);
        self.give_up_copies(at);
        let flow = &self.flows[at];
        self.index.remove(flow.key.hash(&self.secrets), at);
        self.changes += 1;
        let guest = &mut self.guest;
        guest.flows -= 1;
        debug_assert!(guest.flows > 0 || guest.unsettled == 0, "no flow opens or closes where there is none");
        self.timers.remove(at as u32);
        self.opening.remove(at as u32);
        self.free.push(at as u32);
    }

    /// Changes a flow, and counts it among those that open or close as it is then.
    fn change(&mut self, at: usize, change: impl FnOnce(&mut Flow)) {
        let flow = &mut self.flows[at];
        let unsettled = &mut self.guest.unsettled;
        *unsettled -= u32::from(flow.is_unsettled());
        change(flow);
        *unsettled += u32::from(flow.is_unsettled());
    }

    /// Looks at the next flow's age.
    #[inline]
    fn age(&mut self, now: Nanos) {
        let Some(flow) = self.flows.get(self.hand) else { return };
        let quiet = seconds(now).saturating_sub(flow.heard);
        if quiet > OPENING {
            self.forget_if_old(self.hand, quiet);
        }
        self.hand = if self.hand + 1 < self.flows.len() { self.hand + 1 } else { 0 };
    }

    /// Forgets a flow that was not heard of for `quiet` seconds, if that is long for it.
    #[cold]
    fn forget_if_old(&mut self, at: usize, quiet: u32) {
        let flow = &self.flows[at];
        let is_nothing_to_us = matches!(flow.state(), State::Opening | State::EndToEnd) || flow.has(Flags::RESET);
        let limit = if is_nothing_to_us { OPENING } else { AGEING };
        if flow.state() != State::Free && quiet > limit && (is_nothing_to_us || !flow.owes()) {
            self.remove(at);
        }
    }

    /// Leaves a flow to its two ends: at once if nothing is owed to the guest, else when that is brought to it.
    fn fall_back(&mut self, at: usize, reason: Fallback) {
        let flow = &mut self.flows[at];
        if matches!(flow.state(), State::Draining | State::EndToEnd) {
            return;
        }
        flow.fallback = reason.number();
        self.opening.remove(at as u32);
        self.change(at, |flow| flow.step(Event::Anomaly));
        self.stats.fell_back(reason);
        self.settle(at);
    }

    /// Ends a draining flow that owes nothing any more, and a flow all of which the guest has.
    fn settle(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        if flow.owes() || flow.state() == State::Free {
            return;
        }
        if flow.has(Flags::FIN) && flow.guest_ack == flow.seen {
            self.remove(at);
        } else if flow.state() == State::Draining {
            self.change(at, |flow| flow.step(Event::Repaid));
            self.give_up_copies(at);
        } else if flow.retained() == 0 {
            flow.step(Event::HasAll);
        }
    }

    /// Notes that the guest has everything before `ack`, and lets go of the copies.
    fn release(&mut self, at: usize, ack: Seq) {
        let flow = &mut self.flows[at];
        flow.guest_ack = ack;
        // First: nothing before it is owed from now on, and what is not owed may be freed.
        compiler_fence(Ordering::Release);
        if !ack.after(flow.start) {
            return;
        }
        let chain = flow.chain;
        if ack.before(flow.next) {
            self.guest.retained -= u64::from(ack.since(flow.start));
            flow.start = ack;
            flow.chain = self.pool.behind(chain, ack);
        } else {
            self.guest.retained -= u64::from(flow.retained());
            (flow.start, flow.next, flow.chain) = (ack, ack, Chain::EMPTY);
        }
        self.pool.free(chain, flow.chain);
    }

    /// Lets go of all copies of a flow that nobody counts on.
    fn give_up_copies(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let chain = std::mem::take(&mut flow.chain);
        self.guest.retained -= u64::from(flow.retained());
        flow.next = flow.start;
        self.pool.free(chain, Chain::EMPTY);
    }
}

/// Whole seconds of a time.
#[inline]
fn seconds(now: Nanos) -> u32 {
    (now.0 / SECOND) as u32
}

/// Whether two numbers of a connection can stand beside each other: no window is larger than 2^30 (RFC 7323, 2.3).
#[inline]
fn are_near(one: Seq, other: Seq) -> bool {
    one.since(other).wrapping_add(1 << 30) < 1 << 31
}
