//! Every store of some connections.
//!
//! A child works on memory that it shares with this process, an instruction at a time. Whenever an instruction changed the memory, the
//! child might have ended there: what it left is taken up, and has to bring the guest all that its sender was told of.
#![allow(clippy::disallowed_methods)] // no guest has this memory

use crate::shared::shared;
use fairlane_core::ack::{Block, Config, Direction, EarlyAck, Fallback, Flow, Memory, Mode};
use fairlane_core::packet::{Checksum, Compose, Ethernet, Ip, Tcp, TcpFlags};
use fairlane_core::time::Nanos;
use std::iter::once;

const FLOWS: usize = 2;
const BLOCKS: usize = 12;

/// The first numbers of both ends.
const SENDER: u32 = 0xffff_f000;
const HOST: u32 = 7000;

const WINDOW: u16 = 60_000;

/// What both processes see.
#[repr(C, align(64))]
struct Shared {
    /// Where the guest is, and where it was before or moves to next.
    hosts: [Host; 2],
    /// Which of both it is.
    at: u32,
    /// What the guest has, and what the sender was told that it has, as numbers of the stream.
    has: u32,
    told: u32,
}

/// The early ack of one host.
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

/// What happens to a connection. Frames are made beforehand: only what is done with them counts.
enum Deed {
    /// Another connection begins, of which the guest has nothing yet.
    Begin,
    /// A frame reaches the guest's ring.
    Deliver(Vec<u8>),
    /// The guest sends one, and has so many bytes of the stream.
    Send(u32, Vec<u8>),
    /// Its flows are carried over to the other host.
    Move,
}

/// Connections that end in different ways, with segments of many sizes, in and out of order, and ACKs between and at their ends.
fn deeds() -> Vec<Deed> {
    let data = |from, len, flags: u8| Deed::Deliver(data(from, len, TcpFlags(flags)));
    let ack = |bytes| Deed::Send(bytes, ack(bytes));
    let mut deeds = Vec::new();
    for (urgent, fin) in [(0x20, 0), (0, 1), (0, 0)] {
        deeds.push(Deed::Begin);
        deeds.push(Deed::Deliver(frame(Direction::In, SENDER - 1, 0, TcpFlags::SYN, &[])));
        deeds.push(Deed::Send(0, frame(Direction::Out, HOST - 1, SENDER, TcpFlags(0x12), &[])));
        deeds.extend([data(0, 0, 0x10), data(0, 100, 0x10), data(100, 1400, 0x10), ack(50)]);
        deeds.extend([data(1500, 600, 0x10), ack(1500), data(2100, 2032, 0x10), ack(4132)]);
        // A gap, which the guest fills.
        deeds.extend([data(4332, 50, 0x10), data(4132, 200, 0x10), ack(4332), ack(4382), data(4382, 70, 0x10)]);
        deeds.extend([Deed::Move, data(4452, 500, 0x10), ack(4500), data(4952, 20, 0x10 | urgent)]);
        deeds.extend([data(4972, 60, 0x10), ack(4972), data(5032, 90, 0x10 | fin)]);
        deeds.push(match fin {
            0 => Deed::Send(u32::MAX, frame(Direction::Out, HOST, 0, TcpFlags::RST, &[])),
            _ => ack(5123),
        });
    }
    deeds
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

/// The number of the stream that a frame acknowledges.
fn acknowledged(frame: &[u8]) -> u32 {
    let ethernet = Ethernet::new_checked(frame).unwrap();
    let ip = Ip::of(&ethernet).unwrap().unwrap();
    Tcp::new_checked(ip.upper().unwrap().payload).unwrap().acknowledgment().wrapping_sub(SENDER)
}

/// Shows a frame; returns what of the stream the sender is told of by it.
fn show(early: &mut EarlyAck<'_>, way: Direction, mut frame: Vec<u8>) -> Option<u32> {
    let mut sights = Vec::new();
    early.look(&mut sights, way, once((&frame[..], frame.len())), Nanos(1));
    if way == Direction::In {
        early.delivered(&sights[0], &frame[..], Checksum::Present, Nanos(1));
        return early.next_ack().map(acknowledged);
    }
    early.from_guest(&sights[0], &mut frame, Checksum::Present, Nanos(1));
    Some(acknowledged(&frame))
}

/// Does all deeds, as a process that is not killed.
fn work(shared: &mut Shared, deeds: Vec<Deed>) {
    let Shared { hosts, at, has, told } = shared;
    let mut early = EarlyAck::new(hosts[0].memory(), Config::default(), Mode::Always);
    for deed in deeds {
        // What the guest has is stored before what it sends is shown, what the sender is told of after it is.
        let told_of = match deed {
            Deed::Begin => {
                put(has, u32::MAX);
                put(told, 0);
                put(has, 0);
                None
            }
            Deed::Deliver(frame) => show(&mut early, Direction::In, frame),
            Deed::Send(bytes, frame) => {
                put(has, bytes);
                show(&mut early, Direction::Out, frame).filter(|_| bytes > 0 && bytes != u32::MAX)
            }
            Deed::Move => {
                let (export, next) = (early.export(), 1 - *at);
                early = EarlyAck::new(hosts[next as usize].memory(), Config::default(), Mode::Always);
                assert_eq!(early.import(&export, Nanos(1)), Ok(1));
                put(at, next);
                None
            }
        };
        let most = told_of.unwrap_or(0).max(*told);
        put(told, most);
    }
}

/// Stores a number at once, where another process looks.
fn put(place: &mut u32, number: u32) {
    // SAFETY: it is a reference.
    unsafe { std::ptr::write_volatile(place, number) };
}

/// Takes up what a process left that was killed, and has the guest get what it lacks.
fn survives(left: &mut Shared) {
    let Shared { hosts, at, has, told } = left;
    let missing = told.saturating_sub(*has);
    let config = Config { seed: 9, ..Config::default() };
    let mut early = EarlyAck::resume(hosts[*at as usize].memory(), config, Mode::Always, Nanos(5));
    let stats = early.stats();
    assert_eq!(stats.fallbacks(Fallback::Damaged), 0, "has {has}, told {told}");
    // It is heard of again, should it have stood still.
    show(&mut early, Direction::Out, ack(*has));
    let owed: u32 = early.flows().map(|flow| flow.owed).sum();
    assert!(owed >= missing, "the guest has {has} bytes, its sender was told of {told}, {owed} are owed");
    let mut got = *has;
    while early.poll_timeout() != Nanos::NEVER && got < *told {
        let now = early.poll_timeout().max(Nanos(5));
        let sent = early.on_timeout(now).map(<[u8]>::to_vec);
        let Some(sent) = sent else { continue };
        let ethernet = Ethernet::new_checked(&sent).unwrap();
        let ip = Ip::of(&ethernet).unwrap().unwrap();
        let tcp = Tcp::new_checked(ip.upper().unwrap().payload).unwrap();
        assert!(!tcp.flags().contains(TcpFlags::RST), "a healthy sender is reset");
        let from = tcp.sequence().wrapping_sub(SENDER);
        assert!(from <= got, "a gap from {got} to {from}");
        let expected: Vec<u8> = (from..from + tcp.payload().len() as u32).map(byte).collect();
        assert!(tcp.payload() == expected, "other bytes than were sent, from {from} on");
        got = from + expected.len() as u32;
        show(&mut early, Direction::Out, ack(got));
    }
    assert!(got >= *told);
    assert_eq!(early.stats().resets, 0);
}

/// Has this thread and its children on one CPU: they take turns all the time.
fn on_one_cpu() {
    // SAFETY: the set is a local one of the right size; the calls write and read it alone.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn bytes(shared: &Shared) -> &[u8] {
    // SAFETY: all of it are integers, without padding but behind the last, where the mapping has zeros.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(shared).cast(), size_of::<Shared>()) }
}

#[test]
fn a_process_that_is_killed_at_any_store_loses_nothing() {
    // SAFETY: flows, blocks and numbers, all of them integers.
    let [shared, seen, copy] = [(); 3].map(|()| unsafe { &mut *shared::<Shared>() });
    let deeds = deeds();
    on_one_cpu();
    // SAFETY: the child does nothing but work on the shared memory, allocate (which the system's library allows after a fork), and end.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: as above; the calls have no memory of ours.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(shared, deeds)));
            libc::_exit(i32::from(done.is_err()));
        }
    }
    let (mut status, mut stores, mut steps) = (0, 0u64, 0u64);
    let overwrite = |place: &mut Shared, from: &Shared| {
        // SAFETY: both are whole; the child stands still.
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
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| survives(copy)));
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
    assert_eq!((libc::WIFEXITED(ended), libc::WEXITSTATUS(ended)), (true, 0), "the child did all it was to");
    println!("{steps} instructions, {stores} of them stores that were survived");
    assert!(stores > 500, "{stores}");
}
