//! A card through AF_XDP beside the packet socket, over veth pairs in a network namespace of its own. Needs root.
//!
//! `cargo bench -p fairlane-port --bench uplink` compares them: in turn, each works for some milliseconds, and the median
//! and quartiles of the pairs' ratios are printed: frames in a second of this thread's time on a processor, which has the
//! kernel's work too, as that is done in the same thread. `... -- xdp-send 1000` does one part for 1,000 rounds, to count instructions:
//! `valgrind --tool=callgrind target/release/deps/uplink-* xdp-send 1000`, less the same with 0 rounds.

use fairlane_core::packet::{Checksum, Gso, GsoKind, Offload};
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::card::Card;
use fairlane_port::xdp::Xdp;
use fairlane_port::{BURST, Burst, Port, Put};
use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

/// Bursts of a slice, and pairs of slices.
const ROUNDS: usize = 200;
const PAIRS: usize = 50;

/// What a budget allows.
const ALL: Budget = Budget { bytes: u64::MAX, frames: BURST as u32 };

/// A burst of frames to be sent: how often, and with which offload.
#[derive(Clone)]
struct Frames {
    frame: Vec<u8>,
    offload: Offload,
    count: usize,
}

/// Frames of this size that need no work.
fn plain(bytes: usize) -> Frames {
    let mut frame = vec![0; bytes];
    // To a station that is not there.
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    Frames { frame, offload: Offload::default(), count: BURST }
}

/// A TCP frame of 64 KiB, as guests with segmentation offload send it.
fn large() -> Frames {
    let payload = 1448 * 44;
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((40 + payload as u16).to_be_bytes());
    frame.extend([0, 9, 0, 0, 64, 6, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    frame.extend([0, 80, 2, 188, 0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.resize(54 + payload, 7);
    let gso = Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1448, header: 54 });
    Frames { frame, offload: Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso }, count: 1 }
}

/// Sends rounds of frames, and waits for room. Returns how many were sent.
fn send(port: &mut dyn Port, burst: &mut Burst, frames: &Frames, rounds: usize) -> usize {
    for _ in 0..rounds {
        let mut sent = 0;
        while sent < frames.count {
            let mut filler = burst.fill();
            (sent..frames.count).for_each(|_| assert!(filler.push(&frames.frame, frames.offload)));
            let batch = filler.done();
            let Put { accepted, .. } = port.put(&batch, 0..batch.len(), Nanos(0));
            sent += accepted;
            port.flush(Nanos(0));
        }
    }
    rounds * frames.count
}

/// Bursts of a round of [`receive`]: no more than either ring has room for.
const BURSTS: usize = 8;

/// What frames arrive from. The kernel sends them into a pair in memory that a driver's program can use where they are, as
/// a card's driver has them: those of a socket would be copied for the program first.
struct Wire {
    /// A program that redirects each frame to an end of the pair.
    program: OwnedFd,
}

impl Wire {
    /// Frames that arrive at the other end of eth0, eth1, ...
    fn new(number: usize) -> Wire {
        let interface: i32 = nix::net::if_::if_nametoindex(format!("eth{number}").as_str()).unwrap() as i32;
        // Two constants, a call of bpf_redirect, and the end. Code and registers are the low bytes of each instruction.
        let code: [u64; 4] = [0x1b7 | (interface as u64) << 32, 0x2b7, 0x85 | 23 << 32, 0x95];
        let license = c"Dual MIT/GPL";
        // Of `union bpf_attr` in linux/bpf.h: kind (XDP) and length, code, licence.
        let load = [6 | 4 << 32, code.as_ptr() as u64, license.as_ptr() as u64];
        // SAFETY: the code has four instructions, and the descriptor is new.
        let program = unsafe { OwnedFd::from_raw_fd(bpf(5, &load)) };
        Wire { program }
    }

    /// Sends bursts of a frame.
    fn send(&self, frame: &[u8]) {
        // Of `union bpf_attr`: program, length of the frame, frame, output, times, context of 0 bytes, flags (live frames)
        // and the frames of a batch.
        let times = (BURST * BURSTS) as u64;
        let (program, len, frame) = (self.program.as_raw_fd() as u64, frame.len() as u64, frame.as_ptr() as u64);
        let run = [program, len, frame, 0, times, 0, 0, 0, 1 << 1, 64];
        // SAFETY: the frame has so many bytes.
        unsafe { bpf(10, &run) };
    }
}

/// Makes a call of bpf(2).
///
/// # Safety
/// Addresses in `attributes` are of memory that the command may read.
unsafe fn bpf<const N: usize>(command: i32, attributes: &[u64; N]) -> i32 {
    // SAFETY: the call reads so many bytes of `attributes`, and what the caller guarantees.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    assert!(done >= 0, "bpf({command}): {}", std::io::Error::last_os_error());
    done as i32
}

/// Has rounds of frames sent at the other end, and receives them. Returns how many were received.
fn receive(port: &mut dyn Port, wire: &Wire, burst: &mut Burst, frame: &[u8], rounds: usize) -> usize {
    let (mut received, mut waits) = (0, 0);
    for round in 1..=rounds {
        wire.send(frame);
        while received < round * BURSTS * BURST {
            let batch = port.offer(burst, ALL, Nanos(0));
            let here = batch.len();
            received += here;
            port.consume(here);
            port.flush(Nanos(0));
            if here == 0 {
                waits += 1;
                assert!(waits < 1_000_000, "{received} frames of {rounds} rounds arrived");
                std::thread::yield_now();
            }
        }
    }
    received
}

/// Runs iproute2 or ethtool.
fn run(line: &str) {
    let mut words = line.split(' ');
    let done = Command::new(words.next().unwrap()).args(words).output().expect("iproute2 and ethtool are installed");
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Makes a veth pair.
fn pair(number: usize) {
    run(&format!("ip link add fl{number} type veth peer name eth{number}"));
    run(&format!("ethtool -K eth{number} tx off tso off gso off"));
    for end in ["fl", "eth"] {
        run(&format!("sysctl -qw net.ipv6.conf.{end}{number}.disable_ipv6=1"));
        // With this, frames that a program sent into one end arrive at the other.
        run(&format!("ethtool -K {end}{number} gro on"));
        run(&format!("ip link set {end}{number} up"));
    }
}

/// Nanoseconds of this thread on a processor that some work takes for each of its frames. The kernel's work is in it.
fn time(work: impl FnOnce() -> usize) -> f64 {
    let spent = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let before = spent();
    let frames = work() as f64;
    (spent() - before).as_nanos() as f64 / frames
}

/// The quartiles of some numbers.
fn quartiles(numbers: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| numbers[(numbers.len() - 1) * quarter / 4])
}

/// Compares two works in turn.
fn compare(name: &str, mut card: impl FnMut() -> usize, mut xdp: impl FnMut() -> usize, pairs: usize) {
    let times: Vec<_> = (0..pairs + 2).map(|_| (time(&mut card), time(&mut xdp))).skip(2).collect();
    let [low, ratio, high] = quartiles(times.iter().map(|(card, xdp)| card / xdp));
    let [_, card, _] = quartiles(times.iter().map(|(card, _)| *card));
    let [_, xdp, _] = quartiles(times.iter().map(|(_, xdp)| *xdp));
    println!("{name:20} {ratio:.2} ({low:.2} to {high:.2}): {xdp:.0} ns a frame, packet socket {card:.0}");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let is_bench = std::env::args().any(|word| word == "--bench");
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        eprintln!("SKIPPED: this needs a network namespace (root): {error}");
        return;
    }
    let (small, mtu) = (plain(60), plain(1514));
    (0..2).for_each(pair);
    let mut burst = Burst::new();
    let mut card = Card::open("fl0").unwrap();
    let mut xdp = Xdp::open("fl1").unwrap();
    if let [part, rounds] = &words[..] {
        let rounds = rounds.parse().expect("a number of rounds");
        let frames = match part.as_str() {
            "card-send" => send(&mut card, &mut burst, &small, rounds),
            "xdp-send" => send(&mut xdp, &mut burst, &small, rounds),
            "card-send-large" => send(&mut card, &mut burst, &large(), rounds),
            "xdp-send-large" => send(&mut xdp, &mut burst, &large(), rounds),
            "card-receive" => receive(&mut card, &Wire::new(0), &mut burst, &small.frame, rounds),
            "xdp-receive" => receive(&mut xdp, &Wire::new(1), &mut burst, &small.frame, rounds),
            _ => panic!("there is no part {part}"),
        };
        println!("{part}: {frames} frames");
        return;
    }
    // Without `--bench` this is a test.
    let (rounds, pairs) = if is_bench { (ROUNDS, PAIRS) } else { (2, 1) };
    println!("AF_XDP ({}), in frames of the packet socket", xdp.mode());
    let mut other = Burst::new();
    for (name, frames) in [("send 60 bytes", &small), ("send 1514 bytes", &mtu), ("send 64 KiB of TCP", &large())] {
        let packet = || send(&mut card, &mut burst, frames, rounds);
        compare(name, packet, || send(&mut xdp, &mut other, frames, rounds), pairs);
    }
    let (card_wire, xdp_wire) = (Wire::new(0), Wire::new(1));
    // The kernel takes long to prepare what it sends, but not of this thread's time.
    let rounds = rounds / 50 + 1;
    for (name, frames) in [("receive 60 bytes", &small), ("receive 1514 bytes", &mtu)] {
        let packet = || receive(&mut card, &card_wire, &mut burst, &frames.frame, rounds);
        compare(name, packet, || receive(&mut xdp, &xdp_wire, &mut other, &frames.frame, rounds), pairs);
    }
}
