//! Part ack: nanoseconds that early ack takes of a frame, with few and with many flows.

use crate::rounds::{Contestant, compete};
use crate::{Bound, Run};
use anyhow::Result;
use fairlane_core::PortId;
use fairlane_core::ack::{Block, Config, EarlyAck, Flow, Memory, Mode};
use fairlane_core::packet::{Checksum, Compose, TcpFlags};
use fairlane_core::time::Nanos;
use fairlane_report::Figure;
use nix::time::{ClockId, clock_gettime};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Numbers of flows.
const FLOWS: [u32; 2] = [1_000, 100_000];

/// Frames of one sample.
const FRAMES: u32 = 500_000;

/// Payload of a data segment.
const PAYLOAD: usize = 1448;

const GUEST: PortId = PortId(1);
const NOW: Nanos = Nanos::from_millis(1_000);
const TITLE: &str = "Time of early ack for a frame";

/// Measures and records.
///
/// # Errors
/// The run was interrupted.
pub fn measure(run: &mut Run) -> Result<()> {
    for (place, flows) in FLOWS.into_iter().enumerate() {
        let mut watched = Flows::new(flows, Mode::Auto);
        let mut early = Flows::new(flows, Mode::Always);
        let contestants = vec![
            Contestant::new("watched", move || watched.sample()),
            Contestant::new("acknowledged", move || early.sample()),
        ];
        // Samples are short: more of them cost nothing.
        let figures = compete(run, &format!("ack, {flows} flows"), 3 * run.rounds, contestants)?;
        figures.keep(run, "ack", place, "ns", |name| match name {
            "watched" => format!("ack_ns_{flows}"),
            other => format!("ack_{other}_ns_{flows}"),
        });
    }
    run.result.figure(
        Figure::bars(TITLE)
            .caption(
                "A data segment for the guest and the guest's ACK for it, each a frame, of flows in random order, in the \
                 processor's time. Watched: the guest drains its ring. Acknowledged: each segment is copied and \
                 acknowledged early.",
            )
            .y("a frame")
            .categories(FLOWS.map(|flows| format!("{flows} flows")))
            .series(["ack/watched", "ack/acknowledged"].map(str::to_owned)),
    );
    run.claim("ack_ns_100000", "Early ack takes at most 60 ns a frame among 100,000 flows", Bound::AtMost(60.0), TITLE);
    Ok(())
}

/// Open connections to one guest, each of which gets a segment in its turn and acknowledges it.
struct Flows {
    early: EarlyAck<'static>,
    /// What each was sent.
    sent: Vec<u32>,
    /// Segments for the guest and ACKs of it, rewritten for the flow whose turn it is.
    data: Vec<u8>,
    ack: Vec<u8>,
    random: StdRng,
}

impl Flows {
    fn new(count: u32, mode: Mode) -> Flows {
        // They live as long as the process does, as a backend's do.
        let flows = vec![Flow::default(); count as usize].leak();
        let blocks = vec![Block::FREE; 1024].leak();
        let mut early =
            EarlyAck::new(Memory { flows, blocks }, Config { seed: 0x1234_5678_9abc_def0, ..Config::default() });
        early.attach(GUEST, mode);
        for flow in 0..count {
            early.delivered(GUEST, &frame(flow, true, TcpFlags::SYN, 0, 0, 0)[..], Checksum::Valid, NOW);
            let mut both = frame(flow, false, TcpFlags::SYN.with(TcpFlags::ACK), 0, 1, 0);
            let len = both.len();
            early.from_guest(GUEST, &mut both, len, Checksum::Valid, NOW);
            early.delivered(GUEST, &frame(flow, true, TcpFlags::ACK, 1, 1, 0)[..], Checksum::Valid, NOW);
        }
        assert_eq!(early.stats().flows, u64::from(count), "every handshake is one of a flow");
        Flows {
            early,
            sent: vec![0; count as usize],
            data: frame(0, true, TcpFlags::ACK, 1, 1, PAYLOAD),
            ack: frame(0, false, TcpFlags::ACK, 1, 1, 0),
            random: StdRng::seed_from_u64(7),
        }
    }

    /// A segment for some flow's guest, and the guest's ACK.
    fn turn(&mut self) {
        let flow = self.random.random_range(0..self.sent.len() as u32);
        let sent = &mut self.sent[flow as usize];
        let first = sent.wrapping_add(1);
        *sent = sent.wrapping_add(PAYLOAD as u32);
        let last = sent.wrapping_add(1);
        let ([a, b], [c, d]) = place(flow);
        self.data[28..30].copy_from_slice(&[a, b]);
        self.data[34..36].copy_from_slice(&[c, d]);
        self.data[38..42].copy_from_slice(&first.to_be_bytes());
        self.ack[32..34].copy_from_slice(&[a, b]);
        self.ack[36..38].copy_from_slice(&[c, d]);
        self.ack[42..46].copy_from_slice(&last.to_be_bytes());
        black_box(self.early.delivered(GUEST, &self.data[..], Checksum::Valid, NOW));
        let len = self.ack.len();
        black_box(self.early.from_guest(GUEST, &mut self.ack[..], len, Checksum::Valid, NOW));
    }

    /// Nanoseconds a frame, of this thread's own time: what else runs here does not count.
    fn sample(&mut self) -> Result<f64> {
        let start = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
        (0..FRAMES / 2).for_each(|_| self.turn());
        let spent = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?) - start;
        Ok(spent.as_nanos() as f64 / f64::from(FRAMES))
    }
}

/// The last half of a flow's address outside, and its port.
fn place(flow: u32) -> ([u8; 2], [u8; 2]) {
    (((flow / 1000) as u16).to_be_bytes(), (1000 + (flow % 1000) as u16).to_be_bytes())
}

/// A frame of a flow.
fn frame(flow: u32, inward: bool, flags: TcpFlags, sequence: u32, acknowledgment: u32, payload: usize) -> Vec<u8> {
    let ([a, b], port) = place(flow);
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
