//! Transfers of data whose hash must be the same at both ends.

use crate::journal::Journal;
use crate::world::{GUESTS, HOST, PORT, World, pick};
use fairlane_lab::{Command, Error};
use fairlane_load::digest::{self, Reader, Spec};
use rand::RngExt;
use rand::rngs::StdRng;
use std::net::Ipv4Addr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Largest size of a transfer, in bytes. Sizes are distributed logarithmically.
const MAX_BYTES: f64 = 6e6;

/// Number of simultaneous transfers in each network.
const TRANSFERS: usize = 4;

/// How long a connection may make no progress, in seconds, and how long a transfer may last in any case.
const STALL_TIMEOUT: f64 = 90.0;
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(500);

/// How often to retry if the peer is unreachable: suspended guests do not answer ARP, and the link may be down.
const RETRIES: u32 = 20;

/// The sender or receiver of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Host,
    /// An index of [`GUESTS`].
    Guest(usize),
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Host => "host",
            End::Guest(guest) => GUESTS[guest].name,
        }
    }

    fn address(self) -> Ipv4Addr {
        match self {
            End::Host => HOST,
            End::Guest(guest) => GUESTS[guest].address,
        }
    }

    /// Whether it is in the network of the host.
    fn is_on_lan(self) -> bool {
        match self {
            End::Host => true,
            End::Guest(guest) => GUESTS[guest].link == "lan",
        }
    }
}

/// A running transfer.
pub(crate) struct Transfer {
    description: String,
    outcome: JoinHandle<Result<(), String>>,
}

/// Starts some transfers, each between two ends of the same network, but none with guest `idle`.
///
/// # Errors
/// A guest has ended.
pub(crate) fn start_some(world: &World, random: &mut StdRng, idle: usize) -> Result<Vec<Transfer>, Error> {
    let busy = world.present().into_iter().filter(|guest| *guest != idle);
    let (lan, wire): (Vec<End>, _) = busy.map(End::Guest).chain([End::Host]).partition(|end| end.is_on_lan());
    let mut transfers = Vec::new();
    for ends in [lan, wire].iter().filter(|ends| ends.len() > 1) {
        for _ in 0..TRANSFERS {
            let from = random.random_range(0..ends.len());
            let to = (from + random.random_range(1..ends.len())) % ends.len();
            transfers.push(start(world, random, ends[from], ends[to])?);
        }
    }
    Ok(transfers)
}

/// Starts a transfer.
///
/// # Errors
/// The guest has ended.
pub(crate) fn start(world: &World, random: &mut StdRng, from: End, to: End) -> Result<Transfer, Error> {
    let reader = *pick(random, &[Reader::Quick, Reader::Quick, Reader::Slow, Reader::Late]);
    let bytes = MAX_BYTES.powf(random.random_range(0.5..1.0)) as u64;
    let description = format!("{bytes} bytes from {} to {}, {reader:?}", from.name(), to.name());
    world.journal.write(&description);
    let spec = Spec { to: (to.address(), PORT).into(), reader, bytes, patience: STALL_TIMEOUT };
    let outcome = match from {
        End::Host => {
            world.network.spawn(move || with_retries(|| digest::send(&spec).map_err(|error| error.to_string())))
        }
        End::Guest(guest) => {
            let agent = world.agent(guest).clone();
            let send = move || agent.run(Command::DigestSend(spec.clone())).map_err(|error| error.to_string());
            thread::spawn(move || with_retries(send))
        }
    };
    Ok(Transfer { description, outcome })
}

/// Sends, and retries while the peer is unreachable.
fn with_retries<T>(send: impl Fn() -> Result<T, String>) -> Result<(), String> {
    let is_unreachable = |error: &str| error.contains("unreachable");
    for _ in 0..RETRIES {
        match send() {
            Err(error) if is_unreachable(&error) => thread::sleep(Duration::from_secs(1)),
            done => return done.map(drop),
        }
    }
    send().map(drop)
}

impl Transfer {
    /// Waits until the transfer succeeds.
    pub(crate) fn finish(self, journal: &Journal) {
        let mut waited = Duration::ZERO;
        while !self.outcome.is_finished() {
            thread::sleep(Duration::from_millis(20));
            waited += Duration::from_millis(20);
            assert!(waited < TRANSFER_TIMEOUT, "{}: it hangs", self.description);
        }
        let outcome = self.outcome.join().expect("sending does not panic");
        assert!(outcome.is_ok(), "{}: {outcome:?}", self.description);
        journal.write(format_args!("complete: {}", self.description));
    }
}
