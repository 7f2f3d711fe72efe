//! Guests that come and go beside a stream: it loses nothing, and nothing of them stays. `make soak` does this for seven minutes
//! (`FAIRLANE_GUESTS_COME`), with up to 2,000 of them at a time.

#[path = "../../port/tests/frontend/guest.rs"]
mod guest;

use fairlane_engine::Engine;
use fairlane_engine::control::{Add, Client};
use fairlane_policy::{Kind, Policy};
use guest::{Frontend, HEADER, NO_HEADER, PLAIN};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::collections::VecDeque;
use std::fs::read_dir;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Vifs that are added and removed again; a tenth of them at a time.
fn guests() -> usize {
    std::env::var("FAIRLANE_GUESTS_COME").map_or(1000, |text| text.parse().expect("FAIRLANE_GUESTS_COME is a number"))
}

/// The frames of the stream that are on their way at most.
const RING: u16 = 64;

/// Bytes that may be held in addition after as many guests as before, for each.
const MORE: usize = 64;

fn mac(last: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, last]
}

fn shown(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn add(kind: Kind, name: &str, settings: &[(&str, &str)]) -> Add {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Add { kind, name: name.to_owned(), settings, replace: false }
}

/// Sends numbered frames from one guest to another until told to stop. Each must arrive, once and in order. Returns their number.
fn stream(from: &mut Frontend, to: &mut Frontend, stop: &AtomicBool) -> u64 {
    let (mut sent, mut received) = (0u64, 0u64);
    let mut free: VecDeque<u16> = (0..RING).collect();
    for guest in [&mut *from, to] {
        (0..RING).for_each(|index| guest.post_buffer(index, 256));
        guest.kick(0);
    }
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        while !stopping
            && sent - received < u64::from(RING)
            && let Some(index) = free.pop_front()
        {
            let frame = [&mac(2)[..], &mac(1), &[0x88, 0xb5], &sent.to_be_bytes(), &[0; 64]].concat();
            from.transmit(index, NO_HEADER, &frame);
            sent += 1;
        }
        from.kick(1);
        free.extend(from.completed(1).into_iter().map(|(head, _)| head as u16));
        for (head, len) in to.completed(0) {
            let frame = &to.received_buffer(head, len)[HEADER..];
            // Others broadcast.
            if frame[6..12] == mac(1) {
                assert_eq!(frame[14..22], received.to_be_bytes(), "a frame is missing, or not in its place");
                received += 1;
            }
            to.post_buffer(head as u16, 256);
        }
        // Others' broadcasts.
        from.completed(0).into_iter().for_each(|(head, _)| from.post_buffer(head as u16, 256));
        [&*from, to].into_iter().for_each(|guest| guest.kick(0));
        if stopping && sent == received {
            return received;
        }
        std::thread::yield_now();
    }
}

/// What the process holds.
#[derive(Debug)]
struct Held {
    bytes: usize,
    descriptors: usize,
    threads: usize,
    files: Vec<std::ffi::OsString>,
}

impl Held {
    /// What is held once no more than so many threads are left, or after half a minute: some close what guests had.
    fn with_threads(threads: usize, directory: &Path) -> Held {
        let end = Instant::now() + Duration::from_secs(30);
        while count("/proc/self/task") > threads && Instant::now() < end {
            std::thread::yield_now();
        }
        let stats = ALLOCATOR.stats();
        let mut files: Vec<_> = read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        Held {
            bytes: stats.bytes_allocated - stats.bytes_deallocated,
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            files,
        }
    }
}

fn count(directory: &str) -> usize {
    read_dir(directory).unwrap().count()
}

/// Adds vifs, and removes each again, in an order by chance; among them tenants, links, and guests that connect, send, and end
/// before or after their vif.
fn come_and_go(client: &mut Client, directory: &Path) {
    let mut chance = StdRng::seed_from_u64(1);
    let mut present: Vec<(String, Option<Frontend>)> = Vec::new();
    let (mut added, guests) = (0, guests());
    while added < guests || !present.is_empty() {
        if added < guests && (present.is_empty() || chance.random_bool(0.55)) {
            let name = format!("guest-{added}");
            let socket = directory.join(&name);
            let weight = chance.random_range(1..1000).to_string();
            let mut settings = vec![("socket", socket.to_str().unwrap()), ("weight", &weight), ("link", "lan")];
            match added % 50 {
                1 => client.add(add(Kind::Link, "dmz", &[("rate", "1Gbit/s")])).unwrap(),
                2 => settings[2].1 = "dmz",
                3 => client.add(add(Kind::Tenant, "red", &[("max_rate", "2Gbit/s")])).unwrap(),
                4 => settings.push(("tenant", "red")),
                5 => settings.push(("early_ack", "true")),
                _ => {}
            }
            client.add(add(Kind::Vif, &name, &settings)).unwrap();
            let guest = chance.random_bool(0.1).then(|| {
                let mut guest = Frontend::connect(&socket, RING);
                guest.set_up(PLAIN, 2);
                let frame = [&[0xff; 6][..], &[0x52, 0x54, 1, 0, (added >> 8) as u8, added as u8], &[0; 60]].concat();
                guest.transmit(0, NO_HEADER, &frame);
                guest.kick(1);
                guest
            });
            present.push((name, guest));
            added += 1;
            // The link and the tenant end with their last vif.
            if let 40 = added % 50 {
                for name in [added - 40 + 2, added - 40 + 4].map(|number| format!("guest-{number}")) {
                    if let Some(at) = present.iter().position(|(other, _)| *other == name) {
                        present.swap_remove(at);
                        client.remove(Kind::Vif, &name).unwrap();
                    }
                }
                client.remove(Kind::Link, "dmz").unwrap();
                client.remove(Kind::Tenant, "red").unwrap();
            }
        } else {
            let (name, guest) = present.swap_remove(chance.random_range(0..present.len()));
            if chance.random_bool(0.5) {
                drop(guest);
            }
            client.remove(Kind::Vif, &name).unwrap();
        }
    }
}

#[test]
fn a_stream_beside_guests_that_come_and_go_loses_nothing_and_they_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let control = place.join("control");
    let mut text = format!("control = {control:?}\n[[link]]\nname = \"lan\"\n");
    for (name, number) in [("from", 1), ("to", 2)] {
        let (socket, mac) = (place.join(name), shown(mac(number)));
        text += &format!("[[vif]]\nname = {name:?}\nlink = \"lan\"\nsocket = {socket:?}\nmac = \"{mac}\"\n");
    }
    let engine = Engine::start(Policy::parse("policy.toml", &text).unwrap()).unwrap();
    // Two more will be there all the time: the stream, and the client's in the daemon. Others close what a frontend passed, and end.
    let threads = count("/proc/self/task") + 2;
    let (mut from, mut to) = (Frontend::connect(&place.join("from"), RING), Frontend::connect(&place.join("to"), RING));
    from.set_up(PLAIN, 2);
    to.set_up(PLAIN, 2);
    let is_up =
        || engine.snapshot().unwrap().vifs.iter().all(|vif| vif.port.state == fairlane_engine::snapshot::State::Up);
    while !is_up() {
        std::thread::yield_now();
    }

    let before = engine.policy();
    let mut client = Client::connect(&control).unwrap();
    let stop = AtomicBool::new(false);
    let passed = std::thread::scope(|scope| {
        let streaming = scope.spawn(|| stream(&mut from, &mut to, &stop));
        // Tables keep their largest size, so the same happens twice.
        come_and_go(&mut client, place);
        let held = Held::with_threads(threads, place);
        come_and_go(&mut client, place);
        let after = Held::with_threads(threads, place);
        stop.store(true, Ordering::Relaxed);
        assert!(after.bytes <= held.bytes + MORE * guests(), "{after:?} is held, and was {held:?}");
        assert_eq!((after.descriptors, after.threads, &after.files), (held.descriptors, threads, &held.files));
        streaming.join().unwrap()
    });
    assert_eq!(engine.policy(), before);
    let shown = engine.snapshot().unwrap();
    let [from, to] = &shown.vifs[..] else { panic!("{shown:?}") };
    assert_eq!((from.port.sent_frames, &from.port.drops), (passed, &Default::default()));
    assert_eq!(to.port.drops, Default::default());
    assert!(passed > 0);
}
