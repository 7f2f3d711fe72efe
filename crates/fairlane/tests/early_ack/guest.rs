//! A guest made of a tap and a vhost-user frontend: Linux's TCP with a ring that nobody serves while the guest has no CPU.
//!
//! The guest can lose, duplicate or reorder frames from the ring before its kernel sees them, as a guest may drop frames that its
//! driver has accepted.

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

/// Ring size: as many entries as the frontend's memory has buffers.
const SIZE: u16 = 128;

/// Size of a receive buffer, in bytes.
const BUFFER: u32 = 2048;

/// How long an idle guest waits before it polls again.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// When a guest has a CPU, and which faults it injects.
#[derive(Clone, Copy, Default)]
pub(crate) struct Behavior {
    /// How long it runs and how long it waits then; none if it always runs.
    pub slices: Option<(Duration, Duration)>,
    /// Probabilities, 0 to 1, that a frame is lost, duplicated, or delayed until after the next one.
    pub loss: f64,
    pub duplicated: f64,
    pub delayed: f64,
    /// Whether it accepts partial checksums and large TCP frames, as Linux's driver does.
    pub offloads: bool,
}

/// A frame from the ring with its offload.
type Received = (Vec<u8>, Offload);

/// A running guest.
pub(crate) struct Guest {
    paused: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    large: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Guest {
    /// Starts a guest in the network namespace of the calling thread. Its interface is `eth0`.
    pub(crate) fn start(socket: PathBuf, behavior: Behavior) -> Guest {
        let (paused, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let large = Arc::new(AtomicU64::new(0));
        let counts = large.clone();
        let tap = Tap::open("eth0").unwrap();
        let (waits, ends) = (paused.clone(), ended.clone());
        let thread = thread::spawn(move || {
            let mut card = Card::new(&socket, tap, behavior, counts);
            while !ends.load(Ordering::Relaxed) {
                if waits.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                } else {
                    card.poll(&ends);
                }
            }
        });
        Guest { paused, ended, large, thread: Some(thread) }
    }

    /// Takes the CPU from the guest, or gives it back.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Number of large frames that reached its kernel with a partial checksum.
    pub(crate) fn large(&self) -> u64 {
        self.large.load(Ordering::Relaxed)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "the guest panicked");
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
    /// Frames from the kernel that wait for a descriptor.
    unsent: VecDeque<Vec<u8>>,
    /// A delayed frame.
    delayed: Option<Received>,
    large: Arc<AtomicU64>,
    behavior: Behavior,
    random: StdRng,
    /// When the current slice ends.
    slice_end: Instant,
    checked: Instant,
    started: Instant,
}

impl Card {
    fn new(socket: &Path, tap: Tap, behavior: Behavior, large: Arc<AtomicU64>) -> Card {
        let mut frontend = Frontend::connect(socket, SIZE);
        set_up(&frontend, behavior);
        (0..SIZE).for_each(|index| frontend.post_buffer(index, BUFFER));
        Card {
            socket: socket.to_owned(),
            frontend: Some(frontend),
            tap,
            burst: Burst::new(),
            plain: SoftwareOffload::default(),
            free: (0..SIZE).collect(),
            unsent: VecDeque::new(),
            delayed: None,
            large,
            behavior,
            random: StdRng::seed_from_u64(7),
            slice_end: Instant::now(),
            checked: Instant::now(),
            started: Instant::now(),
        }
    }

    /// Receives and transmits frames, or waits for the CPU.
    fn poll(&mut self, ends: &AtomicBool) {
        let now = Instant::now();
        if let Some((run, wait)) = self.behavior.slices
            && now > self.slice_end
        {
            thread::sleep(wait);
            self.slice_end = Instant::now() + run;
        }
        if now - self.checked > Duration::from_millis(5) {
            self.checked = now;
            self.reconnect_if_gone(ends);
        }
        if !self.receive() && !self.transmit() {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Connects to the next backend if this one is gone.
    fn reconnect_if_gone(&mut self, ends: &AtomicBool) {
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
            // The connection of the check is closed by now; this one is the guest's.
            let frontend = frontend.reconnect(&self.socket);
            set_up(&frontend, self.behavior);
            frontend
        } else {
            frontend
        });
    }

    /// Passes frames from the ring to the kernel. Returns false if there were none.
    fn receive(&mut self) -> bool {
        let Some(frontend) = &mut self.frontend else { return false };
        let done = frontend.completed(0);
        if done.is_empty() {
            return false;
        }
        // All buffers of a frame are completed at once.
        let mut buffers = done.iter().map(|(head, len)| frontend.received_buffer(*head, *len));
        let mut frames: Vec<Received> = Vec::new();
        while let Some(mut header) = buffers.next() {
            let mut frame = header.split_off(HEADER.min(header.len()));
            let more = header.get(10..).map_or(0, |number| u16::from_le_bytes([number[0], number[1]]) - 1);
            frame.extend(buffers.by_ref().take(more.into()).flatten());
            let offload = offload(&header, &frame);
            frames.push((frame, offload));
        }
        for (head, _) in &done {
            frontend.post_buffer(*head as u16, BUFFER);
        }
        // The used event index, which enables a notification and shows the driver's progress.
        frontend.write(ring(0)[1] + 4 + 2 * u64::from(SIZE), &frontend.used[0].to_le_bytes());
        frontend.kick(0);
        for frame in frames {
            let [lost, duplicated, delayed] = [self.behavior.loss, self.behavior.duplicated, self.behavior.delayed]
                .map(|p| self.random.random_bool(p));
            if lost {
                continue;
            }
            if delayed && self.delayed.is_none() {
                self.delayed = Some(frame);
                continue;
            }
            (0..1 + usize::from(duplicated)).for_each(|_| self.inject(&frame));
            if let Some(delayed) = self.delayed.take() {
                self.inject(&delayed);
            }
        }
        true
    }

    fn inject(&mut self, (frame, offload): &Received) {
        let is_large = offload.gso.is_some() && offload.checksum != Checksum::Present;
        self.large.fetch_add(is_large.into(), Ordering::Relaxed);
        let mut filler = self.burst.fill();
        filler.push(frame, *offload);
        let put = self.tap.put(&filler.done(), 0..1, Nanos(0));
        assert_eq!(put.accepted, 1);
    }

    /// Posts frames from the kernel to the ring. Returns false if there were none.
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

/// Sends the setup that each new backend needs.
fn set_up(frontend: &Frontend, behavior: Behavior) {
    let offloads = if behavior.offloads { F_GUEST_OFFLOADS } else { 0 };
    frontend.set_up(PLAIN | F_MRG_RXBUF | F_EVENT_IDX | offloads, 2);
}

/// The offload in a frame's virtio header.
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
        .expect("the backend writes valid headers")
}
