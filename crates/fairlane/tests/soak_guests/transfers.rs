//! Bytes from one to another, whose hash must be the same at both ends.

use crate::diary::Diary;
use crate::world::{HOST, PLACES, PORT, World, pick};
use fairlane_lab::{Command, Error};
use fairlane_load::digest::{self, Reader, Spec};
use rand::RngExt;
use rand::rngs::StdRng;
use std::net::Ipv4Addr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes at most: all magnitudes are equally likely.
const MOST: f64 = 6e6;

/// How many begin at once in each network.
const EACH: usize = 4;

/// How long a connection may stand still, in seconds, and how long a transfer may last, which is for what hangs in spite of that.
const PATIENCE: f64 = 90.0;
const HUNG: Duration = Duration::from_secs(500);

/// How often nobody may have been found: who pauses answers no ARP, and without a link there is no way.
const TRIES: u32 = 20;

/// Who sends or takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Host,
    /// One of [`PLACES`].
    Guest(usize),
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Host => "host",
            End::Guest(guest) => PLACES[guest].name,
        }
    }

    fn address(self) -> Ipv4Addr {
        match self {
            End::Host => HOST,
            End::Guest(guest) => PLACES[guest].address,
        }
    }

    /// Whether it is in the network of the link that leads to the host.
    fn is_on_lan(self) -> bool {
        match self {
            End::Host => true,
            End::Guest(guest) => PLACES[guest].link == "lan",
        }
    }
}

/// A transfer under way.
pub struct Transfer {
    words: String,
    outcome: JoinHandle<Result<(), String>>,
}

/// Begins some transfers, each between two that reach each other; one guest has none.
///
/// # Errors
/// A guest has ended.
pub fn begin_some(world: &World, random: &mut StdRng, idle: usize) -> Result<Vec<Transfer>, Error> {
    let busy = world.present().into_iter().filter(|guest| *guest != idle);
    let (lan, wire): (Vec<End>, _) = busy.map(End::Guest).chain([End::Host]).partition(|end| end.is_on_lan());
    let mut begun = Vec::new();
    for ends in [lan, wire].iter().filter(|ends| ends.len() > 1) {
        for _ in 0..EACH {
            let from = random.random_range(0..ends.len());
            let to = (from + random.random_range(1..ends.len())) % ends.len();
            begun.push(begin(world, random, ends[from], ends[to])?);
        }
    }
    Ok(begun)
}

/// Begins one.
///
/// # Errors
/// The guest has ended.
pub fn begin(world: &World, random: &mut StdRng, from: End, to: End) -> Result<Transfer, Error> {
    let reader = *pick(random, &[Reader::Quick, Reader::Quick, Reader::Slow, Reader::Late]);
    let bytes = MOST.powf(random.random_range(0.5..1.0)) as u64;
    let words = format!("{bytes} bytes from {} to {}, {reader:?}", from.name(), to.name());
    world.diary.say(&words);
    let spec = Spec { to: (to.address(), PORT).into(), reader, bytes, patience: PATIENCE };
    let outcome = match from {
        End::Host => world.network.spawn(move || again(|| digest::send(&spec).map_err(|error| error.to_string()))),
        End::Guest(guest) => {
            let agent = world.agent(guest).clone();
            let send = move || agent.run(Command::DigestSend(spec.clone())).map_err(|error| error.to_string());
            thread::spawn(move || again(send))
        }
    };
    Ok(Transfer { words, outcome })
}

/// Sends, again where nobody was found yet.
fn again<T>(send: impl Fn() -> Result<T, String>) -> Result<(), String> {
    let is_unfound = |error: &str| error.contains("unreachable");
    for _ in 0..TRIES {
        match send() {
            Err(error) if is_unfound(&error) => thread::sleep(Duration::from_secs(1)),
            done => return done.map(drop),
        }
    }
    send().map(drop)
}

impl Transfer {
    /// Waits for its end, which must come and be a good one.
    pub fn end(self, diary: &Diary) {
        let mut waited = Duration::ZERO;
        while !self.outcome.is_finished() {
            thread::sleep(Duration::from_millis(20));
            waited += Duration::from_millis(20);
            assert!(waited < HUNG, "{}: it hangs", self.words);
        }
        let outcome = self.outcome.join().expect("sending does not panic");
        assert!(outcome.is_ok(), "{}: {outcome:?}", self.words);
        diary.say(format_args!("whole: {}", self.words));
    }
}
