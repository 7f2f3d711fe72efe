//! Part ack: nanoseconds of early ack per frame, with few and with many flows.

use crate::rounds::{Contestant, settle, spent_per};
use crate::{Run, at_most};
use anyhow::Result;
use fairlane_core::ack::{Block, Config, Direction, EarlyAck, Flow, LookupBatch, Memory, Mode};
use fairlane_core::packet::{Checksum, Compose, TcpFlags};
use fairlane_core::time::Nanos;
use fairlane_report::Figure;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

/// Numbers of flows to measure.
const FLOWS: [u32; 2] = [1_000, 100_000];

/// Frames per sample.
const FRAMES: u32 = 500_000;

/// Frames per burst: those of a full burst of the engine.
const BURST: usize = 32;

/// Payload of a data segment.
const PAYLOAD: usize = 1448;

const NOW: Nanos = Nanos::from_millis(1_000);
const TITLE: &str = "Time of early ack per frame";

/// Measures all numbers of flows and adds the results.
///
/// # Errors
/// The run was interrupted.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    for (case, flows) in FLOWS.into_iter().enumerate() {
        let mut drained = Flows::new(flows, Mode::Auto, BURST);
        let mut watched = Flows::new(flows, Mode::Auto, BURST).watched();
        let mut alone = Flows::new(flows, Mode::Auto, 1).watched();
        let mut early = Flows::new(flows, Mode::Always, BURST);
        let mut plain = Plain::new(flows);
        let contestants = vec![
            Contestant::new("drained", move || drained.sample()),
            Contestant::new("watched", move || watched.sample()),
            Contestant::new("alone", move || alone.sample()),
            Contestant::new("acknowledged", move || early.sample()),
            Contestant::new("lookup", move || plain.sample()),
        ];
        let ratios = ["acknowledged", "watched", "drained"].map(|name| (name, "lookup"));
        let figures = settle(run, &format!("ack, {flows} flows"), &ratios, contestants)?;
        figures.add_to(run, "ack", case, "ns", |name| match name {
            "acknowledged" => format!("ack_ns_{flows}"),
            other => format!("ack_{other}_ns_{flows}"),
        });
        for (name, lookup) in ratios {
            let ratios = figures.ratios_of(name, lookup);
            run.result.metric(&format!("ack_{name}_vs_lookup_{flows}"), &ratios, "");
        }
    }
    run.result.figure(
        Figure::bars(TITLE)
            .caption(
                "Data segments for the guest and the guest's ACKs for them, alternately in bursts of 32 frames per direction, of \
                 flows in random order, in processor time. Drained: the guest drains its ring. Watched: it does, but a flow is \
                 opening, so all segments are tracked. Alone: as watched, in bursts of one frame. Acknowledged: each segment is copied and acknowledged early. \
                 Lookup: nothing but a lookup in a hash table with a random key, of as many flows in random order.",
            )
            .y("per frame")
            .categories(FLOWS.map(|flows| format!("{flows} flows")))
            .series(["ack/drained", "ack/watched", "ack/alone", "ack/acknowledged", "ack/lookup"].map(str::to_owned)),
    );
    for (name, what, limit) in [
        ("acknowledged", "that is copied and acknowledged early, or is the guest's ACK for it", 2.0),
        ("watched", "that is only watched", 1.0),
        ("drained", "for a guest that drains its ring", 0.25),
    ] {
        let text = format!(
            "Early ack takes at most {limit} times as long as a plain lookup per frame {what}, in full bursts, with 100,000 flows"
        );
        run.claim(&format!("ack_{name}_vs_lookup_100000"), &text, at_most(limit), TITLE);
    }
    Ok(())
}

/// Addresses and ports of a flow.
type Key = (IpAddr, u16, IpAddr, u16);

/// A hash table of flows: the least that it takes to know a frame's flow.
struct Plain {
    flows: HashMap<Key, u32>,
    random: StdRng,
}

impl Plain {
    fn new(count: u32) -> Plain {
        let flows = (0..count).map(|flow| (key(flow), flow)).collect();
        Plain { flows, random: StdRng::seed_from_u64(7) }
    }

    /// Nanoseconds per lookup, in processor time of this thread.
    fn sample(&mut self) -> Result<f64> {
        let count = self.flows.len() as u32;
        spent_per(FRAMES, || {
            for _ in 0..FRAMES {
                black_box(self.flows.get(&key(self.random.random_range(0..count))));
            }
        })
    }
}

fn key(flow: u32) -> Key {
    let ([a, b], port) = outside_address(flow);
    (Ipv4Addr::new(10, 1, a, b).into(), u16::from_be_bytes(port), Ipv4Addr::new(10, 0, 0, 2).into(), 80)
}

/// Open connections to one guest. In each turn, a burst of segments is delivered for some of them, and a burst of ACKs sent.
struct Flows {
    early: EarlyAck<'static>,
    /// Bytes sent on each connection.
    sent: Vec<u32>,
    /// A burst of segments for the guest and one of its ACKs, rewritten for the flows of each turn.
    data: Vec<Vec<u8>>,
    acks: Vec<Vec<u8>>,
    sights: Vec<LookupBatch>,
    random: StdRng,
}

impl Flows {
    fn new(count: u32, mode: Mode, burst: usize) -> Flows {
        // They are never freed, like those of a backend.
        let flows = vec![Flow::default(); count as usize + 1].leak();
        let blocks = vec![Block::FREE; 1024].leak();
        let early =
            EarlyAck::new(Memory { flows, blocks }, Config { seed: 0x1234_5678_9abc_def0, ..Config::default() }, mode);
        let mut flows = Flows {
            early,
            sent: vec![0; count as usize],
            data: vec![frame(0, true, TcpFlags::ACK, 1, 1, PAYLOAD); burst],
            acks: vec![frame(0, false, TcpFlags::ACK, 1, 1, 0); burst],
            sights: Vec::new(),
            random: StdRng::seed_from_u64(7),
        };
        for flow in 0..count {
            flows.deliver(&[frame(flow, true, TcpFlags::SYN, 0, 0, 0)]);
            flows.send(&mut [frame(flow, false, TcpFlags::SYN.with(TcpFlags::ACK), 0, 1, 0)]);
            flows.deliver(&[frame(flow, true, TcpFlags::ACK, 1, 1, 0)]);
        }
        assert_eq!(flows.early.stats().flows, u64::from(count), "every handshake creates a flow");
        flows
    }

    /// Starts a connection whose handshake stays incomplete.
    fn watched(mut self) -> Flows {
        self.deliver(&[frame(self.sent.len() as u32, true, TcpFlags::SYN, 0, 0, 0)]);
        self
    }

    /// Delivers a burst to the guest.
    fn deliver(&mut self, burst: &[Vec<u8>]) {
        self.early.look_up(&mut self.sights, Direction::In, heads(burst), NOW);
        for (frame, sight) in burst.iter().zip(&self.sights) {
            self.early.delivered(sight, &frame[..], Checksum::Valid, NOW);
        }
        while let Some(ack) = self.early.next_ack() {
            black_box(ack);
        }
    }

    /// Sends a burst from the guest.
    fn send(&mut self, burst: &mut [Vec<u8>]) {
        self.early.look_up(&mut self.sights, Direction::Out, heads(burst), NOW);
        for (frame, sight) in burst.iter_mut().zip(&self.sights) {
            black_box(self.early.from_guest(sight, frame, Checksum::Valid, NOW));
        }
    }

    /// Delivers segments of random flows, and sends the guest's ACKs.
    fn turn(&mut self) {
        let (mut data, mut acks) = (std::mem::take(&mut self.data), std::mem::take(&mut self.acks));
        for (data, ack) in data.iter_mut().zip(&mut acks) {
            let flow = self.random.random_range(0..self.sent.len() as u32);
            let sent = &mut self.sent[flow as usize];
            let first = sent.wrapping_add(1);
            *sent = sent.wrapping_add(PAYLOAD as u32);
            let last = sent.wrapping_add(1);
            let ([a, b], [c, d]) = outside_address(flow);
            data[28..30].copy_from_slice(&[a, b]);
            data[34..36].copy_from_slice(&[c, d]);
            data[38..42].copy_from_slice(&first.to_be_bytes());
            ack[32..34].copy_from_slice(&[a, b]);
            ack[36..38].copy_from_slice(&[c, d]);
            ack[42..46].copy_from_slice(&last.to_be_bytes());
        }
        self.deliver(&data);
        self.send(&mut acks);
        (self.data, self.acks) = (data, acks);
    }

    /// Nanoseconds per frame, in processor time of this thread.
    fn sample(&mut self) -> Result<f64> {
        let turns = FRAMES / (2 * self.data.len() as u32);
        spent_per(turns * 2 * self.data.len() as u32, || (0..turns).for_each(|_| self.turn()))
    }
}

/// The bytes of frames, as early ack expects them.
fn heads(burst: &[Vec<u8>]) -> impl Iterator<Item = (&[u8], usize)> {
    burst.iter().map(|frame| (&frame[..], frame.len()))
}

/// The last half of a flow's outside address, and its port.
fn outside_address(flow: u32) -> ([u8; 2], [u8; 2]) {
    (((flow / 1000) as u16).to_be_bytes(), (1000 + (flow % 1000) as u16).to_be_bytes())
}

/// A frame of a flow.
fn frame(flow: u32, inward: bool, flags: TcpFlags, sequence: u32, acknowledgment: u32, payload: usize) -> Vec<u8> {
    let ([a, b], port) = outside_address(flow);
    let outside = (IpAddr::from(Ipv4Addr::new(10, 1, a, b)), u16::from_be_bytes(port));
    let inside = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 2)), 80);
    let (source, destination) = if inward { (outside, inside) } else { (inside, outside) };
    let mut out = Vec::new();
    let segment = Compose {
        link: &[2; 12],
        source,
        destination,
        sequence,
        acknowledgment,
        flags,
        window: 65_000,
        timestamps: Some((1, 1)),
    };
    segment.write(&mut out, |out| out.resize(out.len() + payload, 7));
    out
}
