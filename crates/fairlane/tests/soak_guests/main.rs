//! A soak test with real guests and a running daemon. Guests boot, power off, wait for a CPU, and send data with hashes to each other
//! and to the host. Meanwhile hostile frontends attack, settings and policies change, the uplink goes down, and the daemon is killed
//! and upgraded. A seed determines all events.
//!
//! By default, the test has two cycles without an emulated machine. `FAIRLANE_SOAK_HOURS` and `FAIRLANE_SOAK_SEED` in the environment set
//! a duration and another seed. No assertion depends on speed: timeouts only detect hangs, and shares are relative to what the link
//! carried. A failure prints its seed and all events so far.

mod contest;
#[path = "../daemon/mod.rs"]
mod daemon;
mod events;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
#[path = "../hostile/mod.rs"]
mod hostile;
mod invariants;
mod journal;
#[path = "../early_ack/namespace.rs"]
mod namespace;
#[path = "../../../lab/tests/support/mod.rs"]
mod support;
mod transfers;
mod world;

use fairlane_lab::Error;
use journal::Journal;
use libtest_mimic::Arguments;
use namespace::Namespace;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::guest_test;
use world::World;

/// In a long soak, one of this many cycles ends with a kill or an upgrade.
const RESTARTS: u32 = 6;

fn main() -> ExitCode {
    hostile::renice(hostile::OURS);
    let number = |name: &str| env::var(format!("FAIRLANE_SOAK_{name}")).ok().map(|text| text.parse().expect(name));
    let (hours, seed) = (number("HOURS"), number("SEED").unwrap_or(1.0) as u64);
    let test = move || soak(Namespace::new()?, hours, seed);
    let tests = vec![guest_test("real_guests_survive_random_events", test)];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Runs for some hours, or two cycles without `hours`.
fn soak(network: Namespace, hours: Option<f64>, seed: u64) -> Result<(), Error> {
    let journal = Arc::new(Journal::new());
    let run = || {
        let random = StdRng::seed_from_u64(seed);
        match hours {
            None => {
                cycles(World::build(network, false, journal.clone())?, random, |cycle| cycle < 2, |cycle| cycle == 0)
            }
            Some(hours) => {
                let end = Instant::now() + Duration::from_secs_f64(hours * 3600.0);
                let mut restarts = StdRng::seed_from_u64(!seed);
                let world = World::build(network, true, journal.clone())?;
                cycles(world, random, |_| Instant::now() < end, |_| restarts.random_ratio(1, RESTARTS))
            }
        }
    };
    let print_journal = || eprintln!("seed {seed}; events:\n{}", journal.lines().join("\n"));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            print_journal();
            Err(error)
        }
        Err(panic) => {
            print_journal();
            resume_unwind(panic)
        }
    }
}

/// Runs cycles. Each has transfers with events, a contest, a check of the invariants, and sometimes a restart of the daemon.
fn cycles(
    mut world: World,
    mut random: StdRng,
    more: impl Fn(u32) -> bool,
    mut restarts: impl FnMut(u32) -> bool,
) -> Result<(), Error> {
    let mut first = None;
    for cycle in 0.. {
        if !more(cycle) {
            break;
        }
        world.journal.write(format!("cycle {cycle}"));
        // One guest may be powered off meanwhile.
        let leaver = *world::pick(&mut random, &[0, 1, 2, 3]);
        let transfers = transfers::start_some(&world, &mut random, leaver)?;
        events::run_some(&mut world, &mut random, leaver)?;
        transfers.into_iter().for_each(|transfer| transfer.finish(&world.journal));
        contest::run(&mut world, &mut random)?;
        invariants::check(&mut world, &mut first);
        if restarts(cycle) {
            world.restart(&mut random)?;
        }
    }
    world.stop()
}
