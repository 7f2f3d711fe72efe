//! Invariants at the end of a cycle: every frame is accounted for, every guest is served, nothing grows, no zombie is left.

use crate::daemon::vif;
use crate::world::{GUESTS, World};
use fairlane_engine::snapshot::{PortState, Snapshot, State};
use std::fs;
use std::thread;
use std::time::Duration;

/// How much the daemon's memory may grow after the first cycle, in KiB.
const MAX_GROWTH: u64 = 8 << 10;

/// The resources that the daemon uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    descriptors: usize,
    threads: usize,
    /// Its own memory, without that of guests, in KiB.
    memory: u64,
}

impl Footprint {
    fn of(pid: u32) -> Footprint {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of /proc/PID/status");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon runs").count();
        Footprint { descriptors, threads: field("Threads:") as usize, memory: field("RssAnon:") }
    }

    /// Whether it is no larger than `first`, except for memory that an allocator keeps.
    fn is_within(self, first: Footprint) -> bool {
        self.descriptors <= first.descriptors
            && self.threads <= first.threads
            && self.memory <= first.memory + MAX_GROWTH
    }
}

/// Checks all invariants. `first` is the footprint after the first cycle.
pub(crate) fn check(world: &mut World, first: &mut Option<Footprint>) {
    assert!(world.daemon.is_running(), "the daemon ended\n{}", world.daemon.log());
    // Frames may still be in flight, and connections of attackers about to close.
    eventually(|| frames_add_up(&world.daemon.snapshot()));
    eventually(|| {
        let snapshot = world.daemon.snapshot();
        let state = |guest: usize| (GUESTS[guest].name, &vif(&snapshot, GUESTS[guest].name).state);
        let down: Vec<_> = world.present().into_iter().map(state).filter(|(_, state)| **state != State::Up).collect();
        if down.is_empty() { Ok(()) } else { Err(format!("not up: {down:?}")) }
    });
    eventually(|| {
        let found = Footprint::of(world.daemon.pid());
        let first = *first.get_or_insert(found);
        if found.is_within(first) { Ok(()) } else { Err(format!("the footprint grew from {first:?} to {found:?}")) }
    });
    let early = world.daemon.snapshot().vifs.into_iter().filter_map(|vif| vif.early_ack);
    let (acks, resets) = early.fold((0, 0), |(acks, resets), early| (acks + early.early_acks, resets + early.resets));
    assert_eq!(resets, 0, "a sender was reset although its guest runs");
    world.journal.write(format_args!("{:?}, {acks} early ACKs", Footprint::of(world.daemon.pid())));
    eventually(|| match zombies() {
        none if none.is_empty() => Ok(()),
        some => Err(format!("zombies: {some:?}")),
    });
}

/// Waits until a condition holds, for at most ten minutes: on a busy machine, the connections of an attacker took almost three minutes.
pub(crate) fn eventually(mut holds: impl FnMut() -> Result<(), String>) {
    for _ in 0..6000 {
        if holds().is_ok() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    holds().unwrap_or_else(|why| panic!("still after ten minutes: {why}"));
}

/// On each link, every received frame was forwarded or dropped, and every frame sent into a wire came out of it.
///
/// A broadcast is counted once at its source and once at each other port, so it adds the number of ports minus two. At both ends of the
/// wire this is a prime number, and only multiples of it are a valid difference. On the other link, early ack also retransmits frames.
fn frames_add_up(snapshot: &Snapshot) -> Result<(), String> {
    for link in &snapshot.links {
        let vifs = snapshot.vifs.iter().filter(|vif| vif.link == link.name).map(|vif| &vif.port);
        let ports: Vec<&PortState> = vifs.chain(&link.uplink).collect();
        let sent: u64 = ports.iter().map(|port| port.sent_frames).sum();
        let received: u64 = ports.iter().map(|port| port.received_frames).sum();
        let dropped: u64 = ports.iter().flat_map(|port| port.drops.values()).sum();
        let copies = ports.len() as u64 - 2;
        let adds_up =
            received + dropped >= sent && (link.name == "lan" || (received + dropped - sent).is_multiple_of(copies));
        if !adds_up {
            return Err(format!("{}: of {sent} frames, {received} arrived and {dropped} were dropped", link.name));
        }
    }
    let uplink = |name| {
        let link = snapshot.links.iter().find(|link| link.name == name);
        link.and_then(|link| link.uplink.as_ref()).expect("both links have a wire")
    };
    let (near, far) = (uplink("near"), uplink("far"));
    for (from, to) in [(near, far), (far, near)] {
        if from.received_frames != to.sent_frames {
            return Err(format!("{} frames went into the wire, and {} came out", from.received_frames, to.sent_frames));
        }
    }
    Ok(())
}

/// Zombie children of this process.
fn zombies() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is mounted").flatten();
    let children = tasks.flat_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let is_zombie = |child: &String| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.contains("State:\tZ")
    };
    children.filter(is_zombie).collect()
}
