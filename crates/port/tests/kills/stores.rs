//! Every store of some connections.
//!
//! A child works on memory that it shares with this process, one instruction at a time. Whenever an instruction changed
//! the memory, the child might have been killed there: a copy of the memory is resumed, and must deliver to the guest
//! all data that was acknowledged to its sender.
#![allow(clippy::disallowed_methods)] // no guest has this memory

use crate::shared::shared;
use fairlane_core::ack::{Block, Config, Direction, EarlyAck, Fallback, Flow, Memory, Mode};
use fairlane_core::packet::{Checksum, Compose, Ethernet, Ip, Tcp, TcpFlags};
use fairlane_core::time::Nanos;
use std::iter::once;

const FLOWS: usize = 2;
const BLOCKS: usize = 12;

/// The initial sequence numbers of both ends.
const SENDER: u32 = 0xffff_f000;
const HOST: u32 = 7000;

const WINDOW: u16 = 60_000;

/// The state that both processes see.
#[repr(C, align(64))]
struct Shared {
    /// The host where the guest is, and the one it came from or moves to next.
    hosts: [Host; 2],
    /// The index of the guest's host.
    at: u32,
    /// How much of the stream the guest has, and how much was acknowledged to the sender, in bytes.
    has: u32,
    acknowledged_to_sender: u32,
}

/// The early-ack state of one host.
#[repr(C, align(64))]
struct Host {
    flows: [Flow; FLOWS],
    blocks: [Block; BLOCKS],
}

impl Host {
    fn memory(&mut self) -> Memory<'_> {
        Memory { flows: &mut self.flows, blocks: &mut self.blocks }
    }
}

/// A step of a connection. Frames are composed beforehand, so that only their handling is counted.
enum Step {
    /// A new connection begins, of which the guest has nothing yet.
    Begin,
    /// A frame reaches the guest's ring.
    Deliver(Vec<u8>),
    /// The guest sends a frame, and has this many bytes of the stream.
    Send(u32, Vec<u8>),
    /// The flows are moved to the other host.
    Move,
}

/// Connections that end in different ways, with segments of many sizes, in and out of order, and ACKs between and at
/// their ends.
fn steps() -> Vec<Step> {
    let data = |from, len, flags: u8| Step::Deliver(data(from, len, TcpFlags(flags)));
    let ack = |bytes| Step::Send(bytes, ack(bytes));
    let mut steps = Vec::new();
    for (urgent, fin) in [(0x20, 0), (0, 1), (0, 0)] {
        steps.push(Step::Begin);
        steps.push(Step::Deliver(frame(Direction::In, SENDER - 1, 0, TcpFlags::SYN, &[])));
        steps.push(Step::Send(0, frame(Direction::Out, HOST - 1, SENDER, TcpFlags(0x12), &[])));
        steps.extend([data(0, 0, 0x10), data(0, 100, 0x10), data(100, 1400, 0x10), ack(50)]);
        steps.extend([data(1500, 600, 0x10), ack(1500), data(2100, 2032, 0x10), ack(4132)]);
        // A gap, which is then filled.
        steps.extend([data(4332, 50, 0x10), data(4132, 200, 0x10), ack(4332), ack(4382), data(4382, 70, 0x10)]);
        steps.extend([Step::Move, data(4452, 500, 0x10), ack(4500), data(4952, 20, 0x10 | urgent)]);
        steps.extend([data(4972, 60, 0x10), ack(4972), data(5032, 90, 0x10 | fin)]);
        steps.push(match fin {
            0 => Step::Send(u32::MAX, frame(Direction::Out, HOST, 0, TcpFlags::RST, &[])),
            _ => ack(5123),
        });
    }
    steps
}

fn byte(at: u32) -> u8 {
    (at % 251) as u8 ^ (at >> 8) as u8
}

fn frame(way: Direction, sequence: u32, acknowledgment: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let (outside, inside) = (([10, 0, 0, 1].into(), 4000), ([10, 0, 0, 2].into(), 80));
    let (source, destination) = if way == Direction::In { (outside, inside) } else { (inside, outside) };
    let (link, window, timestamps) = (&[2; 12][..], WINDOW, None);
    let mut out = Vec::new();
    Compose { link, source, destination, sequence, acknowledgment, flags, window, timestamps }
        .write(&mut out, |out| out.extend_from_slice(payload));
    out
}

fn data(from: u32, len: usize, flags: TcpFlags) -> Vec<u8> {
    let payload: Vec<u8> = (from..from + len as u32).map(byte).collect();
    frame(Direction::In, SENDER.wrapping_add(from), HOST, flags, &payload)
}

fn ack(bytes: u32) -> Vec<u8> {
    frame(Direction::Out, HOST, SENDER.wrapping_add(bytes), TcpFlags::ACK, &[])
}

/// How many bytes of the stream a frame acknowledges.
fn acknowledged(frame: &[u8]) -> u32 {
    let ethernet = Ethernet::new_checked(frame).unwrap();
    let ip = Ip::of(&ethernet).unwrap().unwrap();
    Tcp::new_checked(ip.upper().unwrap().payload).unwrap().acknowledgment().wrapping_sub(SENDER)
}

/// Shows a frame to early ack; returns how many bytes are acknowledged to the sender because of it.
fn show(early: &mut EarlyAck<'_>, way: Direction, mut frame: Vec<u8>) -> Option<u32> {
    let mut sights = Vec::new();
    early.look_up(&mut sights, way, once((&frame[..], frame.len())), Nanos(1));
    if way == Direction::In {
        early.delivered(&sights[0], &frame[..], Checksum::Present, Nanos(1));
        return early.next_ack().map(acknowledged);
    }
    early.from_guest(&sights[0], &mut frame, Checksum::Present, Nanos(1));
    Some(acknowledged(&frame))
}

/// Takes all steps, as a process that is not killed.
fn work(shared: &mut Shared, steps: Vec<Step>) {
    let Shared { hosts, at, has, acknowledged_to_sender } = shared;
    let mut early = EarlyAck::new(hosts[0].memory(), Config::default(), Mode::Always);
    for step in steps {
        // What the guest has is stored before its frame is shown; what is acknowledged to the sender, after.
        let acked = match step {
            Step::Begin => {
                put(has, u32::MAX);
                put(acknowledged_to_sender, 0);
                put(has, 0);
                None
            }
            Step::Deliver(frame) => show(&mut early, Direction::In, frame),
            Step::Send(bytes, frame) => {
                put(has, bytes);
                show(&mut early, Direction::Out, frame).filter(|_| bytes > 0 && bytes != u32::MAX)
            }
            Step::Move => {
                let (export, next) = (early.export(), 1 - *at);
                early = EarlyAck::new(hosts[next as usize].memory(), Config::default(), Mode::Always);
                assert_eq!(early.import(&export, Nanos(1)), Ok(1));
                put(at, next);
                None
            }
        };
        let most = acked.unwrap_or(0).max(*acknowledged_to_sender);
        put(acknowledged_to_sender, most);
    }
}

/// Stores a number at once, visible to the other process.
fn put(place: &mut u32, number: u32) {
    // SAFETY: it is a reference.
    unsafe { std::ptr::write_volatile(place, number) };
}

/// Resumes from the memory that a killed process left, and delivers to the guest what it lacks.
fn check_resumed(left: &mut Shared) {
    let Shared { hosts, at, has, acknowledged_to_sender } = left;
    let missing = acknowledged_to_sender.saturating_sub(*has);
    let config = Config { seed: 9, ..Config::default() };
    let mut early = EarlyAck::resume(hosts[*at as usize].memory(), config, Mode::Always, Nanos(5));
    let stats = early.stats();
    assert_eq!(stats.fallbacks(Fallback::Damaged), 0, "has {has}, acknowledged {acknowledged_to_sender}");
    // The guest sends an ACK, in case the flow was idle.
    show(&mut early, Direction::Out, ack(*has));
    let owed: u32 = early.flows().map(|flow| flow.owed).sum();
    assert!(owed >= missing, "the guest has {has} bytes, {acknowledged_to_sender} were acknowledged, {owed} are owed");
    let mut got = *has;
    while early.poll_timeout() != Nanos::NEVER && got < *acknowledged_to_sender {
        let now = early.poll_timeout().max(Nanos(5));
        let sent = early.on_timeout(now).map(<[u8]>::to_vec);
        let Some(sent) = sent else { continue };
        let ethernet = Ethernet::new_checked(&sent).unwrap();
        let ip = Ip::of(&ethernet).unwrap().unwrap();
        let tcp = Tcp::new_checked(ip.upper().unwrap().payload).unwrap();
        assert!(!tcp.flags().contains(TcpFlags::RST), "a healthy connection is reset");
        let from = tcp.sequence().wrapping_sub(SENDER);
        assert!(from <= got, "a gap from {got} to {from}");
        let expected: Vec<u8> = (from..from + tcp.payload().len() as u32).map(byte).collect();
        assert!(tcp.payload() == expected, "other bytes than were sent, from {from} on");
        got = from + expected.len() as u32;
        show(&mut early, Direction::Out, ack(got));
    }
    assert!(got >= *acknowledged_to_sender);
    assert_eq!(early.stats().resets, 0);
}

/// Pins this thread and its children to one CPU: they take turns all the time.
fn on_one_cpu() {
    // SAFETY: the set is a local one of the right size; the calls access nothing else.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn bytes(shared: &Shared) -> &[u8] {
    // SAFETY: all fields are integers, without padding except at the end, where the mapping has zeros.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(shared).cast(), size_of::<Shared>()) }
}

#[test]
fn a_process_that_is_killed_at_any_store_loses_nothing() {
    // SAFETY: flows, blocks and numbers consist of integers.
    let [shared, seen, copy] = [(); 3].map(|()| unsafe { &mut *shared::<Shared>() });
    let plan = steps();
    on_one_cpu();
    // SAFETY: the child only works on the shared memory, allocates (which the C library allows after a fork), and
    // exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: as above; the calls access no memory of ours.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(shared, plan)));
            libc::_exit(i32::from(done.is_err()));
        }
    }
    let (mut status, mut stores, mut steps) = (0, 0u64, 0u64);
    let overwrite = |place: &mut Shared, from: &Shared| {
        // SAFETY: both are valid; the child is stopped.
        unsafe { std::ptr::copy_nonoverlapping(from, place, 1) };
    };
    let ended = loop {
        // SAFETY: the child is ours.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child);
        if !libc::WIFSTOPPED(status) {
            break status;
        }
        if bytes(shared) != bytes(seen) {
            stores += 1;
            overwrite(seen, shared);
            overwrite(copy, shared);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check_resumed(copy)));
            if let Err(error) = result {
                // SAFETY: the child is ours.
                unsafe { libc::kill(child, libc::SIGKILL) };
                eprintln!("killed after {steps} instructions, {stores} stores");
                std::panic::resume_unwind(error);
            }
        }
        steps += 1;
        // SAFETY: as above.
        let stepped = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0) };
        assert_eq!(stepped, 0);
    };
    assert_eq!((libc::WIFEXITED(ended), libc::WEXITSTATUS(ended)), (true, 0), "the child finished");
    println!("{steps} instructions, {stores} of them stores that were survived");
    assert!(stores > 500, "{stores}");
}
