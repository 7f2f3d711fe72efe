//! Frontends that send messages or reconnect without end: their part of the worker's time is bounded and charged to them, in
//! virtual time.

use crate::frontend::{self, F_VERSION_1, Frontend, GUEST, MEMORY, NO_HEADER, RICH, SET_MEM_TABLE, USER};
use crate::support::{Ledger, Link, Turns, weight};
use fairlane_core::PortId;
use fairlane_core::switch::AntiSpoofing;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_engine::clock::Clock;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Burst, Key, Poller, Status};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::cell::Cell;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tempfile::TempDir;

/// The time to handle a message.
const MESSAGE: u64 = 300_000;
/// The interval of polls of the descriptors.
const ROUND: Nanos = Nanos::from_micros(200);
/// Rounds in two seconds.
const ROUNDS: u64 = 2 * SECOND / ROUND.0;
/// Message time allowed in them: 20 ms at once, and a hundredth of the time.
const HEARD: u64 = (20_000_000 + 2 * SECOND / 100) / MESSAGE;

/// A clock that is set by hand, whose thread has worked for a message's time at each reading.
#[derive(Default)]
struct Dear {
    now: Cell<Nanos>,
    worked: Cell<u64>,
}

impl Clock for Dear {
    fn now(&self) -> Nanos {
        self.now.get()
    }
    fn worked(&self) -> Nanos {
        self.worked.set(self.worked.get() + MESSAGE);
        Nanos(self.worked.get())
    }
}

/// A link with two neighbours and a vhost-user card, driven as by a worker.
struct Flooded {
    link: Link,
    clock: Dear,
    burst: Box<Burst>,
    poller: Poller,
    card: PortId,
    path: PathBuf,
    charged: Arc<AtomicU64>,
    /// Number of events given to the card.
    heard: u64,
    /// Frames that a neighbour sent, and that the other received.
    sent: u64,
    received: u64,
    _dir: TempDir,
}

impl Flooded {
    fn new() -> Flooded {
        let (dir, path) = frontend::place();
        let charged = Arc::new(AtomicU64::new(0));
        let ledger = Ledger { turns: Turns::of(32), charged: charged.clone() };
        let mut link = Link::new(Box::new(ledger), 2, 1000);
        let port = VhostUser::listen("flood", &path, 1).unwrap();
        let card = link.bridge.add("flood", Box::new(port), weight(1), AntiSpoofing::default(), Nanos(0)).unwrap();
        let poller = Poller::new().unwrap();
        link.bridge.port(card).unwrap().register(&poller, Key(0)).unwrap();
        charged.store(0, Relaxed);
        let (clock, burst) = (Dear::default(), Burst::new());
        Flooded { link, clock, burst, poller, card, path, charged, heard: 0, sent: 0, received: 0, _dir: dir }
    }

    /// Polls descriptors and runs a round in which a neighbour sends a frame. Returns when it must be called again at the latest.
    fn turn(&mut self) -> Nanos {
        let mut ready = Vec::new();
        self.poller.wait(Nanos(0), &mut ready).unwrap();
        let mut now = self.clock.now();
        for (_, number) in ready {
            self.heard += 1;
            self.link.bridge.event(self.card, number, &self.poller, &mut now, &self.clock);
        }
        self.link.send(1, 2, self.sent);
        self.sent += 1;
        let round = self.link.bridge.round(&mut self.burst, now, &self.clock);
        self.received += self.link.received(2).len() as u64;
        self.clock.now.set(now + ROUND);
        round.next
    }

    fn status(&mut self) -> Status {
        self.link.bridge.port(self.card).unwrap().status()
    }

    #[track_caller]
    fn assert_bounded(&self) {
        assert!(self.heard <= HEARD + 2, "{} messages were heard, and {HEARD} would be right", self.heard);
        assert!(self.heard >= HEARD - 2, "only {} messages were heard, and {HEARD} would be right", self.heard);
        assert_eq!((self.sent, self.received), (ROUNDS, ROUNDS), "neighbours lose nothing");
    }
}

#[test]
fn a_flood_of_memory_tables_is_charged_and_throttled() {
    let mut flooded = Flooded::new();
    let mut frontend = Frontend::connect(&flooded.path, 8);
    // A booting machine is served at once: its connection, sixteen messages, and the final empty read.
    frontend.set_up(RICH, 2);
    for _ in 0..20 {
        flooded.turn();
    }
    assert_eq!(flooded.status(), Status::Up);
    flooded.clock.now.set(Nanos(10 * SECOND));
    (flooded.heard, flooded.sent, flooded.received) = (0, 0, 0);

    // Its memory, and 31 pages of it again at other addresses.
    let pages = (1..32u64).flat_map(|at| [GUEST + MEMORY + at * 4096, 4096, USER + MEMORY + at * 4096, at * 4096]);
    let table: Vec<u64> = [32, GUEST, MEMORY, USER, 0].into_iter().chain(pages).collect();
    let payload: Vec<u8> = table.iter().flat_map(|long| long.to_ne_bytes()).collect();
    frontend.stream.set_nonblocking(true).unwrap();
    let (mut answered, mut replies) = (0, [0; 4096]);
    for _ in 0..ROUNDS {
        // With replies requested. Replies without room in the socket are not sent.
        frontend.send(SET_MEM_TABLE, 9, &payload, &[frontend.memory.as_raw_fd(); 32]);
        flooded.turn();
        answered += frontend.stream.read(&mut replies).map_or(0, |bytes| bytes / 20);
    }
    flooded.assert_bounded();
    assert_eq!(answered as u64, flooded.heard, "each was carried out");

    // Its next frame is charged for all of them.
    let (before, heard) = (flooded.charged.load(Relaxed), flooded.heard);
    frontend.transmit(0, NO_HEADER, &frontend::frame(1, 60));
    frontend.kick(1);
    flooded.turn();
    assert_eq!(frontend.completed(1).len(), 1, "its frames pass though its messages wait");
    let paid = flooded.charged.load(Relaxed) - before;
    assert!(paid >= heard * MESSAGE, "{paid} ns for {heard} messages");
}

#[test]
fn endless_reconnects_are_throttled() {
    let mut flooded = Flooded::new();
    let address = UnixAddr::new(&flooded.path).unwrap();
    for _ in 0..ROUNDS {
        // It does not block once the backlog is full.
        let caller: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
        let _ = connect(caller.as_raw_fd(), &address);
        drop(caller);
        if flooded.turn() == Nanos::NEVER {
            // It is heard. What the last caller left is closed in a thread, which no clock set by hand may overtake.
            flooded.poller.wait(Nanos(SECOND), &mut Vec::new()).unwrap();
        }
    }
    flooded.assert_bounded();
}

#[test]
fn a_sleeping_worker_wakes_for_throttled_messages() {
    let mut flooded = Flooded::new();
    let frontend = Frontend::connect(&flooded.path, 8);
    let unheard = loop {
        frontend.send_longs(frontend::SET_FEATURES, &[F_VERSION_1], &[]);
        let next = flooded.turn();
        if next != Nanos::NEVER {
            break next;
        }
        assert!(flooded.heard < 1000, "it is heard for ever");
    };
    let heard = flooded.heard;
    flooded.turn();
    assert_eq!(flooded.heard, heard);
    flooded.clock.now.set(unheard);
    // The first round enables its socket, the second handles it.
    flooded.turn();
    flooded.turn();
    assert_eq!(flooded.heard, heard + 1);
}
