//! Any frames from both sides of a connection: early ack may not panic, grow, acknowledge what was not delivered, or go back.
#![no_main]

use fairlane_core::PortId;
use fairlane_core::ack::{Block, Config, EarlyAck, Flow, Memory, Mode, Ring, Way};
use fairlane_core::packet::{Checksum, Compose, Ethernet, Ip, Tcp, TcpFlags, checksum};
use fairlane_core::time::Nanos;
use libfuzzer_sys::fuzz_target;
use std::iter::once;
use std::net::IpAddr;

const GUEST: PortId = PortId(1);
const FLOWS: usize = 4;
const BLOCKS: usize = 6;

// Each step is 12 bytes: what happens, and numbers near those of the connection.
fuzz_target!(|input: &[u8]| {
    let (mut flows, mut blocks) = (vec![Flow::default(); FLOWS], vec![Block::FREE; BLOCKS]);
    let memory = Memory { flows: &mut flows, blocks: &mut blocks };
    let config = Config { flow_bytes: 6_000, guest_bytes: 9_000, seed: 1, ..Config::default() };
    let mut early = EarlyAck::new(memory, config);
    let mut sights = Vec::new();
    early.attach(GUEST, Mode::Always);
    let mut now = Nanos(1_000_000_000);
    // The greatest end of what was delivered, for each of two connections.
    let mut most = [0i32; 2];
    for step in input.chunks_exact(12) {
        let [kind, which, flags, seq, seq_high, ack, ack_high, len, len_high, window, stamp, rest] = *step else {
            return;
        };
        let connection = usize::from(which & 1);
        let seq = i32::from(i16::from_le_bytes([seq, seq_high]));
        let ack = i32::from(i16::from_le_bytes([ack, ack_high]));
        let len = usize::from(u16::from_le_bytes([len, len_high]) % 3_000);
        let stamps = (which & 2 != 0).then_some((stamp.into(), u32::from(rest)));
        let frame = |inward: bool| {
            let outside =
                (if which & 4 == 0 { IpAddr::from([10, 0, 0, 1]) } else { [1u8; 16].into() }, connection as u16);
            let inside = (if which & 4 == 0 { IpAddr::from([10, 0, 0, 2]) } else { [2u8; 16].into() }, 80);
            let (source, destination) = if inward { (outside, inside) } else { (inside, outside) };
            let link: &[u8] =
                if which & 8 == 0 { &[2; 12] } else { &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0x81, 0, 0, 5] };
            let mut out = Vec::new();
            Compose {
                link,
                source,
                destination,
                sequence: seq as u32,
                acknowledgment: ack as u32,
                flags: TcpFlags(flags),
                window: u16::from(window) << 6,
                timestamps: stamps,
            }
            .write(&mut out, |out| out.resize(out.len() + len, rest));
            if kind & 0x80 != 0 {
                // Some byte of the headers is something else.
                out[usize::from(rest) % 54] ^= stamp;
            }
            out
        };
        match kind & 7 {
            0..=2 => {
                let frame = frame(true);
                let end = seq.wrapping_add(len as i32);
                most[connection] = most[connection].max(end.saturating_add(2));
                let state = if kind & 8 == 0 { Checksum::Present } else { Checksum::Valid };
                early.look(&mut sights, GUEST, Way::In, once((&frame[..], frame.len())), now);
                early.delivered(&sights[0], &frame[..], state, now);
                if let Some(ack) = early.next_ack() {
                    assert_eq!(checksum::verify(ack), Ok(true));
                    let ethernet = Ethernet::new_checked(ack).unwrap();
                    let ip = Ip::of(&ethernet).unwrap().unwrap();
                    let tcp = Tcp::new_checked(ip.upper().unwrap().payload).unwrap();
                    assert_eq!((tcp.flags().without(TcpFlags::RST), tcp.payload()), (TcpFlags::ACK, &[][..]));
                    let whole = kind & 0x80 == 0 && tcp.flags() == TcpFlags::ACK;
                    assert!(!whole || tcp.acknowledgment() as i32 <= most[connection], "what was not delivered");
                }
            }
            3..=5 => {
                let mut frame = frame(false);
                early.look(&mut sights, GUEST, Way::Out, once((&frame[..], frame.len())), now);
                early.from_guest(&sights[0], &mut frame, Checksum::Present, now);
            }
            6 => {
                now += Nanos(u64::from(window) << 24);
                for _ in 0..100 {
                    let Some(sent) = early.on_timeout(now) else { break };
                    assert_eq!(checksum::verify(sent.frame), Ok(true));
                    if stamp & 1 != 0 {
                        early.refused(now);
                        break;
                    }
                }
                early.observe(GUEST, Ring { waiting: u32::from(rest), taken: u32::from(stamp) }, now);
            }
            _ => match rest & 3 {
                0 => early.attach(GUEST, Mode::Off),
                1 => early.attach(GUEST, Mode::Always),
                2 => early.detach(PortId(9)),
                _ => {
                    let export = early.export(GUEST);
                    let count = u32::from_le_bytes(export[6..10].try_into().unwrap());
                    early.detach(GUEST);
                    early.attach(GUEST, Mode::Always);
                    assert_eq!(early.import(GUEST, &export, now), Ok(count));
                }
            },
        }
        let retained: u64 = early.flows().map(|flow| u64::from(flow.retained)).sum();
        assert!(retained == early.retained(GUEST) && retained <= 9_000 && early.flows().count() <= FLOWS);
        assert!(early.flows().all(|flow| flow.owed <= flow.retained && flow.retained <= 6_000));
    }
    early.detach(GUEST);
    assert_eq!((early.flows().count(), early.retained(GUEST)), (0, 0));
});
