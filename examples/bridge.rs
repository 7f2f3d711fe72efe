//! A bridge between memory ports: two guests and an uplink, without system calls, in virtual time.
//!
//! `cargo run --package fairlane-engine --example bridge`

use fairlane_core::packet::Offload;
use fairlane_core::sched::{self, SchedulerKind, Share};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::{Clock, Manual};
use fairlane_port::Burst;
use fairlane_port::memory::{self, Peer};

/// An Ethernet frame of 60 bytes from one station to another.
fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame
}

/// Two guests with these weights send 5,000 frames each to an external station, and the uplink has room for `room` frames. Returns how
/// many of these each guest sent.
fn sent_by(weights: [u32; 2], room: usize) -> [usize; 2] {
    let scheduler = sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100));
    let mut bridge = Bridge::new("lan", Config { isolate: true, seed: 1 }, scheduler);
    let (uplink, outside) = memory::pair(room);
    bridge.set_uplink(Box::new(uplink));
    let guests: Vec<Peer> = (0..2)
        .map(|guest| {
            let (port, peer) = memory::pair(1000);
            let share = Share::of_weight(weights[guest]);
            bridge
                .add(&format!("guest{guest}"), Box::new(port), share, AntiSpoofing::default(), Nanos(0))
                .expect("no pinned addresses");
            peer
        })
        .collect();
    for (number, guest) in guests.iter().enumerate() {
        for _ in 0..5000 {
            guest.send(&frame(9, number as u8), Offload::default());
        }
    }
    // A worker runs such rounds in a loop. Frames for which the uplink has no room stay in their guest's ring.
    let (clock, mut burst) = (Manual::default(), Burst::new());
    while bridge.round(&mut burst, clock.now(), &clock).frames > 0 {}
    let mut sent = [0; 2];
    while let Some((frame, _)) = outside.receive() {
        sent[usize::from(frame[11])] += 1;
    }
    sent
}

fn main() {
    let [one, other] = sent_by([3, 1], 4000);
    println!("of 4,000 frames the guest with weight 3 sent {one}, the guest with weight 1 {other}");
}

#[test]
fn room_is_shared_by_weight() {
    let [one, other] = sent_by([3, 1], 4000);
    assert_eq!(one + other, 4000);
    // Exact within one budget, 32 frames, for each guest.
    assert!((2936..=3064).contains(&one), "{one}");
}
