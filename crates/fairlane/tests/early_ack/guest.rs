//! A guest made of a tap and a vhost-user frontend: Linux's TCP behind a ring that is left alone while the guest has no CPU.
//!
//! What it takes from the ring it may lose, double or bring out of order before its kernel sees it, as a guest may drop
//! what its driver took.

use crate::frontend::{F_EVENT_IDX, F_GUEST_OFFLOADS, F_MRG_RXBUF, Frontend, HEADER, NO_HEADER, PLAIN, ring};
use fairlane_core::packet::{Checksum, Gso, GsoKind, Offload};
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::software_offload::SoftwareOffload;
use fairlane_port::tap::Tap;
use fairlane_port::{Burst, HEAD, Sink, Source};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Entries of a ring: as many as the frontend's memory has buffers for.
const SIZE: u16 = 128;

/// Bytes of a receive buffer.
const BUFFER: u32 = 2048;

/// How long a guest that runs and finds nothing waits before it looks again.
const IDLE: Duration = Duration::from_micros(50);

/// When a guest has the CPU, and what it does to frames.
#[derive(Clone, Copy, Default)]
pub struct Life {
    /// How long it runs, and how long it waits then; it always runs if absent.
    pub slices: Option<(Duration, Duration)>,
    /// Parts of frames, 0 to 1, that are lost, doubled, and put behind the next.
    pub loss: f64,
    pub doubled: f64,
    pub late: f64,
    /// Whether it completes checksums and takes large frames of TCP itself, as Linux's driver does.
    pub offloads: bool,
}

/// A frame of the ring, and what was left to do on it.
type Taken = (Vec<u8>, Offload);

/// A running guest.
pub struct Guest {
    paused: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    large: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Guest {
    /// Starts a guest in the namespace of the calling thread. Its interface is `eth0`.
    pub fn start(socket: PathBuf, life: Life) -> Guest {
        let (paused, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let large = Arc::new(AtomicU64::new(0));
        let counts = large.clone();
        let tap = Tap::open("eth0").unwrap();
        let (waits, ends) = (paused.clone(), ended.clone());
        let thread = thread::spawn(move || {
            let mut card = Card::new(&socket, tap, life, counts);
            while !ends.load(Ordering::Relaxed) {
                if waits.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                } else {
                    card.turn(&ends);
                }
            }
        });
        Guest { paused, ended, large, thread: Some(thread) }
    }

    /// Takes the CPU from it, or gives it back.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Large frames that reached its kernel with a checksum left to do.
    pub fn large(&self) -> u64 {
        self.large.load(Ordering::Relaxed)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "the guest failed");
    }
}

/// The guest's card and its driver.
struct Card {
    socket: PathBuf,
    frontend: Option<Frontend>,
    tap: Tap,
    burst: Box<Burst>,
    plain: SoftwareOffload,
    /// Descriptors of the transmit ring that are not in use.
    free: VecDeque<u16>,
    /// Frames of the kernel that found no descriptor.
    unsent: VecDeque<Vec<u8>>,
    /// A frame that comes behind the next.
    late: Option<Taken>,
    large: Arc<AtomicU64>,
    life: Life,
    random: StdRng,
    /// When the present slice ends.
    slice: Instant,
    looked: Instant,
    started: Instant,
}

impl Card {
    fn new(socket: &Path, tap: Tap, life: Life, large: Arc<AtomicU64>) -> Card {
        let mut frontend = Frontend::connect(socket, SIZE);
        set_up(&frontend, life);
        (0..SIZE).for_each(|index| frontend.lend(index, BUFFER));
        Card {
            socket: socket.to_owned(),
            frontend: Some(frontend),
            tap,
            burst: Burst::new(),
            plain: SoftwareOffload::default(),
            free: (0..SIZE).collect(),
            unsent: VecDeque::new(),
            late: None,
            large,
            life,
            random: StdRng::seed_from_u64(7),
            slice: Instant::now(),
            looked: Instant::now(),
            started: Instant::now(),
        }
    }

    /// Does what there is to do, or waits for the CPU.
    fn turn(&mut self, ends: &AtomicBool) {
        let now = Instant::now();
        if let Some((run, wait)) = self.life.slices
            && now > self.slice
        {
            thread::sleep(wait);
            self.slice = Instant::now() + run;
        }
        if now - self.looked > Duration::from_millis(5) {
            self.looked = now;
            self.look_for_backend(ends);
        }
        if !self.receive() && !self.transmit() {
            thread::sleep(IDLE);
        }
    }

    /// Goes on with the next backend if this one left.
    fn look_for_backend(&mut self, ends: &AtomicBool) {
        let Some(frontend) = self.frontend.take() else { return };
        let mut fds = [PollFd::new(frontend.stream.as_fd(), PollFlags::empty())];
        let gone = poll(&mut fds, PollTimeout::ZERO).unwrap() > 0;
        self.frontend = Some(if gone {
            while UnixStream::connect(&self.socket).is_err() && !ends.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            if ends.load(Ordering::Relaxed) {
                return;
            }
            // The trial connection is closed by now; the next is the guest's.
            let frontend = frontend.reconnect(&self.socket);
            set_up(&frontend, self.life);
            frontend
        } else {
            frontend
        });
    }

    /// Gives the kernel what is in the ring. False if there was nothing.
    fn receive(&mut self) -> bool {
        let Some(frontend) = &mut self.frontend else { return false };
        let done = frontend.completed(0);
        if done.is_empty() {
            return false;
        }
        // All buffers of a frame are completed at once.
        let mut buffers = done.iter().map(|(head, len)| frontend.lent(*head, *len));
        let mut frames: Vec<Taken> = Vec::new();
        while let Some(mut header) = buffers.next() {
            let mut frame = header.split_off(HEADER.min(header.len()));
            let more = header.get(10..).map_or(0, |number| u16::from_le_bytes([number[0], number[1]]) - 1);
            frame.extend(buffers.by_ref().take(more.into()).flatten());
            let offload = offload(&header, &frame);
            frames.push((frame, offload));
        }
        for (head, _) in &done {
            frontend.lend(*head as u16, BUFFER);
        }
        // The driver's wish to be called, which says how far it is.
        frontend.write(ring(0)[1] + 4 + 2 * u64::from(SIZE), &frontend.used[0].to_le_bytes());
        frontend.kick(0);
        for frame in frames {
            let [lost, doubled, late] =
                [self.life.loss, self.life.doubled, self.life.late].map(|p| self.random.random_bool(p));
            if lost {
                continue;
            }
            if late && self.late.is_none() {
                self.late = Some(frame);
                continue;
            }
            (0..1 + usize::from(doubled)).for_each(|_| self.inject(&frame));
            if let Some(late) = self.late.take() {
                self.inject(&late);
            }
        }
        true
    }

    fn inject(&mut self, (frame, offload): &Taken) {
        let is_large = offload.gso.is_some() && offload.checksum != Checksum::Present;
        self.large.fetch_add(is_large.into(), Ordering::Relaxed);
        let mut filler = self.burst.fill();
        filler.push(frame, *offload);
        let put = self.tap.put(&filler.done(), 0..1, Nanos(0));
        assert_eq!(put.accepted, 1);
    }

    /// Puts what the kernel sends into the ring. False if there was nothing.
    fn transmit(&mut self) -> bool {
        let grant = Budget { bytes: u64::MAX, frames: 8 };
        let batch = self.tap.offer(&mut self.burst, grant, Nanos(self.started.elapsed().as_nanos() as u64));
        let frames = batch.len();
        for frame in batch.frames() {
            let unsent = &mut self.unsent;
            let whole = self.plain.each::<()>(&frame, |bytes| {
                unsent.push_back(bytes.to_vec());
                Ok(())
            });
            whole.unwrap().unwrap();
        }
        self.tap.consume(frames);
        let Some(frontend) = &mut self.frontend else { return false };
        self.free.extend(frontend.completed(1).into_iter().map(|(head, _)| head as u16));
        let mut sent = false;
        while let (Some(_), Some(frame)) = (self.free.front(), self.unsent.front()) {
            frontend.transmit(self.free[0], NO_HEADER, frame);
            self.free.pop_front();
            self.unsent.pop_front();
            sent = true;
        }
        if sent {
            frontend.kick(1);
        }
        sent || frames > 0
    }
}

/// All that the backend must know, as often as one comes.
fn set_up(frontend: &Frontend, life: Life) {
    let offloads = if life.offloads { F_GUEST_OFFLOADS } else { 0 };
    frontend.set_up(PLAIN | F_MRG_RXBUF | F_EVENT_IDX | offloads, 2);
}

/// What virtio's header says was left to do on a frame.
fn offload(header: &[u8], frame: &[u8]) -> Offload {
    let Some([flags, kind, _, _, size @ .., _, _]) = header.first_chunk::<HEADER>() else { return Offload::default() };
    let field = |at: usize| u16::from_le_bytes([size[at], size[at + 1]]);
    let checksum = match flags & 3 {
        0 => Checksum::Present,
        1 => Checksum::Partial { start: field(2), offset: field(4) },
        _ => Checksum::Valid,
    };
    let kind = match kind & 0x7f {
        1 => Some(GsoKind::Tcp4),
        4 => Some(GsoKind::Tcp6),
        _ => None,
    };
    let gso = kind.map(|kind| Gso { kind, ecn: header[1] & 0x80 != 0, size: field(0), header: 0 });
    Offload::new_checked(checksum, gso, frame.len(), &frame[..frame.len().min(HEAD)])
        .expect("the backend keeps the rules")
}
