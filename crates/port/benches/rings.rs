//! What the rings of a guest cost per frame: frames go from one vhost-user guest's ring into another's.
//!
//! Made for counting: `valgrind --tool=callgrind --toggle-collect=rings::forward rings split 64 32 1000` counts the
//! instructions of the backend's side alone, for a format, bytes a frame, frames a burst, and bursts.

#[path = "../tests/frontend/guest.rs"]
mod guest;

use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Burst, Control, Key, Poller, Sink, Source, Status};
use guest::{F_IN_ORDER, F_PACKED, Frontend, NO_HEADER, RICH, frame};
use std::time::{Duration, Instant};

/// Entries of each ring.
const SIZE: u16 = 256;
const ALL: Budget = Budget { bytes: u64::MAX, frames: 32 };

/// A backend's port and its guest.
struct Guest {
    port: VhostUser,
    poller: Poller,
    frontend: Frontend,
    next: [u16; 2],
    _directory: tempfile::TempDir,
}

impl Guest {
    fn new(features: u64) -> Guest {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("vif.sock");
        let mut port = VhostUser::listen("bench", &path, 1).expect("a socket").with_packed_rings();
        let poller = Poller::new().expect("a poller");
        port.register(&poller, Key(0)).expect("a poller");
        let frontend = Frontend::connect(&path, SIZE);
        frontend.set_up(features, 2);
        // Without a wait: valgrind has no epoll_pwait2. The connection is event 0, and its messages are events 8.
        (0..64).for_each(|_| [0, 8].iter().for_each(|number| port.event(*number, &poller, Nanos(0))));
        assert_eq!(port.status(), Status::Up);
        Guest { port, poller, frontend, next: [0; 2], _directory: directory }
    }

    /// The next descriptor of a queue.
    fn index(&mut self, queue: usize) -> u16 {
        let index = self.next[queue];
        self.next[queue] = (index + 1) % SIZE;
        index
    }
}

/// Forwards a burst. Alone in a function, so that its instructions can be counted.
#[inline(never)]
fn forward(from: &mut VhostUser, to: &mut VhostUser, burst: &mut Burst, now: Nanos) -> usize {
    let batch = from.offer(burst, ALL, now);
    let frames = batch.len();
    let accepted = to.put(&batch, 0..frames, now).accepted;
    from.consume(accepted);
    from.flush(now);
    to.flush(now);
    accepted
}

/// Moves `bursts` bursts; returns the time that the backend took.
fn run(features: u64, bytes: usize, frames: u16, bursts: u32) -> Duration {
    let (mut from, mut to, mut burst) = (Guest::new(features), Guest::new(features), Burst::new());
    let sent = frame(1, bytes);
    let mut time = Duration::ZERO;
    for round in 0..bursts {
        for _ in 0..frames {
            let (index, place) = (from.index(1), to.index(0));
            from.frontend.transmit(index, NO_HEADER, &sent);
            to.frontend.post_buffer(place, 2048);
        }
        let start = Instant::now();
        let moved = forward(&mut from.port, &mut to.port, &mut burst, Nanos(u64::from(round) * 1_000_000));
        time += start.elapsed();
        assert_eq!(moved, usize::from(frames), "{:?}, {:?}", from.port.status(), to.port.status());
        from.frontend.completed(1);
        to.frontend.completed(0);
    }
    drop((from.poller, to.poller));
    time
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let number = |at: usize, default: u32| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(default);
    let packed = RICH | F_PACKED;
    let formats = [("split", RICH), ("packed", packed), ("in_order", packed | F_IN_ORDER)];
    for (name, features) in formats.into_iter().filter(|(name, _)| words.first().is_none_or(|word| word == name)) {
        let (bytes, frames, bursts) = (number(1, 64), number(2, 32), number(3, 1000));
        let time = run(features, bytes as usize, frames as u16, bursts);
        let each = time.as_nanos() as f64 / f64::from(frames * bursts);
        println!("{name}: {each:.1} ns a frame of {bytes} bytes, {frames} a burst");
    }
}
