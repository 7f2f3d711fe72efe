//! The soak: the engine's own bridges, schedulers, switch, early ack and policy changes in virtual time. Guests start, stop, stall
//! and attack, policies change, uplinks fail and backends are killed, and everything they do is checked against a ledger.
//!
//! By default it simulates a minute. `FAIRLANE_SOAK_HOURS`, `FAIRLANE_SOAK_VIFS` and `FAIRLANE_SOAK_SEED` in the environment change
//! it. The same seed gives exactly the same run; a failure reports its seed and step.

mod actions;
mod backend;
mod card;
mod contest;
#[path = "../../../core/tests/ack/ends.rs"]
mod ends;
mod frame;
mod guest;
mod ledger;
mod limit;
mod memory;
mod scenario;
mod transfer;
#[path = "../../../core/tests/ack/wire.rs"]
mod wire;
mod world;

use fairlane_core::time::{Nanos, SECOND};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::Totals;
use libtest_mimic::{Arguments, Trial};
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::time::Instant;
use transfer::Transfers;
use world::World;

const MINUTE: Nanos = Nanos(60 * SECOND);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Memory is measured for the whole process.
    arguments.test_threads = Some(1);
    let number = |name: &str| env::var(format!("FAIRLANE_SOAK_{name}")).ok().map(|text| text.parse().expect(name));
    let (hours, vifs, seed) = (number("HOURS"), number("VIFS").unwrap_or(1000), number("SEED").unwrap_or(1));
    let again = move || {
        let run = || soak(seed, 100, &[Nanos(10 * SECOND)]);
        let (one, other) = (run(), run());
        if one == other { Ok(()) } else { Err(format!("{one:?} is not {other:?}").into()) }
    };
    let spans: Vec<Nanos> = match hours {
        None => vec![MINUTE],
        Some(hours) => vec![Nanos(3600 * SECOND); hours as usize],
    };
    let long = move || {
        soak(seed, vifs as usize, &spans);
        Ok(())
    };
    let tests =
        vec![Trial::test("a_seed_comes_again_to_the_digit", again), Trial::test("nothing_breaks_a_promise", long)];
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// Runs this many spans, without guests between two of them.
fn soak(seed: u64, vifs: usize, spans: &[Nanos]) -> Totals {
    let began = Instant::now();
    let bar = ProgressBar::new(spans.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} eta {eta}").expect("it is a template"));
    let mut world = World::new(seed, vifs);
    for (span, time) in spans.iter().enumerate() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run(*time))) {
            let at = world.clock.look().as_secs_f64();
            eprintln!("seed {seed}, {vifs} vifs, step {}, at {at} s; again: FAIRLANE_SOAK_SEED={seed}", world.steps);
            for (time, backend, action) in &world.actions {
                eprintln!("  {:.6} s, backend {backend}: {action:?}", time.as_secs_f64());
            }
            resume_unwind(panic);
        }
        bar.inc(1);
        if spans.len() > 1 {
            eprintln!("{} of {}, {:.0} s: {}", span + 1, spans.len(), began.elapsed().as_secs_f64(), account(&world));
        }
    }
    bar.finish_and_clear();
    println!("seed {seed}, {vifs} vifs: {}", account(&world));
    world.totals()
}

/// A summary of what was done.
fn account(world: &World) -> String {
    let World { steps, done, .. } = world;
    let Transfers { begun, done: whole, given_up, .. } = world.transfers;
    let transfers = format!("transfers: {begun} begun, {whole} done, {given_up} of guests that left");
    let held = world.held.expect("it was empty");
    format!("{steps} steps, {:?}; {transfers}; {held:?}; {done:?}", world.totals())
}
