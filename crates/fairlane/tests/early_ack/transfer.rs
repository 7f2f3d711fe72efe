//! Random bytes by TCP, and what they hash to at the other end.

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// After this long without a byte a connection counts as hung.
const HUNG: Duration = Duration::from_secs(90);

/// Bytes that a reader which takes its time reads at once, and how long it waits then.
const SIP: usize = 4096;
const PAUSE: Duration = Duration::from_micros(500);

/// Serves transfers for ever, each in a thread: a byte that says how to read, all bytes, and the hash back.
pub fn serve(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    for stream in listener.incoming() {
        thread::spawn(move || {
            // Whoever misses the answer says why.
            let _ = answer(stream?);
            Ok::<(), std::io::Error>(())
        });
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut slow = [0];
    stream.read_exact(&mut slow)?;
    let mut bytes = Vec::new();
    let mut sip = vec![0; if slow[0] == 0 { 64 << 10 } else { SIP }];
    loop {
        match stream.read(&mut sip)? {
            0 => break,
            read => bytes.extend_from_slice(&sip[..read]),
        }
        if slow[0] != 0 {
            thread::sleep(PAUSE);
        }
    }
    stream.write_all(&hash(&bytes).to_le_bytes())
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Sends `size` random bytes, and waits for what they hash to at the other end.
///
/// # Errors
/// A sentence: the connection hung or broke, or other bytes arrived.
pub fn send(to: SocketAddr, size: usize, slow: bool, seed: u64) -> Result<(), String> {
    let mut bytes = vec![0; size];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    let said = |what: &'static str| move |error| format!("{size} bytes, seed {seed}: {what}: {error}");
    let mut stream = TcpStream::connect(to).map_err(said("no connection"))?;
    stream.set_read_timeout(Some(HUNG)).unwrap();
    stream.set_write_timeout(Some(HUNG)).unwrap();
    stream.write_all(&[u8::from(slow)]).map_err(said("nothing can be sent"))?;
    stream.write_all(&bytes).map_err(said("not all can be sent"))?;
    stream.shutdown(Shutdown::Write).map_err(said("no end can be sent"))?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).map_err(said("no answer"))?;
    if u64::from_le_bytes(answer) == hash(&bytes) {
        Ok(())
    } else {
        Err(format!("{size} bytes, seed {seed}: others arrived"))
    }
}

/// A size from 1 byte to `most`, all magnitudes equally likely.
pub fn size(random: &mut StdRng, most: usize) -> usize {
    ((most as f64).powf(random.random::<f64>())) as usize
}
