//! The delay of packets one way, from one machine to another that shares no clock with it.
//!
//! The sender sends datagrams at even intervals and remembers when; the receiver remembers when each came, each on
//! its own monotonic clock. A connection beside them settles what the clocks have to do with each other, before and
//! after (see [`clocks`]), and brings the arrivals back. While datagrams flow it is silent, so nothing goes the other way.

mod clocks;

use std::{
    hash::{BuildHasher, RandomState},
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags},
};
use serde::{Deserialize, Serialize};

use crate::{ServeSpec, about, await_any, passes, readable, seconds, within};
use clocks::{Offset, Probe, Relation};

/// Exchanges that settle the clocks' offset, before and after.
const PROBES: usize = 60;
/// Between two of them: no divisor or multiple of a usual slice, so that some meet the receiver running.
const PROBE_GAP: Duration = Duration::from_millis(7);
/// The longest an answer may take on the connection beside the datagrams.
const STALL: Duration = Duration::from_secs(15);
/// A datagram: the session's token and a sequence number; the rest is padding.
const HEAD: usize = 16;
/// What the sender asks for over the connection: one byte.
const TELL_TIME: u8 = b't';
const TELL_ARRIVALS: u8 = b'a';

/// A sender's orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The receiver: datagrams and the connection beside them go to this address and port.
    pub to: SocketAddr,
    /// Payload bytes a datagram, 16 to 65507.
    pub size: usize,
    /// Datagrams, 1 to 1,000,000.
    pub count: u32,
    /// Seconds from one datagram to the next.
    pub interval: f64,
    /// Seconds to wait after the last one before the arrivals are asked for.
    pub patience: f64,
}

/// The delays measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delays {
    /// Of each datagram in order the seconds from being handed to the sender's kernel to reaching the receiving
    /// program; none if it never did.
    pub seconds: Vec<Option<f64>>,
    /// Every delay is right within so many seconds either way.
    pub uncertainty: f64,
    /// Seconds that the receiver's clock gains on the sender's in a second.
    pub drift: f64,
}

/// Sends the datagrams and learns when they came.
///
/// # Errors
/// Orders out of range; a receiver that is not there, or falls silent on the connection for 15 s.
pub fn send(spec: &Spec) -> io::Result<Delays> {
    let interval = seconds("interval", spec.interval)?;
    let patience = seconds("patience", spec.patience)?;
    within("size", spec.size, HEAD, 65_507)?;
    within("count", spec.count, 1, 1_000_000)?;
    let mut session = Session::open(spec.to).map_err(about(spec.to))?;
    let before = session.offset()?;
    let left = session.send(spec, interval)?;
    thread::sleep(patience);
    let after = session.offset()?;
    let relation = Relation { before, after };
    let came = session.arrivals(spec.count)?;
    let seconds = left.iter().zip(came).map(|(left, came)| {
        // To the nanosecond, which is what the clocks told.
        came.map(|came| ((relation.sender_time(came) - left) * 1e9).round() / 1e9)
    });
    Ok(Delays { seconds: seconds.collect(), uncertainty: relation.uncertainty(), drift: relation.drift() })
}

/// The sender's side of the connection.
struct Session {
    stream: TcpStream,
    datagrams: UdpSocket,
    token: u64,
    /// Zero of the sender's clock.
    epoch: Instant,
}

impl Session {
    fn open(to: SocketAddr) -> io::Result<Session> {
        let mut stream = TcpStream::connect_timeout(&to, STALL)?;
        prepare(&stream)?;
        let token = RandomState::new().hash_one(to);
        stream.write_all(&token.to_be_bytes())?;
        let datagrams = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        datagrams.connect(to)?;
        Ok(Session { stream, datagrams, token, epoch: Instant::now() })
    }

    fn clock(&self) -> f64 {
        self.epoch.elapsed().as_secs_f64()
    }

    fn offset(&mut self) -> io::Result<Offset> {
        let mut probes = Vec::with_capacity(PROBES);
        for _ in 0..PROBES {
            thread::sleep(PROBE_GAP);
            let sent = self.clock();
            self.stream.write_all(&[TELL_TIME])?;
            let there = read_time(&mut self.stream)?;
            probes.push(Probe { sent, there, back: self.clock() });
        }
        Ok(Offset::of(&probes).expect("probes were made"))
    }

    /// Sends all datagrams; answers when each left.
    fn send(&self, spec: &Spec, interval: Duration) -> io::Result<Vec<f64>> {
        let mut payload = vec![0; spec.size];
        payload[..8].copy_from_slice(&self.token.to_be_bytes());
        let start = Instant::now();
        let mut left = Vec::with_capacity(spec.count as usize);
        for sequence in 0..spec.count {
            thread::sleep((start + interval * sequence).saturating_duration_since(Instant::now()));
            payload[8..HEAD].copy_from_slice(&u64::from(sequence).to_be_bytes());
            left.push(self.clock());
            match self.datagrams.send(&payload) {
                Err(error) if !error.raw_os_error().is_some_and(|number| passes(Errno::from_raw(number))) => {
                    return Err(error);
                }
                _ => (),
            }
        }
        Ok(left)
    }

    /// When each datagram came, on the receiver's clock.
    fn arrivals(&mut self, count: u32) -> io::Result<Vec<Option<f64>>> {
        self.stream.write_all(&[TELL_ARRIVALS])?;
        let mut came = vec![None; count as usize];
        let told = read_number(&mut self.stream)?;
        for _ in 0..told {
            let sequence = read_number(&mut self.stream)?;
            let time = read_time(&mut self.stream)?;
            // A datagram that the network doubled came when its first copy did.
            if let Some(came) = usize::try_from(sequence).ok().and_then(|sequence| came.get_mut(sequence)) {
                came.get_or_insert(time);
            }
        }
        Ok(came)
    }
}

/// Serves senders, one after another, until the time is up, calling `started` once it can.
///
/// # Errors
/// Orders out of range, or a port in use. A session that breaks off is its sender's error.
pub fn serve(spec: &ServeSpec, started: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let duration = seconds("seconds", spec.seconds)?;
    let in_use = |kind: &'static str| about(format!("{kind} port {}", spec.port));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, spec.port)).map_err(in_use("TCP"))?;
    let address = listener.local_addr()?;
    let datagrams = UdpSocket::bind(address).map_err(in_use("UDP"))?;
    datagrams.set_nonblocking(true)?;
    listener.set_nonblocking(true)?;
    let end = Instant::now() + duration;
    started(address);
    while readable(&listener, end)? && Instant::now() < end {
        match listener.accept() {
            Ok((stream, _)) => drop(attend(stream, &datagrams, end)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Serves one sender until it has what it came for, or `end`.
fn attend(mut stream: TcpStream, datagrams: &UdpSocket, end: Instant) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    prepare(&stream)?;
    let token = read_number(&mut stream)?;
    let epoch = Instant::now();
    let mut arrivals: Vec<(u64, Duration)> = Vec::new();
    loop {
        let mut sockets = [datagrams.as_fd(), stream.as_fd()].map(|socket| PollFd::new(socket, PollFlags::POLLIN));
        if !await_any(&mut sockets, end)? {
            return Ok(());
        }
        let asked = sockets[1].any().unwrap_or(false);
        let mut head = [0; HEAD];
        // A datagram longer than its head is cut to it.
        while let Ok(length) = datagrams.recv(&mut head) {
            let now = epoch.elapsed();
            let [theirs, sequence] = [0, 8].map(|at| u64::from_be_bytes(head[at..at + 8].try_into().expect("8 bytes")));
            if length == HEAD && theirs == token {
                arrivals.push((sequence, now));
            }
        }
        if !asked {
            continue;
        }
        let mut question = [0];
        stream.read_exact(&mut question)?;
        match question[0] {
            TELL_TIME => stream.write_all(&nanoseconds(epoch.elapsed()))?,
            TELL_ARRIVALS => {
                let mut answer = (arrivals.len() as u64).to_be_bytes().to_vec();
                for (sequence, time) in &arrivals {
                    answer.extend(sequence.to_be_bytes());
                    answer.extend(nanoseconds(*time));
                }
                return stream.write_all(&answer);
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))
}

fn nanoseconds(time: Duration) -> [u8; 8] {
    (time.as_nanos() as u64).to_be_bytes()
}

fn read_number(stream: &mut TcpStream) -> io::Result<u64> {
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    Ok(u64::from_be_bytes(number))
}

fn read_time(stream: &mut TcpStream) -> io::Result<f64> {
    Ok(Duration::from_nanos(read_number(stream)?).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A server that nobody waits for: it has time for a busy machine.
    fn server() -> SocketAddr {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            serve(&ServeSpec { port: 0, seconds: 60.0 }, |address| tell.send(address.port()).unwrap()).unwrap();
        });
        (Ipv4Addr::LOCALHOST, told.recv().unwrap()).into()
    }

    #[test]
    fn delays_on_loopback_are_those_of_one_clock() {
        let to = server();
        let spec = Spec { to, size: 1000, count: 100, interval: 0.002, patience: 0.05 };
        let delays = send(&spec).unwrap();
        assert_eq!(delays.seconds.len(), 100);
        let arrived: Vec<f64> = delays.seconds.iter().copied().flatten().collect();
        assert!(!arrived.is_empty());
        // Whatever the machine's load, no datagram comes before it was sent by more than the uncertainty.
        assert!(arrived.iter().all(|delay| *delay >= -delays.uncertainty), "{delays:?}");
        // The next sender is served as well, and gets none of the first one's arrivals.
        assert_eq!(send(&Spec { count: 1, ..spec }).unwrap().seconds.len(), 1);
    }

    #[test]
    fn orders_out_of_range_and_absent_receivers_are_named() {
        let to = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let good = Spec { to, size: 16, count: 1, interval: 0.1, patience: 0.1 };
        for (bad, named) in [
            (Spec { size: 15, ..good.clone() }, "size"),
            (Spec { count: 0, ..good.clone() }, "count"),
            (Spec { interval: 0.0, ..good.clone() }, "interval"),
            (good, &to.to_string()),
        ] {
            let error = send(&bad).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
