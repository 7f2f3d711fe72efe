//! Random events during transfers, determined by the seed.

use crate::daemon::vif;
use crate::hostile::ACCOMPLICE;
use crate::hostile::attack::{Accomplice, Attack};
use crate::hostile::cases::{CASES, Case};
use crate::hostile::mac;
use crate::invariants;
use crate::world::{GUESTS, Settings, WEIGHT, World, pick};
use fairlane_lab::Error;
use rand::RngExt;
use rand::rngs::StdRng;
use std::thread;
use std::time::Duration;

/// Number of events in a cycle.
const EVENTS: usize = 5;

/// Longest pause of a guest or the link, in milliseconds: ARP gives up after 3 s without an answer.
const MAX_PAUSE: u64 = 1500;

/// Runs some events. Meanwhile one guest without transfers may be powered off, and is booted again at the end.
///
/// # Errors
/// A guest ended.
pub(crate) fn run_some(world: &mut World, random: &mut StdRng, leaver: usize) -> Result<(), Error> {
    let leaves = random.random_bool(0.5);
    if leaves {
        world.journal.write(format_args!("{} is powered off", GUESTS[leaver].name));
        world.power_off(leaver)?;
    }
    for _ in 0..EVENTS {
        thread::sleep(milliseconds(random, 300));
        match random.random_range(0..10) {
            0 | 1 => suspend(world, random)?,
            2 | 3 => slice(world, random)?,
            4 | 5 => set(world, random),
            6 => {
                let settings = Settings { rate: random.random_range(10..40), weights: weights(random) };
                world.reload(settings);
            }
            7 => {
                let time = milliseconds(random, MAX_PAUSE);
                world.link_down(time);
            }
            _ => attack(world, random),
        }
    }
    if leaves {
        world.boot(&[leaver])?;
        world.journal.write(format_args!("{} is up again", GUESTS[leaver].name));
    }
    Ok(())
}

/// Weights of the two guests that share a link: the attacker's weight or a multiple.
pub(crate) fn weights(random: &mut StdRng) -> [u32; 2] {
    [(); 2].map(|()| WEIGHT * random.random_range(1..4))
}

/// An attack without huge pages, which would have to be reserved; in a short soak, none that leaves connections behind for a minute.
pub(crate) fn random_case(world: &World, random: &mut StdRng) -> &'static Case {
    loop {
        let case = pick(random, CASES);
        if !case.huge && (world.long || !case.unreachable) {
            return case;
        }
    }
}

fn milliseconds(random: &mut StdRng, most: u64) -> Duration {
    Duration::from_millis(random.random_range(0..most))
}

/// A guest is suspended once.
fn suspend(world: &World, random: &mut StdRng) -> Result<(), Error> {
    let (guest, time) = (*pick(random, &world.present()), milliseconds(random, MAX_PAUSE));
    world.journal.write(format_args!("{} is suspended for {time:?}", GUESTS[guest].name));
    world.guest(guest).suspend()?;
    thread::sleep(time);
    world.guest(guest).resume()
}

/// A guest has a CPU in slices, as if it shared the CPU with two other guests.
fn slice(world: &World, random: &mut StdRng) -> Result<(), Error> {
    let (guest, times) = (*pick(random, &world.present()), random.random_range(5..20));
    world.journal.write(format_args!("{} runs in {times} slices", GUESTS[guest].name));
    for _ in 0..times {
        world.guest(guest).suspend()?;
        thread::sleep(Duration::from_millis(60));
        world.guest(guest).resume()?;
        thread::sleep(Duration::from_millis(30));
    }
    Ok(())
}

/// Changes a setting of a vif or link.
fn set(world: &World, random: &mut StdRng) {
    let guest = &GUESTS[random.random_range(0..GUESTS.len())];
    match random.random_range(0..5) {
        0 => world.set(guest.name, &format!("weight={}", random.random_range(10..1000))),
        1 => world.set(guest.name, &format!("max_rate={}", pick(random, &["none", "8Mbit/s", "30Mbit/s"]))),
        2 => world.set(guest.link, &format!("idle_timeout={}ms", random.random_range(1..300))),
        3 => world.set("near", &format!("rate={}Mbit/s", random.random_range(10..40))),
        _ => {
            let name = pick(random, &["four", "five"]);
            world.set(name, &format!("early_ack={}", pick(random, &["false", "true", "always"])));
        }
    }
}

/// A hostile frontend attacks.
fn attack(world: &mut World, random: &mut StdRng) {
    let (case, attacker) = (random_case(world, random), world.next_attacker());
    let times = attack_during(world, case, &attacker, || thread::sleep(Duration::from_millis(700))).1;
    world.journal.write(format_args!("attacked: {}, {times} times", case.name));
}

/// Attacks while `meanwhile` runs. Returns its result, and how often the attack was carried out.
pub(crate) fn attack_during<R>(
    world: &World,
    case: &'static Case,
    attacker: &str,
    meanwhile: impl FnOnce() -> R,
) -> (R, u64) {
    let accomplice = Accomplice::start(world.socket(ACCOMPLICE), mac(attacker));
    let attack = Attack::start(case, world.socket(attacker), mac(attacker));
    let result = meanwhile();
    let (times, card) = attack.end();
    let state = || vif(&world.daemon.snapshot(), attacker).state.clone();
    invariants::eventually(
        || if case.ends_in(&state()) { Ok(()) } else { Err(format!("{}: {:?}", case.name, state())) },
    );
    drop((accomplice, card));
    (result, times)
}
