//! A custom scheduler, driven in virtual time: strict priority to the port with the highest weight.
//!
//! `cargo run --package fairlane-engine --example scheduler`

use fairlane_core::PortId;
use fairlane_core::sched::{After, Budget, Cost, Next, Scheduler, Share};
use fairlane_core::time::{Nanos, SECOND};
use std::collections::BTreeMap;

/// Always serves the active port with the highest weight.
#[derive(Default)]
struct Strict {
    weights: BTreeMap<PortId, u32>,
    active: Vec<PortId>,
}

impl Scheduler for Strict {
    fn configure(&mut self, port: PortId, share: Share, _now: Nanos) {
        self.weights.insert(port, share.weight);
    }

    fn remove(&mut self, port: PortId) {
        self.weights.remove(&port);
        self.active.retain(|active| *active != port);
    }

    fn activate(&mut self, port: PortId, _now: Nanos) {
        if self.weights.contains_key(&port) && !self.active.contains(&port) {
            self.active.push(port);
        }
    }

    fn next(&mut self, _now: Nanos) -> Next {
        // The port is off the list until it is charged, so that it is not named twice.
        let Some(place) = (0..self.active.len()).max_by_key(|place| self.weights[&self.active[*place]]) else {
            return Next::Idle;
        };
        Next::Serve(self.active.swap_remove(place), Budget { bytes: 16 << 10, frames: 32 })
    }

    fn charge(&mut self, port: PortId, _cost: Cost, after: After, now: Nanos) {
        if after == After::Backlogged {
            self.activate(port, now);
        }
    }

    fn defer(&mut self, port: PortId, now: Nanos) {
        self.activate(port, now);
    }
}

/// The link's rate in bit/s, and the bytes of each frame.
const RATE: u64 = 100_000_000;
const FRAME: u64 = 1514;

/// Two ports share the link for a second. One is always backlogged; the other has the higher weight and offers 30 Mbit/s. Returns the
/// share of the link that each used.
fn shares(mut scheduler: Box<dyn Scheduler>) -> [f64; 2] {
    let (bulk, voice) = (PortId(1), PortId(2));
    let share = |weight| Share::of_weight(weight);
    scheduler.configure(bulk, share(1), Nanos(0));
    scheduler.configure(voice, share(2), Nanos(0));
    scheduler.activate(bulk, Nanos(0));
    let (mut now, mut sent, mut offered) = (Nanos(0), [0; 2], 0);
    while now < Nanos(SECOND) {
        let due = now.0 * 30_000_000 / 8 / SECOND / FRAME;
        if due > offered {
            scheduler.activate(voice, now);
        }
        match scheduler.next(now) {
            Next::Serve(port, budget) => {
                let waiting = if port == bulk { u64::MAX } else { due - offered };
                let frames = waiting.min(budget.frames.into()).min(budget.bytes.div_ceil(FRAME));
                let bytes = frames * FRAME;
                if port == voice {
                    offered += frames;
                }
                sent[port.index() - 1] += bytes;
                now += Nanos(bytes * 8 * SECOND / RATE);
                let after = if waiting > frames { After::Backlogged } else { After::Empty };
                scheduler.charge(port, Cost { bytes, uplink_bytes: bytes, frames, ..Cost::default() }, after, now);
            }
            Next::WaitUntil(time) => now = time,
            Next::Idle => now += Nanos::from_millis(1),
        }
    }
    sent.map(|bytes| (bytes * 8) as f64 / RATE as f64)
}

fn main() {
    let [bulk, voice] = shares(Box::new(Strict::default()));
    println!("bulk used {bulk:.3} of the link, voice {voice:.3}, which is all that it offered");
}

#[test]
fn the_port_with_the_highest_weight_gets_all_that_it_offers() {
    let [bulk, voice] = shares(Box::new(Strict::default()));
    assert!((voice - 0.3).abs() < 0.01 && (bulk - 0.7).abs() < 0.01, "{bulk} {voice}");
}
