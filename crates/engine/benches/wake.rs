//! The cost of waking up for one frame: what a worker does between two sleeps, with a guest's card over vhost-user.
//!
//! The bench plays the guest, too, so count `woken` alone: `valgrind --tool=callgrind --toggle-collect='*woken*'`.

#[path = "../../port/tests/frontend/guest.rs"]
mod guest;

use criterion::{Criterion, criterion_group, criterion_main};
use fairlane_core::PortId;
use fairlane_core::packet::Offload;
use fairlane_core::sched::{self, SchedulerKind, Share};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::{Clock, Monotonic};
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Burst, Key, Poller, memory};
use guest::{F_EVENT_IDX, Frontend, HEADER, NO_HEADER, RICH};
use std::path::Path;

/// A port's descriptors by number: its socket, its frontend's connection, the kick of the transmit queue.
const SOCKET: u32 = 0;
const CONNECTION: u32 = 8;
const KICK: u32 = 17;

/// Messages that a frontend sends until its queues run.
const MESSAGES: usize = 40;

/// Entries of a ring.
const SIZE: u16 = 16;

/// The time, in which nobody works: under a tool as slow as callgrind messages would take so long that they are delayed.
struct Unworked(Monotonic);

impl Clock for Unworked {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn worked(&self) -> Nanos {
        Nanos(0)
    }
}

/// A link with guests that are all connected, and a peer behind its uplink.
struct Link {
    bridge: Bridge,
    burst: Box<Burst>,
    clock: Unworked,
    poller: Poller,
    outside: memory::Peer,
    guests: Vec<Frontend>,
    sent: u16,
}

impl Link {
    fn new(guests: u16, directory: &Path) -> Link {
        let (uplink, outside) = memory::pair(8);
        let mut bridge = Bridge::new(
            "lan",
            Config { isolate: true, seed: 1 },
            sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100)),
        );
        bridge.set_uplink(Box::new(uplink));
        let (poller, clock) = (Poller::new().expect("a poller"), Unworked(Monotonic::new()));
        let mut link = Link { bridge, burst: Burst::new(), clock, poller, outside, guests: Vec::new(), sent: 0 };
        for number in 1..=guests {
            let path = directory.join(number.to_string());
            let port = VhostUser::listen("guest", &path, 1).expect("a socket");
            let share = Share::of_weight(100);
            let id = link
                .bridge
                .add("guest", Box::new(port), share, AntiSpoofing::default(), Nanos(0))
                .expect("own addresses");
            link.bridge.port(id).expect("it was added").register(&link.poller, Key(id.0)).expect("a poller");
            let frontend = Frontend::connect(&path, SIZE);
            frontend.set_up(RICH | F_EVENT_IDX, 2);
            link.guests.push(frontend);
            link.served(&[(id, SOCKET)]);
            (0..MESSAGES).for_each(|_| link.served(&[(id, CONNECTION)]));
        }
        (0..100).for_each(|_| link.exchange());
        link
    }

    /// What a worker does from a wakeup by these events until it sleeps again, without the system calls for both.
    #[inline(never)]
    fn served(&mut self, events: &[(PortId, u32)]) {
        self.bridge.disable_notifications();
        let mut now = self.clock.now();
        for (port, number) in events {
            self.bridge.event(*port, *number, &self.poller, &mut now, &self.clock);
        }
        loop {
            let round = self.bridge.round(&mut self.burst, now, &self.clock);
            std::hint::black_box(self.bridge.next_event());
            now = self.clock.now();
            if !round.busy && !self.bridge.enable_notifications() {
                return;
            }
        }
    }

    /// [`Link::served`] once all guests are connected.
    #[inline(never)]
    fn woken(&mut self, events: &[(PortId, u32)]) {
        self.served(events);
    }

    /// The first guest sends a frame to the uplink, and receives one from there.
    fn exchange(&mut self) {
        let guest = &mut self.guests[0];
        let slot = self.sent % SIZE;
        self.sent = self.sent.wrapping_add(1);
        guest.post_buffer(slot, 0x1000);
        let frame = [&[2, 0, 0, 0, 1, 0], &[2, 0, 0, 0, 0, 1][..], &[8; 52]].concat();
        guest.transmit(slot, NO_HEADER, &frame);
        self.woken(&[(PortId(1), KICK)]);
        assert!(self.outside.receive().is_some(), "the frame left");
        self.outside.send(&[&frame[6..12], &frame[..6], &frame[12..]].concat(), Offload::default());
        self.woken(&[]);
        let guest = &mut self.guests[0];
        assert_eq!(guest.completed(1).len(), 1);
        let received = guest.completed(0);
        assert_eq!(received.len(), 1, "one came back");
        assert_eq!(received[0].1 as usize, HEADER + frame.len());
    }
}

fn wakes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wake");
    for guests in [1, 100] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut link = None;
        group.bench_function(format!("{guests}"), |bencher| {
            let link = link.get_or_insert_with(|| Link::new(guests, directory.path()));
            bencher.iter(|| link.exchange());
        });
    }
}

criterion_group!(benches, wakes);
criterion_main!(benches);
