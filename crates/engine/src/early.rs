//! Early ack at a guest's port: shows the frames of both directions to [`fairlane_core::ack`] and applies its verdicts.
//!
//! ACKs sent for the guest are frames of the guest: they precede its next frames, and pass through the scheduler and the switch at
//! its expense. So the rest of the datapath need not know of them. They are composed when it is the guest's turn, with the newest
//! numbers: at most one per flow waits, and no flow's ACK displaces another's.

use fairlane_core::ack::{Direction, FlowView, Frame, ImportError, LookupBatch, Mode, Stats, Verdict};
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::persistent::PersistentState;
use fairlane_port::trace::{self, Early as What};
use fairlane_port::{BURST, Batch, Burst, HEAD, Head, Port};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The file of a vif's early ack, in a directory beside the control socket, so that backends do not share it.
pub(crate) fn file(control: &Path, vif: &str) -> PathBuf {
    // The names of found Xen cards contain a slash.
    let name = vif.replace('%', "%25").replace('/', "%2F");
    let mut directory = control.to_owned().into_os_string();
    directory.push(".early-ack");
    PathBuf::from(directory).join(name)
}

/// Early ack of one guest.
pub(crate) struct Early {
    kept: PersistentState,
    mode: Mode,
    /// Frames of early ack that were offered and not consumed yet.
    acks: VecDeque<Short>,
    judged: Judged,
    /// The frame being offered.
    sights: Vec<LookupBatch>,
    /// Whether the last offer came from the ring.
    from_ring: bool,
}

/// A frame no longer than a burst's head.
struct Short {
    len: u8,
    bytes: [u8; HEAD],
}

impl Short {
    fn new(frame: &[u8]) -> Short {
        let mut bytes = [0; HEAD];
        bytes[..frame.len()].copy_from_slice(frame);
        Short { len: frame.len() as u8, bytes }
    }
}

/// Frames to forward, with a bit for each one to drop.
pub(crate) struct Offered<'a> {
    pub batch: Batch<'a>,
    pub suppressed: u32,
}

const _: () = assert!(BURST == u32::BITS as usize);

impl Early {
    /// Opens a file and resumes from it, or creates it.
    ///
    /// # Errors
    /// The file cannot be opened or mapped.
    pub(crate) fn open(path: &Path, mode: Mode, now: Nanos) -> io::Result<Early> {
        Ok(Early {
            kept: PersistentState::open(path, mode, now)?,
            mode,
            acks: VecDeque::with_capacity(BURST),
            judged: Judged::default(),
            sights: Vec::with_capacity(BURST),
            from_ring: true,
        })
    }

    /// Changes the mode.
    pub(crate) fn set(&mut self, mode: Mode) {
        self.mode = mode;
        self.kept.with(|early| early.set_mode(mode));
    }

    /// Whether it is turned off and owes the guest nothing.
    pub(crate) fn is_over(&self) -> bool {
        self.mode == Mode::Off && self.kept.look(|early| early.retained()) == 0
    }

    /// Forgets all flows.
    pub(crate) fn discard(self) {
        self.kept.discard();
    }

    /// Closes the file, for another process. Returns its path, and the mode.
    pub(crate) fn leave(self) -> (PathBuf, Mode) {
        (self.kept.path().to_owned(), self.mode)
    }

    /// Whether frames of early ack wait to be sent.
    #[inline]
    pub(crate) fn waiting(&self) -> bool {
        !self.acks.is_empty() || self.kept.look(|early| early.has_acks())
    }

    /// Offers the next frames to forward: first frames of the ring that were judged already, then ACKs, then further frames of the
    /// ring.
    pub(crate) fn offer<'a>(
        &'a mut self,
        vif: &str,
        port: &'a mut dyn Port,
        burst: &'a mut Burst,
        budget: Budget,
        now: Nanos,
    ) -> Offered<'a> {
        self.from_ring = !self.waiting() || !self.judged.is_empty();
        if !self.from_ring {
            let Early { kept, acks, .. } = self;
            let before = acks.len();
            kept.with(|early| {
                while acks.len() < BURST
                    && let Some(ack) = early.next_ack()
                {
                    acks.push_back(Short::new(ack));
                }
            });
            if acks.len() > before {
                trace::early_ack(vif, (acks.len() - before) as u64, What::Ack);
            }
            let mut filler = burst.fill();
            filler.push_all(budget, self.acks.iter().map(|ack| (&ack.bytes[..ack.len.into()], Offload::default())));
            return Offered { batch: filler.done(), suppressed: 0 };
        }
        let batch = port.offer(burst, budget, now);
        if !self.judged.are_of(&batch) {
            let Early { kept, judged, sights, .. } = self;
            judged.clear();
            kept.with(|early| {
                if early.look_up(sights, Direction::Out, shown(&batch, 0..batch.len()), now) {
                    judged
                        .judge(&batch, |at, head, offload| early.from_guest(&sights[at], head, offload.checksum, now));
                }
            });
        }
        if self.judged.is_empty() {
            return Offered { batch, suppressed: 0 };
        }
        Offered { batch: batch.amended(self.judged.heads()), suppressed: self.judged.suppressed }
    }

    /// Consumes the first frames of the last offer.
    pub(crate) fn consume(&mut self, port: &mut dyn Port, frames: usize) {
        if self.from_ring {
            port.consume(frames);
            self.judged.consumed(frames);
        } else {
            self.acks.drain(..frames);
        }
    }

    /// Records frames that were put into the guest's ring.
    pub(crate) fn delivered(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) {
        let Early { kept, sights, .. } = self;
        kept.with(|early| {
            if !early.look_up(sights, Direction::In, shown(batch, frames.clone()), now) {
                return;
            }
            for (index, sight) in frames.zip(sights.iter()) {
                let checksum = batch.offload(index).checksum;
                early.delivered(sight, &Put { batch, index }, checksum, now);
            }
        });
    }

    /// Records the state of the ring, and retransmits what is due. Returns whether something was put into the ring, and when to
    /// call it again at the latest.
    pub(crate) fn tend(&mut self, vif: &str, port: &mut dyn Port, burst: &mut Burst, now: Nanos) -> (bool, Nanos) {
        self.kept.with(|early| {
            early.observe(port.ring(), now);
            let mut put = false;
            while early.poll_timeout() <= now
                && let Some(frame) = early.on_timeout(now)
            {
                let mut filler = burst.fill();
                filler.push(frame, Offload::default());
                if port.put(&filler.done(), 0..1, now).accepted > 0 {
                    put = true;
                    trace::early_ack(vif, 1, What::Retransmit);
                } else {
                    early.refused(now);
                }
            }
            (put, early.poll_timeout())
        })
    }

    /// Records the state of the ring after a round, which may have set timers. Returns when to call it, or [`Early::tend`], again at the
    /// latest.
    pub(crate) fn watch(&mut self, port: &dyn Port, now: Nanos) -> Nanos {
        self.kept.with(|early| early.observe(port.ring(), now).min(early.poll_timeout()))
    }

    /// Exports the flows with their copies, for another backend. Nothing is acknowledged here from then on.
    pub(crate) fn export(&mut self) -> Vec<u8> {
        self.kept.with(|early| early.export())
    }

    /// Imports flows from another backend. Returns their number.
    ///
    /// # Errors
    /// The bytes are not a valid export.
    pub(crate) fn import(&mut self, export: &[u8], now: Nanos) -> Result<u32, ImportError> {
        self.kept.import(export, now)
    }

    /// All known flows.
    pub(crate) fn flows(&self) -> Vec<FlowView> {
        self.kept.look(|early| early.flows().collect())
    }

    /// Its state for a snapshot.
    pub(crate) fn seen(&self, now: Nanos) -> Seen {
        let mode = self.mode;
        self.kept.look(|early| Seen {
            mode,
            engaged: early.is_engaged(now),
            flows: early.known(),
            retained: early.retained(),
            limit: early.limit(),
            stats: early.stats(),
        })
    }
}

/// The state of a guest's early ack.
pub(crate) struct Seen {
    pub mode: Mode,
    pub engaged: bool,
    pub flows: u32,
    pub retained: u64,
    pub limit: u64,
    pub stats: Stats,
}

/// A frame that was put into the ring, read only if the lookup needs more than the head.
struct Put<'b> {
    batch: &'b Batch<'b>,
    index: usize,
}

impl Frame for Put<'_> {
    fn head(&self) -> &[u8] {
        self.batch.head(self.index)
    }
    fn len(&self) -> usize {
        self.batch.bytes(self.index) as usize
    }
    fn append_to(&self, out: &mut Vec<u8>) -> bool {
        self.batch.read(self.index, out)
    }
}

/// What is looked up of frames.
fn shown<'b>(batch: &'b Batch<'_>, frames: Range<usize>) -> impl Iterator<Item = (&'b [u8], usize)> {
    frames.map(|index| (batch.head(index), batch.bytes(index) as usize))
}

/// Frames at the front of the ring that were judged and not consumed since, because there was no room for them.
///
/// A frame is judged once, and its verdict kept here. The saved head tells whether the frame is still at the front of the ring.
struct Judged {
    raw: Box<[Head; BURST]>,
    amended: Box<[Head; BURST]>,
    lens: [u64; BURST],
    /// The remaining frames.
    left: Range<usize>,
    /// A bit for each remaining frame that is to be dropped.
    suppressed: u32,
}

impl Default for Judged {
    fn default() -> Judged {
        let heads = || Box::new([Head([0; HEAD]); BURST]);
        Judged { raw: heads(), amended: heads(), lens: [0; BURST], left: 0..0, suppressed: 0 }
    }
}

impl Judged {
    fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Forgets all verdicts.
    fn clear(&mut self) {
        (self.left, self.suppressed) = (0..0, 0);
    }

    /// Whether these frames are at the front of a batch.
    fn are_of(&self, batch: &Batch<'_>) -> bool {
        let same = |(frame, at): (fairlane_port::Frame<'_>, usize)| {
            let head = frame.head();
            frame.bytes() == self.lens[at] && *head == self.raw[at].0[..head.len()]
        };
        !self.is_empty() && !batch.is_empty() && batch.frames().zip(self.left.clone()).all(same)
    }

    /// Judges all frames of a batch.
    fn judge(&mut self, batch: &Batch<'_>, mut judge: impl FnMut(usize, &mut [u8], Offload) -> Verdict) {
        (self.left, self.suppressed) = (0..batch.len(), 0);
        for at in 0..batch.len() {
            let head = batch.head(at);
            self.lens[at] = batch.bytes(at);
            self.raw[at].0[..head.len()].copy_from_slice(head);
            let amended = &mut self.amended[at].0[..head.len()];
            amended.copy_from_slice(head);
            if judge(at, amended, batch.offload(at)) == Verdict::Drop {
                self.suppressed |= 1 << at;
            }
        }
    }

    /// The heads as they are to be sent.
    fn heads(&self) -> &[Head] {
        &self.amended[self.left.clone()]
    }

    /// Removes the first frames, which were consumed.
    fn consumed(&mut self, frames: usize) {
        self.left.start = (self.left.start + frames).min(self.left.end);
        self.suppressed = self.suppressed.checked_shr(frames as u32).unwrap_or(0);
    }
}
