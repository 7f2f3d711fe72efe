//! Early ack with real Linux TCP at both ends: a host behind a tap, the backend as a process, and a guest that does not serve its
//! ring while it has no CPU. The hash of every payload must match, and no connection may hang.
//!
//! Without root, the tests are ignored with a message. `FAIRLANE_TRANSFERS=10000` in the environment sets the number of transfers, and
//! makes the pause 30 s instead of 3 s.

mod backend;
#[path = "../bpftrace/mod.rs"]
mod bpftrace;
#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
mod guest;
mod migration;
mod namespace;
mod stage;
#[path = "../../../lab/tests/support/mod.rs"]
mod support;
mod tracepoint;
mod transfer;

use fairlane_lab::Error;
use guest::Behavior;
use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stage::Stage;
use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use support::guest_test;

/// Size of a transfer that is still running when its guest is paused, in bytes.
const LONG: usize = 32 << 20;

const MS: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    let tests = vec![
        guest_trial("every_transfer_is_intact_under_faults", every_transfer_is_intact_under_faults),
        trial("large_frames_with_partial_checksums_are_intact", large_frames_with_partial_checksums_are_intact),
        trial("acknowledged_data_survives_a_killed_backend", acknowledged_data_survives_a_killed_backend),
        trial("flows_are_handed_over", flows_are_handed_over),
        trial("flows_are_moved_to_another_backend", flows_are_moved_to_another_backend),
        trial("early_ack_that_is_turned_off_finishes_its_flows", early_ack_that_is_turned_off_finishes_its_flows),
        guest_trial("the_tracepoint_says_what_early_ack_makes", tracepoint::the_tracepoint_says_what_early_ack_makes),
        guest_trial("qemu_migrates_a_guest_during_a_transfer", migration::qemu_migrates_a_guest_during_a_transfer),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    guest_trial(name, move || {
        test();
        Ok(())
    })
}

/// A test that needs a network namespace and the lab's guests.
fn guest_trial(name: &str, test: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Trial {
    guest_test(name, move || {
        let _namespace = namespace::Namespace::new()?;
        test()
    })
}

/// Loss, duplication and reordering after the ring, drops by the guest's packet filter, stalls of the guest, a long pause, and slow
/// readers.
fn every_transfer_is_intact_under_faults() -> Result<(), Error> {
    let behavior =
        Behavior { slices: Some((10 * MS, 30 * MS)), loss: 0.01, duplicated: 0.005, delayed: 0.005, offloads: false };
    let stage = Stage::new("true", behavior);
    stage.filter_one_in(200)?;
    let count: u64 = env::var("FAIRLANE_TRANSFERS").map_or(400, |text| text.parse().expect("a number of transfers"));
    let next = Arc::new(AtomicU64::new(0));
    let senders: Vec<_> = (0..6)
        .map(|_| {
            let next = next.clone();
            stage.spawn_sender(move |to| {
                let mut failed = Vec::new();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return failed;
                    }
                    let mut random = StdRng::seed_from_u64(seed);
                    let (size, slow) = (transfer::size(&mut random, 1_000_000), random.random_bool(0.2));
                    failed.extend(transfer::send(to, size, slow, seed).err());
                }
            })
        })
        .collect();
    stage.until("a hundred transfers to start", |_| next.load(Ordering::Relaxed) >= 100);
    stage.guest.pause(true);
    thread::sleep(if count < 10_000 { 3000 * MS } else { 30_000 * MS });
    stage.guest.pause(false);
    let failed: Vec<String> = senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect();
    let early = stage.early();
    eprintln!("{count} transfers: {early}");
    assert!(failed.is_empty(), "{failed:#?}\n{early}");
    assert!(early["early_acks"].as_u64() > Some(count), "{early}");
    assert!(early["retransmissions"].as_u64() > Some(0), "{early}");
    assert_eq!(early["resets"], 0, "{early}");
    Ok(())
}

/// A guest that accepts large frames with partial checksums: retransmitted copies must be as valid as segmented, complete frames.
fn large_frames_with_partial_checksums_are_intact() {
    let behavior = Behavior { slices: Some((10 * MS, 30 * MS)), loss: 0.03, offloads: true, ..Behavior::default() };
    let stage = Stage::new("\"always\"", behavior);
    let sender =
        stage.spawn_sender(move |to| (0..20).map(|seed| transfer::send(to, 300_000, false, seed)).collect::<Vec<_>>());
    sender.join().unwrap().into_iter().for_each(Result::unwrap);
    let (early, large) = (stage.early(), stage.guest.large());
    eprintln!("{large} large frames: {early}");
    assert!(large > 20 && early["early_acks"].as_u64() > Some(20), "{large} large frames, {early}");
    assert!(early["retransmissions"].as_u64() > Some(0), "{early}");
    assert_eq!(early["resets"], 0, "{early}");
}

/// The guest is paused, the backend has acknowledged data that the guest does not have, and the backend is killed.
fn acknowledged_data_survives_a_killed_backend() {
    let mut stage = Stage::new("\"always\"", Behavior { loss: 0.01, ..Behavior::default() });
    // A backend that ends normally must keep as much.
    for (seed, signal) in [Signal::SIGKILL, Signal::SIGKILL, Signal::SIGKILL, Signal::SIGTERM].into_iter().enumerate() {
        let sender = stage.spawn_sender(move |to| transfer::send(to, LONG, false, seed as u64));
        let owed = stage.pause_and_owe();
        stage.backend.kill(signal);
        stage.restart();
        ends_whole(&stage, sender, owed);
    }
}

/// The guest is paused, the backend owes it data, and another process takes over.
fn flows_are_handed_over() {
    let mut stage = Stage::new("\"always\"", Behavior { loss: 0.01, ..Behavior::default() });
    for seed in 0..3 {
        let sender = stage.spawn_sender(move |to| transfer::send(to, LONG, false, seed));
        let owed = stage.pause_and_owe();
        stage.hand_over();
        ends_whole(&stage, sender, owed);
    }
}

/// The guest is paused, its flows are exported and imported, and it resumes with another backend.
fn flows_are_moved_to_another_backend() {
    let mut stage = Stage::new("\"always\"", Behavior { loss: 0.01, ..Behavior::default() });
    let sender = stage.spawn_sender(move |to| transfer::send(to, LONG, false, 1));
    let owed = stage.pause_and_owe();
    let exported = stage.backend.ctl("flows export web DIR/web.flows");
    assert!(exported.ends_with(" written\n"), "{exported}");
    stage.backend.kill(Signal::SIGTERM);
    stage.remove_state();
    stage.restart();
    assert_eq!(stage.backend.ctl("flows import web DIR/web.flows"), "1 flow taken over\n");
    ends_whole(&stage, sender, owed);
}

/// The next backend owes the guest as much as the former one. The guest goes on, and the transfer ends.
fn ends_whole(stage: &Stage, sender: JoinHandle<Result<(), String>>, owed: u64) {
    assert_eq!(stage.backend.owed(), owed, "the data owed to the guest changed");
    stage.guest.pause(false);
    sender.join().unwrap().unwrap();
    assert_eq!(stage.early()["resets"], 0);
    // Or the next transfer would be taken to have started.
    stage.until("the flow to end", |stage| stage.backend.flows().is_empty());
}

/// Early ack is turned off and on during transfers, also while data are owed to the guest.
fn early_ack_that_is_turned_off_finishes_its_flows() {
    let stage = Stage::new("\"always\"", Behavior { loss: 0.01, ..Behavior::default() });
    let done = Arc::new(AtomicBool::new(false));
    let finished = done.clone();
    let sender = stage.spawn_sender(move |to| {
        let sent: Vec<_> = (0..40).map(|seed| transfer::send(to, 100_000, false, seed)).collect();
        finished.store(true, Ordering::Relaxed);
        sent
    });
    for mode in ["false", "always"].into_iter().cycle() {
        if done.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(50 * MS);
        assert_eq!(stage.backend.ctl(&format!("set web early_ack={mode}")), "");
    }
    sender.join().unwrap().into_iter().for_each(Result::unwrap);
    stage.backend.ctl("set web early_ack=false");
    stage.until("the early ack file to be removed", |stage| !stage.has_state());
    assert_eq!(stage.early(), serde_json::Value::Null);
}
