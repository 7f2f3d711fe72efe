//! Bytes over TCP, and what they hash to at the other end: whether all arrived, as they were sent.
//!
//! A connection carries a byte that says how to read, then bytes up to the sender's end; their hash comes back.

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

/// Bytes that are read at once, and by a reader that takes its time, with how long it waits then.
const CHUNK: usize = 64 << 10;
const SIP: usize = 4096;
const PAUSE: Duration = Duration::from_micros(500);

/// How long one that begins late waits.
const LATE: Duration = Duration::from_secs(3);

/// Bytes of a hash.
const HASH: usize = 8;

/// A sender's orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The server.
    pub to: SocketAddr,
    /// How that reads.
    pub reader: Reader,
    /// Random bytes, the same each time.
    pub bytes: u64,
    /// The longest the connection may stand still, in seconds.
    pub patience: f64,
}

/// How the other end reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    /// What there is.
    Quick = 0,
    /// A little at a time, so that its window closes.
    Slow = 1,
    /// Nothing for three seconds, and then what there is: until then all is in its kernel.
    Late = 2,
}

/// Bytes on their way to who serves them.
pub struct Sender {
    stream: TcpStream,
    hasher: DefaultHasher,
}

impl Sender {
    /// Connects. One that makes no progress for `patience` is an error, then and later.
    ///
    /// # Errors
    /// Nobody serves there.
    pub fn connect(to: SocketAddr, reader: Reader, patience: Duration) -> io::Result<Sender> {
        let mut stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(&[reader as u8])?;
        Ok(Sender { stream, hasher: DefaultHasher::new() })
    }

    /// Sends more.
    ///
    /// # Errors
    /// The connection hung or broke.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.stream.write_all(bytes)
    }

    /// Ends, and waits for the hash of what arrived.
    ///
    /// # Errors
    /// The connection hung or broke, or other bytes arrived.
    pub fn finish(mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        let mut hash = [0; HASH];
        self.stream.read_exact(&mut hash)?;
        if u64::from_be_bytes(hash) == self.hasher.finish() {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::InvalidData, "other bytes arrived than were sent"))
    }
}

/// Sends random bytes, and waits until they are known to have arrived as they were sent.
///
/// # Errors
/// Orders out of range; as [`Sender::connect`] and [`Sender::finish`].
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

/// Takes connections until the time is up, calling `started` once it can.
///
/// # Errors
/// Orders out of range, or a port in use. A connection that breaks off is its sender's error.
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
    let mut bytes = vec![0; if slow { SIP } else { CHUNK }];
    let mut hasher = DefaultHasher::new();
    loop {
        match stream.read(&mut bytes)? {
            0 => break,
            read => hasher.write(&bytes[..read]),
        }
        if slow {
            thread::sleep(PAUSE);
        }
    }
    stream.write_all(&hasher.finish().to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::Ipv4Addr, sync::mpsc};

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn what_arrives_as_it_was_sent_is_told_from_what_does_not() {
        let (tell, told) = mpsc::channel();
        let serving = thread::spawn(move || {
            serve(&ServeSpec { port: 0, seconds: 5.0 }, |address| tell.send(address.port()).unwrap()).unwrap();
        });
        let to = (Ipv4Addr::LOCALHOST, told.recv().unwrap()).into();
        for (reader, sizes) in [(Reader::Late, &[1, 100_000, 7][..]), (Reader::Slow, &[20_000]), (Reader::Quick, &[])] {
            let mut sender = Sender::connect(to, reader, PATIENCE).unwrap();
            sizes.iter().for_each(|size| sender.send(&vec![7; *size]).unwrap());
            sender.finish().unwrap();
        }
        let spec = Spec { to, reader: Reader::Quick, bytes: 3 * CHUNK as u64 + 1, patience: 10.0 };
        assert_eq!(send(&spec).unwrap().bytes, spec.bytes);
        let mut sender = Sender::connect(to, Reader::Quick, PATIENCE).unwrap();
        sender.send(b"this").unwrap();
        sender.stream.write_all(b" and what nobody sent").unwrap();
        assert_eq!(sender.finish().unwrap_err().kind(), ErrorKind::InvalidData);
        serving.join().unwrap();
    }
}
