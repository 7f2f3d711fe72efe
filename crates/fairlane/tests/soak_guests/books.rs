//! What must hold when all is quiet: each frame is accounted for, every guest is served, nothing grows, nobody is left behind.

use crate::daemon::vif;
use crate::world::{PLACES, World};
use fairlane_engine::snapshot::{PortState, Snapshot, State};
use std::fs;
use std::thread;
use std::time::Duration;

/// How much more of its own memory than after the first cycle the daemon may have, in KiB.
const GROWTH: u64 = 8 << 10;

/// What the daemon holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    descriptors: usize,
    threads: usize,
    /// Memory of its own, without that of guests, in KiB.
    memory: u64,
}

impl Footprint {
    fn of(pid: u32) -> Footprint {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of Linux");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").count();
        Footprint { descriptors, threads: field("Threads:") as usize, memory: field("RssAnon:") }
    }

    /// Whether it is no more than this, but for what an allocator keeps.
    fn is_within(self, first: Footprint) -> bool {
        self.descriptors <= first.descriptors && self.threads <= first.threads && self.memory <= first.memory + GROWTH
    }
}

/// Checks all of it; `first` is what the daemon held after the first cycle.
pub fn balance(world: &mut World, first: &mut Option<Footprint>) {
    assert!(world.daemon.lives(), "the daemon ended\n{}", world.daemon.log());
    // Frames may be on their way, and connections of attackers be about to end.
    eventually(|| frames_add_up(&world.daemon.snapshot()));
    eventually(|| {
        let snapshot = world.daemon.snapshot();
        let state = |guest: usize| (PLACES[guest].name, &vif(&snapshot, PLACES[guest].name).state);
        let lost: Vec<_> = world.present().into_iter().map(state).filter(|(_, state)| **state != State::Up).collect();
        if lost.is_empty() { Ok(()) } else { Err(format!("{lost:?}")) }
    });
    eventually(|| {
        let found = Footprint::of(world.daemon.pid());
        let first = *first.get_or_insert(found);
        if found.is_within(first) { Ok(()) } else { Err(format!("at first {first:?}, and now {found:?}")) }
    });
    let early = world.daemon.snapshot().vifs.into_iter().filter_map(|vif| vif.early_ack);
    let (acks, resets) = early.fold((0, 0), |(acks, resets), early| (acks + early.early_acks, resets + early.resets));
    assert_eq!(resets, 0, "a sender was reset for a guest that lives");
    world.diary.say(format_args!("{:?}, {acks} early ACKs", Footprint::of(world.daemon.pid())));
    eventually(|| match zombies() {
        none if none.is_empty() => Ok(()),
        some => Err(format!("children that nobody waited for: {some:?}")),
    });
}

/// Waits until it holds, for ten minutes at most: connections that an attacker leaves behind took almost three on a busy computer.
pub fn eventually(mut holds: impl FnMut() -> Result<(), String>) {
    for _ in 0..6000 {
        if holds().is_ok() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    holds().unwrap_or_else(|why| panic!("waited ten minutes in vain: {why}"));
}

/// On each link, each frame that was taken was put somewhere, or dropped for a reason; and what went into a wire came out of it.
///
/// A frame for all counts once where it comes from and at each other port, so it is as many too many as there are ports but two. That is
/// a prime number at both ends of the wire: nothing but such frames may make a difference. On the other link early ack sends some again.
fn frames_add_up(snapshot: &Snapshot) -> Result<(), String> {
    for link in &snapshot.links {
        let vifs = snapshot.vifs.iter().filter(|vif| vif.link == link.name).map(|vif| &vif.port);
        let ports: Vec<&PortState> = vifs.chain(&link.uplink).collect();
        let sent: u64 = ports.iter().map(|port| port.sent_frames).sum();
        let received: u64 = ports.iter().map(|port| port.received_frames).sum();
        let dropped: u64 = ports.iter().flat_map(|port| port.drops.values()).sum();
        let many = ports.len() as u64 - 2;
        let adds_up =
            received + dropped >= sent && (link.name == "lan" || (received + dropped - sent).is_multiple_of(many));
        if !adds_up {
            return Err(format!("{}: of {sent} frames {received} arrived and {dropped} were dropped", link.name));
        }
    }
    let uplink = |name| {
        let link = snapshot.links.iter().find(|link| link.name == name);
        link.and_then(|link| link.uplink.as_ref()).expect("both have a wire")
    };
    let (near, far) = (uplink("near"), uplink("far"));
    for (from, to) in [(near, far), (far, near)] {
        if from.received_frames != to.sent_frames {
            return Err(format!("{} frames went into the wire, and {} came", from.received_frames, to.sent_frames));
        }
    }
    Ok(())
}

/// Children of this process that ended and were not waited for.
fn zombies() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("it is there").flatten();
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
