//! The soak on real guests: a running daemon, guests that come, go, wait for their CPU and send bytes whose hashes are compared, to each
//! other and to the host, while frontends beside them attack, settings and policies change, the uplink goes down, and the daemon is
//! killed and upgraded, as a seed has it.
//!
//! Two cycles without an emulated computer by default. `FAIRLANE_SOAK_HOURS` and `FAIRLANE_SOAK_SEED` in the environment make more of it,
//! or another. No assertion is about speed: bounds on waits are for what hangs, and shares are parts of what the same link carried.
//! A failure says its seed, and what was done until then.

mod books;
mod contest;
#[path = "../daemon/mod.rs"]
mod daemon;
mod deeds;
mod diary;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
#[path = "../hostile/mod.rs"]
mod hostile;
#[path = "../early_ack/namespace.rs"]
mod namespace;
#[path = "../../../lab/tests/support/mod.rs"]
mod support;
mod transfers;
mod world;

use diary::Diary;
use fairlane_lab::Error;
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

/// Of how many cycles one ends with a kill or an upgrade, where there are hours.
const RESTARTS: u32 = 6;

fn main() -> ExitCode {
    hostile::renice(hostile::OURS);
    let number = |name: &str| env::var(format!("FAIRLANE_SOAK_{name}")).ok().map(|text| text.parse().expect(name));
    let (hours, seed) = (number("HOURS"), number("SEED").unwrap_or(1.0) as u64);
    let test = move || soak(Namespace::new()?, hours, seed);
    let tests = vec![guest_test("nothing_breaks_a_promise_to_real_guests", test)];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Runs for so many hours, or a short form of it.
fn soak(network: Namespace, hours: Option<f64>, seed: u64) -> Result<(), Error> {
    let diary = Arc::new(Diary::new());
    let run = || {
        let random = StdRng::seed_from_u64(seed);
        match hours {
            None => cycles(World::build(network, false, diary.clone())?, random, |cycle| cycle < 2, |cycle| cycle == 0),
            Some(hours) => {
                let end = Instant::now() + Duration::from_secs_f64(hours * 3600.0);
                let mut restarts = StdRng::seed_from_u64(!seed);
                let world = World::build(network, true, diary.clone())?;
                cycles(world, random, |_| Instant::now() < end, |_| restarts.random_ratio(1, RESTARTS))
            }
        }
    };
    let tell = || eprintln!("seed {seed}; what was done:\n{}", diary.lines().join("\n"));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            tell();
            Err(error)
        }
        Err(panic) => {
            tell();
            resume_unwind(panic)
        }
    }
}

/// Cycles while there are to be more. Each is transfers with deeds beside them, then a contest, the books, and, now and then, another daemon.
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
        world.diary.say(format!("cycle {cycle}"));
        // One may be elsewhere for a while.
        let leaver = *world::pick(&mut random, &[0, 1, 2, 3]);
        let transfers = transfers::begin_some(&world, &mut random, leaver)?;
        deeds::some(&mut world, &mut random, leaver)?;
        transfers.into_iter().for_each(|transfer| transfer.end(&world.diary));
        contest::held(&mut world, &mut random)?;
        books::balance(&mut world, &mut first);
        if restarts(cycle) {
            world.restart(&mut random)?;
        }
    }
    world.stop()
}
