//! Early ack: full TCP speed for guests that wait for a CPU.
//!
//! A guest that is not scheduled acknowledges nothing for tens of milliseconds, and senders outside slow down. So data
//! in its ring is acknowledged for it (vSnoop: Kangarlou, Gamage, Kompella, Xu, SC'10). The guest may still discard
//! data that was in order and in its window. So everything acknowledged early is retained and retransmitted to the
//! guest until its own ACK covers it (Snoop: Balakrishnan, Seshan, Amir, Katz, MobiCom'95; RFC 3135, 3.1.2).
//!
//! For each burst the caller [looks up](EarlyAck::look_up) the flows. If any frame has to be noted, it reports every
//! frame that it [put into the guest's ring](EarlyAck::delivered) or that the [guest sent](EarlyAck::from_guest). It
//! reports the [state of the ring](EarlyAck::observe), sends the [waiting ACKs](EarlyAck::next_ack) before the guest's
//! next frames, and on [timeout](EarlyAck::poll_timeout) puts [retransmissions](EarlyAck::on_timeout) into the guest's
//! ring. This module returns verdicts and frames; the caller sends.
//!
//! # Rules
//! 1. Data is acknowledged early only if it is in the guest's ring, verified and retained, and if the guest will accept
//!    it: its sequence and ACK numbers meet RFC 9293, 3.10.7.4, and RFC 5961, 5.2; its timestamp is not old (RFC 7323,
//!    5). Nothing in a segment is trusted before that.
//! 2. Data is never acknowledged beyond the right edge that the guest advertised last; the window in an early ACK ends
//!    at that edge.
//! 3. ACKs never go back. An older ACK in a guest's segment is raised (RFC 9293, 3.10.7.4: a window is accepted with an
//!    ACK that is not older; RFC 5961, 5.2: a much too old one is challenged). A segment without news is then dropped.
//! 4. The timestamp of an early ACK is the guest's last, never extrapolated (RFC 7323, 5.3); its echo is the segment's.
//! 5. No early SACK (RFC 2018, 8: data may be reneged). No early ACK for SYN, FIN, RST, URG, for data out of order or
//!    beyond the window, or for segments marked CE (RFC 3168: the guest must echo that). The guest answers probes that
//!    get none.
//! 6. An early ACK has the guest's next sequence number, and is sent before the guest's next frame.
//! 7. Copies are limited per flow and per guest; at a limit early ACKs stop. Only the guest's ACK frees copies. They
//!    are retransmitted on its duplicate ACKs (RFC 5681, 3.2) and by a timer with backoff (RFC 6298, 5.5).
//! 8. After an anomaly a flow becomes end-to-end for good, once nothing is owed to the guest. If the guest does not
//!    accept what is owed, both ends are reset, again for each further segment of either.
//! 9. Early ack is engaged only while the guest does not drain its ring, and for [`ENGAGED_AFTER_STALL`] after. At
//!    other times the guest is [left alone](watch).
//! 10. Copies move with their flow ([`EarlyAck::export`]), or the flow drains first ([`EarlyAck::set_mode`] with
//!     [`Mode::Off`]). After an export flows are frozen and nothing is acknowledged until the guest runs here again.
//! 11. Off by default.
//!
//! The states of a flow and their transitions are in [`machine`].

mod extent;
mod flags;
mod flow;
mod guest;
mod handshake;
mod inbound;
mod index;
mod lookup;
mod machine;
mod outbound;
mod pool;
mod resend;
mod resume;
mod segment;
mod sequence;
mod stats;
mod transfer;
mod watch;

pub use extent::Extent;
pub use flow::{Flow, FlowView};
pub use guest::{ENGAGED_AFTER_STALL, Mode, Ring, STALL};
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
use extent::InUse;
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

/// Seconds without traffic after which a flow is forgotten, if nothing is owed to the guest; it is end-to-end then.
/// The same as in RFC 5382, section 5, for address translators.
pub const AGEING: u32 = 2 * 3600 + 240;

/// Seconds after which an incomplete handshake is forgotten (RFC 5382, section 5), and a flow that is end-to-end.
pub const OPENING: u32 = 240;

/// One in this many flows of the table may be in a handshake.
const HANDSHAKES: usize = 4;

/// Version of the memory layout of [`Flow`] and [`Block`]. Memory of another version is not resumed.
pub const LAYOUT: u32 = 5;

/// The largest frame in bytes: the largest IP packet, and an Ethernet header with two tags.
const FRAME: usize = 65_535 + 22;

/// The memory for flows and copies. It is the caller's, so that it may outlive the process. All zeros is empty.
pub struct Memory<'m> {
    /// One entry per possible flow.
    pub flows: &'m mut [Flow],
    /// The blocks for copies.
    pub blocks: &'m mut [Block],
}

/// Limits for a guest, and the secret of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most bytes retained for a flow.
    pub flow_bytes: u32,
    /// The most bytes retained for all flows of the guest.
    pub guest_bytes: u64,
    /// The secret key of the table's hash: a random number that guests do not know.
    pub seed: u64,
    /// How much of the memory is used before it [grows](EarlyAck::grow).
    pub extent: Extent,
}

impl Default for Config {
    /// 1 MiB per flow, 16 MiB per guest, a seed that is no secret, and all of the memory.
    fn default() -> Config {
        Config { flow_bytes: 1 << 20, guest_bytes: 16 << 20, seed: 0, extent: Extent::ALL }
    }
}

/// A whole frame, possibly scattered in memory.
pub trait Frame {
    /// The first bytes, as checked and delivered: all headers, or as many as a decision can be based on.
    fn head(&self) -> &[u8];
    /// Bytes of the frame.
    fn len(&self) -> usize;
    /// Whether the frame has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Appends all bytes, starting with those of [`Frame::head`]. False if they are no longer readable.
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

/// The decision about a guest's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward it, with the head as changed.
    Pass,
    /// Drop it: it only repeats what was already acknowledged for the guest.
    Drop,
}

/// Early ack for one guest.
pub struct EarlyAck<'m> {
    config: Config,
    secrets: Secrets<6>,
    flows: InUse<'m, Flow>,
    index: Index,
    /// Counts insertions and removals of flows: an earlier lookup may be stale.
    changes: u64,
    /// Unused flow numbers.
    free: Vec<u32>,
    /// The flow whose age is checked next.
    aging_cursor: usize,
    pool: Pool<'m>,
    guest: Guest,
    timers: Heap,
    /// Flows with an incomplete handshake, by the time of their first SYN.
    opening: Heap,
    /// Flows with a frame to send.
    pending: VecDeque<u32>,
    /// The last retransmission, with the flow's state before it.
    attempt: Option<Attempt>,
    stats: Stats,
    /// The frame being retained, as contiguous bytes.
    whole: Vec<u8>,
    /// The frame being written.
    out: Vec<u8>,
}

impl<'m> EarlyAck<'m> {
    /// Starts without flows, whatever the memory holds.
    pub fn new(memory: Memory<'m>, config: Config, mode: Mode) -> EarlyAck<'m> {
        let mut early = EarlyAck::empty(memory, config, mode);
        early.flows.fill(Flow::default());
        early.pool.sweep(&[]);
        early.free.extend((0..early.flows.len() as u32).rev());
        early
    }

    /// Builds everything except the lists of free flows and blocks.
    fn empty(memory: Memory<'m>, config: Config, mode: Mode) -> EarlyAck<'m> {
        let flows = InUse::new(memory.flows, config.extent.flows.min(pool::NONE as usize));
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
            aging_cursor: 0,
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

    /// Most bytes that are retained for the guest.
    pub fn limit(&self) -> u64 {
        self.config.guest_bytes
    }

    /// How much of the memory is in use.
    pub fn extent(&self) -> Extent {
        Extent { flows: self.flows.len(), blocks: self.pool.len() }
    }

    /// Whether flows and blocks run short, and [`EarlyAck::grow`] should be called before one is refused: less than a
    /// quarter of the flows free; less than half of the blocks, as a burst takes many at once.
    #[inline]
    pub fn is_short(&self) -> (bool, bool) {
        (self.free.len() < self.flows.len() / 4, self.pool.free_blocks() < self.pool.len() / 2)
    }

    /// Puts more of the memory into use, up to `extent` in total.
    pub fn grow(&mut self, extent: Extent) {
        let before = self.flows.grow(extent.flows.min(pool::NONE as usize));
        let now = self.flows.len();
        (*self.flows)[before..].fill(Flow::default());
        self.free.extend((before as u32..now as u32).rev());
        self.timers.grow(now);
        self.opening.grow(now);
        self.index.grow(now);
        self.pool.grow(extent.blocks);
        // Flows keep their numbers, but their slots in the index have moved.
        self.changes += 1;
    }

    /// Sets when data is acknowledged early. When turned off, each flow becomes end-to-end once nothing is owed to the
    /// guest.
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

    /// Notes the state of the guest's receive ring. The caller reports it every round in which frames wait there, and
    /// once when none wait any more. Returns the latest time for the next report: a guest that waits for a CPU causes
    /// no event.
    pub fn observe(&mut self, ring: Ring, now: Nanos) -> Nanos {
        if self.guest.is_alive(ring) {
            self.thaw(now);
        }
        self.guest.observe(ring, now)
    }

    /// Whether data is acknowledged early now.
    #[inline]
    pub fn is_engaged(&self, now: Nanos) -> bool {
        self.guest.is_engaged(now)
    }

    /// Bytes retained. At zero the flows can be dropped without harm to the guest.
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

    /// All flows in the table.
    pub fn flows(&self) -> impl Iterator<Item = FlowView> + '_ {
        self.flows.iter().filter(|flow| flow.state() != State::Free).map(Flow::view)
    }

    /// The numbers of all flows in the table.
    fn known_flows(&self) -> Vec<usize> {
        (0..self.flows.len()).filter(|at| self.flows[*at].state() != State::Free).collect()
    }

    /// Whether frames need no lookup: there are no flows, and there will be none.
    #[inline]
    fn is_off(&self) -> bool {
        self.guest.mode == Mode::Off && self.guest.flows == 0
    }

    /// The number of a flow.
    #[inline]
    fn find(&self, key: &Key) -> Option<usize> {
        self.index.find(key.hash(&self.secrets), |at| self.flows[at].key == *key)
    }

    /// Adds a flow that is not in the table, if there is room. Returns its number.
    fn insert(&mut self, flow: Flow, now: Nanos) -> Option<usize> {
        // Two flows are checked for each new one, so all are checked before the table fills.
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
        let entry = &mut self.flows[at];
        *entry = Flow { last_seen: seconds(now), epoch: guest.epoch, state: State::Free as u8, ..flow };
        // The state is stored last: a process that ends before leaves a free entry.
        compiler_fence(Ordering::Release);
        entry.state = flow.state;
        if opens {
            self.opening.push(at as u32, now);
        }
        self.stats.flows += 1;
        Some(at)
    }

    /// Incomplete handshakes have a limited share of the table, in which the oldest is evicted: a SYN flood excludes no
    /// other flow. The limit counts the table as fully [grown](EarlyAck::grow), unless it is full before that.
    fn make_room_for_a_handshake(&mut self) {
        let table = if self.free.is_empty() { self.flows.len() } else { self.flows.capacity() };
        if self.opening.len() >= (table / HANDSHAKES).max(1)
            && let Some((_, oldest)) = self.opening.peek()
        {
            self.stats.fell_back(Fallback::TableFull);
            self.remove(oldest as usize);
        }
    }

    /// Removes a flow and its copies.
    fn remove(&mut self, at: usize) {
        if self.flows[at].has(Flags::PENDING) {
            // Otherwise the next flow with this number would inherit the frame.
            self.pending.retain(|waiting| *waiting as usize != at);
        }
        self.change(at, |flow| flow.step(Event::Forgotten));
        compiler_fence(Ordering::Release);
        self.drop_copies(at);
        let flow = &self.flows[at];
        self.index.remove(flow.key.hash(&self.secrets), at);
        self.changes += 1;
        let guest = &mut self.guest;
        guest.flows -= 1;
        debug_assert!(guest.flows > 0 || guest.unsettled == 0, "unsettled flows without flows");
        self.timers.remove(at as u32);
        self.opening.remove(at as u32);
        self.free.push(at as u32);
    }

    /// Changes a flow, and updates the count of flows that open or close.
    fn change(&mut self, at: usize, change: impl FnOnce(&mut Flow)) {
        let flow = &mut self.flows[at];
        let unsettled = &mut self.guest.unsettled;
        *unsettled -= u32::from(flow.is_unsettled());
        change(flow);
        *unsettled += u32::from(flow.is_unsettled());
    }

    /// Checks the next flow's age.
    #[inline]
    fn age(&mut self, now: Nanos) {
        let cursor = self.aging_cursor;
        let Some(flow) = self.flows.get(cursor) else { return };
        let quiet = seconds(now).saturating_sub(flow.last_seen);
        if quiet > OPENING {
            self.remove_if_old(cursor, quiet);
        }
        self.aging_cursor = if cursor + 1 < self.flows.len() { cursor + 1 } else { 0 };
    }

    /// Removes a flow without traffic for `quiet` seconds, if that is over its limit.
    #[cold]
    fn remove_if_old(&mut self, at: usize, quiet: u32) {
        let flow = &self.flows[at];
        let is_inactive = matches!(flow.state(), State::Opening | State::EndToEnd) || flow.has(Flags::RESET);
        let limit = if is_inactive { OPENING } else { AGEING };
        if flow.state() != State::Free && quiet > limit && (is_inactive || !flow.owes()) {
            self.remove(at);
        }
    }

    /// Makes a flow end-to-end: at once if nothing is owed to the guest, else after the guest has it.
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

    /// Makes a draining flow that owes nothing end-to-end, and removes a flow whose FIN the guest has acknowledged.
    fn settle(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        if flow.owes() || flow.state() == State::Free {
            return;
        }
        if flow.has(Flags::FIN) && flow.guest_ack == flow.delivered {
            self.remove(at);
        } else if flow.state() == State::Draining {
            self.change(at, |flow| flow.step(Event::Repaid));
            self.drop_copies(at);
        } else if flow.retained() == 0 {
            flow.step(Event::HasAll);
        }
    }

    /// Notes that the guest has everything before `ack`, and frees those copies.
    fn release(&mut self, at: usize, ack: Seq) {
        let flow = &mut self.flows[at];
        flow.guest_ack = ack;
        // This is stored first: what is no longer owed may be freed.
        compiler_fence(Ordering::Release);
        if !ack.after(flow.start) {
            return;
        }
        let chain = flow.chain;
        if ack.before(flow.next) {
            self.guest.retained -= u64::from(ack.since(flow.start));
            flow.start = ack;
            flow.chain = self.pool.rest_after(chain, ack);
        } else {
            self.guest.retained -= u64::from(flow.retained());
            (flow.start, flow.next, flow.chain) = (ack, ack, Chain::EMPTY);
        }
        self.pool.free(chain, flow.chain);
    }

    /// Frees all copies of a flow that no end relies on.
    fn drop_copies(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let chain = std::mem::take(&mut flow.chain);
        self.guest.retained -= u64::from(flow.retained());
        flow.next = flow.start;
        self.pool.free(chain, Chain::EMPTY);
    }
}

/// A time in whole seconds.
#[inline]
fn seconds(now: Nanos) -> u32 {
    (now.0 / SECOND) as u32
}

/// Whether two sequence numbers can be of one window: no window is larger than 2^30 (RFC 7323, 2.3).
#[inline]
fn are_near(one: Seq, other: Seq) -> bool {
    one.since(other).wrapping_add(1 << 30) < 1 << 31
}
