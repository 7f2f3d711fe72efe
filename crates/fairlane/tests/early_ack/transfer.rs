//! Sends random data of random sizes to the guest.

use fairlane_load::digest::{Reader, Sender};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// A connection without progress for this long counts as hung.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(90);

/// Sends `size` random bytes, and waits for the receiver's hash of them.
///
/// # Errors
/// The connection hung or broke, or different bytes arrived.
pub(crate) fn send(to: SocketAddr, size: usize, slow: bool, seed: u64) -> Result<(), String> {
    let mut bytes = vec![0; size];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    let sent = || -> io::Result<()> {
        let mut sender = Sender::connect(to, if slow { Reader::Slow } else { Reader::Quick }, STALL_TIMEOUT)?;
        sender.send(&bytes)?;
        sender.finish()
    };
    sent().map_err(|error| format!("{size} bytes, seed {seed}: {error}"))
}

/// A logarithmically distributed size from 1 byte to `most`.
pub(crate) fn size(random: &mut StdRng, most: usize) -> usize {
    ((most as f64).powf(random.random::<f64>())) as usize
}
