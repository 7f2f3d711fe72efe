//! What happens beside transfers, as a seed has it.

use crate::books;
use crate::daemon::vif;
use crate::hostile::ACCOMPLICE;
use crate::hostile::attack::{Accomplice, Attack};
use crate::hostile::deeds::{DEEDS, Deed};
use crate::hostile::mac;
use crate::world::{PLACES, Settings, WEIGHT, World, pick};
use fairlane_lab::Error;
use rand::RngExt;
use rand::rngs::StdRng;
use std::thread;
use std::time::Duration;

/// How many there are in a cycle.
const MANY: usize = 5;

/// The longest that someone waits or is away: ARP, which nobody answers meanwhile, gives up after 3 s.
const LONGEST: u64 = 1500;

/// Does some, while one guest, which nobody sends to, leaves, and comes again in the end.
///
/// # Errors
/// A guest that ended.
pub fn some(world: &mut World, random: &mut StdRng, leaver: usize) -> Result<(), Error> {
    let leaves = random.random_bool(0.5);
    if leaves {
        world.diary.say(format_args!("{} leaves", PLACES[leaver].name));
        world.power_off(leaver)?;
    }
    for _ in 0..MANY {
        thread::sleep(milliseconds(random, 300));
        match random.random_range(0..10) {
            0 | 1 => stop(world, random)?,
            2 | 3 => slice(world, random)?,
            4 | 5 => set(world, random),
            6 => {
                let settings = Settings { rate: random.random_range(10..40), weights: weights(random) };
                world.reload(settings);
            }
            7 => {
                let time = milliseconds(random, LONGEST);
                world.link_down(time);
            }
            _ => attack(world, random),
        }
    }
    if leaves {
        world.boot(&[leaver])?;
        world.diary.say(format_args!("{} is there again", PLACES[leaver].name));
    }
    Ok(())
}

/// Weights of the two who contest a link: as much as an attacker's, or more.
pub fn weights(random: &mut StdRng) -> [u32; 2] {
    [(); 2].map(|()| WEIGHT * random.random_range(1..4))
}

/// A deed that takes no huge pages, which must be reserved; and, without hours, none that leaves connections behind for a minute.
pub fn hostile_deed(world: &World, random: &mut StdRng) -> &'static Deed {
    loop {
        let deed = pick(random, DEEDS);
        if !deed.huge && (world.long || !deed.unmet) {
            return deed;
        }
    }
}

fn milliseconds(random: &mut StdRng, most: u64) -> Duration {
    Duration::from_millis(random.random_range(0..most))
}

/// A guest loses its CPU once.
fn stop(world: &World, random: &mut StdRng) -> Result<(), Error> {
    let (guest, time) = (*pick(random, &world.present()), milliseconds(random, LONGEST));
    world.diary.say(format_args!("{} is stopped for {time:?}", PLACES[guest].name));
    world.guest(guest).suspend()?;
    thread::sleep(time);
    world.guest(guest).resume()
}

/// A guest has its CPU in slices, as beside two others that want it.
fn slice(world: &World, random: &mut StdRng) -> Result<(), Error> {
    let (guest, times) = (*pick(random, &world.present()), random.random_range(5..20));
    world.diary.say(format_args!("{} has {times} slices", PLACES[guest].name));
    for _ in 0..times {
        world.guest(guest).suspend()?;
        thread::sleep(Duration::from_millis(60));
        world.guest(guest).resume()?;
        thread::sleep(Duration::from_millis(30));
    }
    Ok(())
}

/// A setting of a vif or link changes.
fn set(world: &World, random: &mut StdRng) {
    let guest = &PLACES[random.random_range(0..PLACES.len())];
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

/// A frontend beside the guests breaks a rule, again and again, or uses those there are to cost others time.
fn attack(world: &mut World, random: &mut StdRng) {
    let (deed, attacker) = (hostile_deed(world, random), world.next_attacker());
    let times = attacked(world, deed, &attacker, || thread::sleep(Duration::from_millis(700))).1;
    world.diary.say(format_args!("attacked: {}, {times} times", deed.name));
}

/// Attacks while something is done. Answers what that answers, and how often the deed was done.
pub fn attacked<R>(world: &World, deed: &'static Deed, attacker: &str, meanwhile: impl FnOnce() -> R) -> (R, u64) {
    let accomplice = Accomplice::start(world.socket(ACCOMPLICE), mac(attacker));
    let attack = Attack::begin(deed, world.socket(attacker), mac(attacker));
    let answer = meanwhile();
    let (times, card) = attack.end();
    let state = || vif(&world.daemon.snapshot(), attacker).state.clone();
    books::eventually(|| if deed.ends_in(&state()) { Ok(()) } else { Err(format!("{}: {:?}", deed.name, state())) });
    drop((accomplice, card));
    (answer, times)
}
