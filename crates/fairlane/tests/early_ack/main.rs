//! Early ack with real Linux TCP at both ends: a host behind a tap, the backend as a process, and a guest whose ring is left
//! alone while it has no CPU. Every payload's hash must be equal, and no connection hang.
//!
//! Without root this says so, and counts as ignored. `FAIRLANE_TRANSFERS=10000` in the environment makes more of it, with a pause of
//! 30 s in its midst instead of 3.

mod backend;
#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
mod guest;
mod moved;
mod namespace;
mod stage;
#[path = "../../../lab/tests/support/mod.rs"]
mod support;
mod transfer;

use fairlane_lab::Error;
use guest::Life;
use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stage::Stage;
use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use support::guest_test;

/// Bytes of a transfer that is not at its end when its guest is paused.
const LONG: usize = 8 << 20;

const MS: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    let tests = vec![
        guest_trial("every_transfer_is_whole_under_faults", every_transfer_is_whole_under_faults),
        trial("large_frames_with_checksums_left_to_do_are_whole", large_frames_with_checksums_left_to_do_are_whole),
        trial("what_was_acknowledged_survives_a_killed_backend", what_was_acknowledged_survives_a_killed_backend),
        trial("flows_are_carried_to_another_backend", flows_are_carried_to_another_backend),
        trial("what_is_turned_off_is_brought_to_its_end", what_is_turned_off_is_brought_to_its_end),
        guest_trial("a_guest_is_moved_by_qemu_in_mid_transfer", moved::a_guest_is_moved_by_qemu_in_mid_transfer),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    guest_trial(name, move || {
        test();
        Ok(())
    })
}

/// A test that needs a network namespace, and guests as the lab boots them.
fn guest_trial(name: &str, test: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Trial {
    guest_test(name, move || {
        let _namespace = namespace::Namespace::new()?;
        test()
    })
}

/// Loss, doubling and reordering behind the ring, drops by the guest's own packet filter, stalls of the guest and a long pause,
/// readers that take their time.
fn every_transfer_is_whole_under_faults() -> Result<(), Error> {
    let life = Life { slices: Some((10 * MS, 30 * MS)), loss: 0.01, doubled: 0.005, late: 0.005, offloads: false };
    let stage = Stage::new("true", life);
    stage.filter_one_in(200)?;
    let count: u64 = env::var("FAIRLANE_TRANSFERS").map_or(400, |text| text.parse().expect("a number of transfers"));
    let next = Arc::new(AtomicU64::new(0));
    let senders: Vec<_> = (0..6)
        .map(|_| {
            let next = next.clone();
            stage.sends(move |to| {
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
    stage.until("a hundred transfers have begun", |_| next.load(Ordering::Relaxed) >= 100);
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

/// A guest that takes large frames as the host's kernel made them: their copies must be as good as what was cut and completed.
fn large_frames_with_checksums_left_to_do_are_whole() {
    let life = Life { slices: Some((10 * MS, 30 * MS)), loss: 0.03, offloads: true, ..Life::default() };
    let stage = Stage::new("\"always\"", life);
    let sender =
        stage.sends(move |to| (0..20).map(|seed| transfer::send(to, 300_000, false, seed)).collect::<Vec<_>>());
    sender.join().unwrap().into_iter().for_each(Result::unwrap);
    let (early, large) = (stage.early(), stage.guest.large());
    eprintln!("{large} large frames: {early}");
    assert!(large > 20 && early["early_acks"].as_u64() > Some(20), "{large} large frames, {early}");
    assert!(early["retransmissions"].as_u64() > Some(0), "{early}");
    assert_eq!(early["resets"], 0, "{early}");
}

/// The guest waits, the sender was told of bytes that it does not have, and the backend is killed.
fn what_was_acknowledged_survives_a_killed_backend() {
    let mut stage = Stage::new("\"always\"", Life { loss: 0.01, ..Life::default() });
    // Ended in an orderly way, it leaves as much.
    for (seed, signal) in [Signal::SIGKILL, Signal::SIGKILL, Signal::SIGKILL, Signal::SIGTERM].into_iter().enumerate() {
        let sender = stage.sends(move |to| transfer::send(to, LONG, false, seed as u64));
        let owed = stage.pause_and_owe();
        stage.backend.kill(signal);
        stage.restart();
        assert_eq!(stage.backend.owed(), owed, "as much is owed to the guest as before");
        stage.guest.pause(false);
        sender.join().unwrap().unwrap();
        assert_eq!(stage.early()["resets"], 0);
    }
}

/// The guest is paused, its flows are exported and imported, and it goes on at another backend.
fn flows_are_carried_to_another_backend() {
    let mut stage = Stage::new("\"always\"", Life { loss: 0.01, ..Life::default() });
    let sender = stage.sends(move |to| transfer::send(to, LONG, false, 1));
    let owed = stage.pause_and_owe();
    let exported = stage.backend.ctl("flows export web DIR/web.flows");
    assert!(exported.ends_with(" written\n"), "{exported}");
    stage.backend.kill(Signal::SIGTERM);
    stage.forget();
    stage.restart();
    assert_eq!(stage.backend.ctl("flows import web DIR/web.flows"), "1 flow taken over\n");
    assert_eq!(stage.backend.owed(), owed);
    stage.guest.pause(false);
    sender.join().unwrap().unwrap();
    assert_eq!(stage.early()["resets"], 0);
}

/// Turned off and on while transfers pass, also while the guest is owed something.
fn what_is_turned_off_is_brought_to_its_end() {
    let stage = Stage::new("\"always\"", Life { loss: 0.01, ..Life::default() });
    let done = Arc::new(AtomicBool::new(false));
    let ends = done.clone();
    let sender = stage.sends(move |to| {
        let sent: Vec<_> = (0..40).map(|seed| transfer::send(to, 100_000, false, seed)).collect();
        ends.store(true, Ordering::Relaxed);
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
    stage.until("nothing is kept any more", |stage| !stage.keeps());
    assert_eq!(stage.early(), serde_json::Value::Null);
}
