//! A port written from scratch: a mirror, which returns each frame to its sender.
//!
//! `cargo run --package fairlane-engine --example port`

use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::{self, Budget, SchedulerKind, Share};
use fairlane_core::stats::DropReason;
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::{Clock, Manual};
use fairlane_port::{Batch, Burst, Control, Put, Refusal, Room, Sink, Source, Status, Wanted, memory};
use std::collections::VecDeque;
use std::ops::Range;

/// The most frames that the mirror holds. Further frames wait in their senders' rings.
const ROOM: usize = 64;

/// The port.
#[derive(Default)]
struct Mirror {
    frames: VecDeque<(Vec<u8>, Offload)>,
}

impl Source for Mirror {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let mut filler = burst.fill();
        filler.push_all(budget, self.frames.iter().map(|(frame, offload)| (&frame[..], *offload)));
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        self.frames.drain(..frames);
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        !self.frames.is_empty()
    }
}

impl Sink for Mirror {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let mut accepted = 0;
        for index in frames {
            if self.frames.len() == ROOM {
                return Put { accepted, refusal: Some(Refusal::Full) };
            }
            let mut bytes = Vec::new();
            // Part of a frame may still be in guest memory, and reading it may fail.
            if !batch.read(index, &mut bytes) {
                return Put { accepted, refusal: Some(Refusal::Never(DropReason::Malformed)) };
            }
            if let Some((to, from)) = bytes.get_mut(..12).map(|addresses| addresses.split_at_mut(6)) {
                to.swap_with_slice(from);
            }
            self.frames.push_back((bytes, batch.offload(index)));
            accepted += 1;
        }
        Put { accepted, refusal: None }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        if self.frames.len() < ROOM { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Mirror {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        (wanted.frames && !self.frames.is_empty()) || (wanted.room && self.frames.len() < ROOM)
    }

    fn status(&self) -> Status {
        Status::Up
    }
}

/// A guest sends `count` frames to a mirror as its uplink. Returns the frames that came back.
fn mirrored(count: u8) -> Vec<Vec<u8>> {
    let scheduler = sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100));
    let mut bridge = Bridge::new("lan", Config { isolate: false, seed: 1 }, scheduler);
    bridge.set_uplink(Box::new(Mirror::default()));
    let (port, guest) = memory::pair(1000);
    let share = Share::of_weight(100);
    bridge.add("guest", Box::new(port), share, AntiSpoofing::default(), Nanos(0)).expect("no pinned addresses");
    for number in 0..count {
        let mut frame = vec![number; 60];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        guest.send(&frame, Offload::default());
    }
    let (clock, mut burst) = (Manual::default(), Burst::new());
    while bridge.round(&mut burst, clock.now(), &clock).frames > 0 {}
    std::iter::from_fn(|| guest.receive()).map(|(frame, _)| frame).collect()
}

fn main() {
    println!("{} of 200 frames came back", mirrored(200).len());
}

#[test]
fn every_frame_comes_back_in_order() {
    let frames = mirrored(200);
    assert_eq!(frames.iter().map(|frame| frame[59]).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
    assert!(frames.iter().all(|frame| frame[..6] == [2, 0, 0, 0, 0, 1]));
}
