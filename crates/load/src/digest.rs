//! Sends bytes over TCP and compares their hash with the receiver's, to check that all arrived unchanged.
//!
//! A connection starts with a byte that selects the reader's behaviour; then bytes follow until the sender shuts down, and the
//! receiver returns their hash.

use std::{
    hash::{DefaultHasher, Hasher},
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use crate::{Sent, ServeSpec, about, seconds, serve_each};

/// Bytes of a read.
const CHUNK: usize = 64 << 10;
/// Bytes of a read of the slow reader, and its pause after each.
const SLOW_CHUNK: usize = 4096;
const SLOW_PAUSE: Duration = Duration::from_micros(500);

/// The delay of the late reader.
const LATE: Duration = Duration::from_secs(3);

/// Bytes of a hash.
const HASH: usize = 8;

/// Parameters of a sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The server.
    pub to: SocketAddr,
    /// How the server reads.
    pub reader: Reader,
    /// The number of pseudorandom bytes, which are the same each time.
    pub bytes: u64,
    /// The longest that the connection may stall, in seconds.
    pub patience: f64,
}

/// How the server reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    /// As fast as possible.
    Quick = 0,
    /// A little at a time, so that its window closes.
    Slow = 1,
    /// Nothing for three seconds, while its kernel buffers the data, and then as fast as possible.
    Late = 2,
}

/// A connection to a server.
pub struct Sender {
    stream: TcpStream,
    hasher: DefaultHasher,
}

impl Sender {
    /// Connects, with `patience` as the timeout of each operation.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub fn connect(to: SocketAddr, reader: Reader, patience: Duration) -> io::Result<Sender> {
        let mut stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(&[reader as u8])?;
        Ok(Sender { stream, hasher: DefaultHasher::new() })
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the connection breaks or times out.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.stream.write_all(bytes)
    }

    /// Shuts down, and waits for the hash of the received bytes.
    ///
    /// # Errors
    /// If the connection breaks or times out, or the hash differs.
    pub fn finish(mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        let mut hash = [0; HASH];
        self.stream.read_exact(&mut hash)?;
        if u64::from_be_bytes(hash) == self.hasher.finish() {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::InvalidData, "the received bytes differ from those sent"))
    }
}

/// Sends pseudorandom bytes, and waits until the receiver has confirmed their hash.
///
/// # Errors
/// If a parameter is out of range; as [`Sender::connect`] and [`Sender::finish`].
pub fn send(spec: &Spec) -> io::Result<Sent> {
    let patience = seconds("patience", spec.patience)?;
    let (start, mut random) = (Instant::now(), StdRng::seed_from_u64(spec.bytes));
    let mut sent = || -> io::Result<()> {
        let mut sender = Sender::connect(spec.to, spec.reader, patience)?;
        let mut chunk = vec![0; CHUNK];
        let mut left = spec.bytes;
        while left > 0 {
            let next = &mut chunk[..left.min(CHUNK as u64) as usize];
            random.fill_bytes(next);
            sender.send(next)?;
            left -= next.len() as u64;
        }
        sender.finish()
    };
    sent().map_err(about(spec.to))?;
    Ok(Sent { seconds: start.elapsed().as_secs_f64(), bytes: spec.bytes, ..Sent::default() })
}

/// Serves connections until the time is up; calls `started` when it is ready.
///
/// # Errors
/// If a parameter is out of range or the port is in use. A broken connection is an error of its sender only.
pub fn serve(spec: &ServeSpec, started: impl FnOnce(SocketAddr)) -> io::Result<()> {
    serve_each(spec, started, answer)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = [0];
    stream.read_exact(&mut reader)?;
    let slow = reader[0] == Reader::Slow as u8;
    if reader[0] == Reader::Late as u8 {
        thread::sleep(LATE);
    }
    let mut bytes = vec![0; if slow { SLOW_CHUNK } else { CHUNK }];
    let mut hasher = DefaultHasher::new();
    loop {
        match stream.read(&mut bytes)? {
            0 => break,
            read => hasher.write(&bytes[..read]),
        }
        if slow {
            thread::sleep(SLOW_PAUSE);
        }
    }
    stream.write_all(&hasher.finish().to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::Ipv4Addr, sync::mpsc};

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn changed_bytes_are_detected() {
        let (sender, ports) = mpsc::channel();
        let serving = thread::spawn(move || {
            serve(&ServeSpec { port: 0, seconds: 5.0 }, |address| sender.send(address.port()).unwrap()).unwrap();
        });
        let to = (Ipv4Addr::LOCALHOST, ports.recv().unwrap()).into();
        for (reader, sizes) in [(Reader::Late, &[1, 100_000, 7][..]), (Reader::Slow, &[20_000]), (Reader::Quick, &[])] {
            let mut sender = Sender::connect(to, reader, TIMEOUT).unwrap();
            sizes.iter().for_each(|size| sender.send(&vec![7; *size]).unwrap());
            sender.finish().unwrap();
        }
        let spec = Spec { to, reader: Reader::Quick, bytes: 3 * CHUNK as u64 + 1, patience: 10.0 };
        assert_eq!(send(&spec).unwrap().bytes, spec.bytes);
        let mut sender = Sender::connect(to, Reader::Quick, TIMEOUT).unwrap();
        sender.send(b"this").unwrap();
        sender.stream.write_all(b" and bytes not hashed").unwrap();
        assert_eq!(sender.finish().unwrap_err().kind(), ErrorKind::InvalidData);
        serving.join().unwrap();
    }
}
