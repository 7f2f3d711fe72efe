//! Random bytes, of random sizes, sent to the guest.

use fairlane_load::digest::{Reader, Sender};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// After this long without a byte a connection counts as hung.
pub const HUNG: Duration = Duration::from_secs(90);

/// Sends `size` random bytes, and waits for what they hash to at the other end.
///
/// # Errors
/// A sentence: the connection hung or broke, or other bytes arrived.
pub fn send(to: SocketAddr, size: usize, slow: bool, seed: u64) -> Result<(), String> {
    let mut bytes = vec![0; size];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    let sent = || -> io::Result<()> {
        let mut sender = Sender::connect(to, if slow { Reader::Slow } else { Reader::Quick }, HUNG)?;
        sender.send(&bytes)?;
        sender.finish()
    };
    sent().map_err(|error| format!("{size} bytes, seed {seed}: {error}"))
}

/// A size from 1 byte to `most`, all magnitudes equally likely.
pub fn size(random: &mut StdRng, most: usize) -> usize {
    ((most as f64).powf(random.random::<f64>())) as usize
}
