//! The one-way delay of packets between two hosts without a common clock.
//!
//! The sender sends datagrams at even intervals and records their times; the receiver records their arrivals; each uses its own
//! monotonic clock. A control connection relates the two clocks before and after (see [`clocks`]) and transfers the arrivals. It is
//! idle while datagrams flow, so nothing is sent in the other direction.

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

use crate::{ServeSpec, about, await_any, is_transient, readable, seconds, within};
use clocks::{Offset, Probe, Relation};

/// The number of exchanges to measure the clocks' offset, before and after each.
const PROBES: usize = 60;
/// The time between two exchanges: neither a divisor nor a multiple of a usual time slice, so that the receiver runs at some of them.
const PROBE_GAP: Duration = Duration::from_millis(7);
/// The timeout of the control connection.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(15);
/// The head of a datagram: the session's token and a sequence number. The rest is padding.
const HEAD: usize = 16;
/// The sender's requests over the control connection, one byte each.
const GET_TIME: u8 = b't';
const GET_ARRIVALS: u8 = b'a';

/// Parameters of a sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The receiver's address and port, for datagrams and the control connection.
    pub to: SocketAddr,
    /// Payload bytes of a datagram, 16 to 65507.
    pub size: usize,
    /// The number of datagrams, 1 to 1,000,000.
    pub count: u32,
    /// Seconds from one datagram to the next.
    pub interval: f64,
    /// Seconds from the last datagram to the request for the arrivals.
    pub patience: f64,
}

/// The measured delays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delays {
    /// For each datagram in order the seconds from the sender's system call to the receiving program; none if it was lost.
    pub seconds: Vec<Option<f64>>,
    /// The largest error of a delay, in seconds.
    pub uncertainty: f64,
    /// Seconds that the receiver's clock gains on the sender's per second.
    pub drift: f64,
}

/// Sends the datagrams and gets their arrival times from the receiver.
///
/// # Errors
/// If a parameter is out of range, or the receiver cannot be reached or does not answer for 15 s.
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
        // Rounded to the clocks' resolution of a nanosecond.
        came.map(|came| ((relation.sender_time(came) - left) * 1e9).round() / 1e9)
    });
    Ok(Delays { seconds: seconds.collect(), uncertainty: relation.uncertainty(), drift: relation.drift() })
}

/// The sender's side of a session.
struct Session {
    stream: TcpStream,
    datagrams: UdpSocket,
    token: u64,
    /// The zero of the sender's clock.
    epoch: Instant,
}

impl Session {
    fn open(to: SocketAddr) -> io::Result<Session> {
        let mut stream = TcpStream::connect_timeout(&to, CONTROL_TIMEOUT)?;
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
            self.stream.write_all(&[GET_TIME])?;
            let there = read_time(&mut self.stream)?;
            probes.push(Probe { sent, there, back: self.clock() });
        }
        Ok(Offset::of(&probes).expect("there are probes"))
    }

    /// Sends all datagrams; returns the time of each.
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
                Err(error) if !error.raw_os_error().is_some_and(|number| is_transient(Errno::from_raw(number))) => {
                    return Err(error);
                }
                _ => (),
            }
        }
        Ok(left)
    }

    /// The arrival time of each datagram, on the receiver's clock.
    fn arrivals(&mut self, count: u32) -> io::Result<Vec<Option<f64>>> {
        self.stream.write_all(&[GET_ARRIVALS])?;
        let mut came = vec![None; count as usize];
        let arrivals = read_number(&mut self.stream)?;
        for _ in 0..arrivals {
            let sequence = read_number(&mut self.stream)?;
            let time = read_time(&mut self.stream)?;
            // For a duplicated datagram, the first arrival counts.
            if let Some(came) = usize::try_from(sequence).ok().and_then(|sequence| came.get_mut(sequence)) {
                came.get_or_insert(time);
            }
        }
        Ok(came)
    }
}

/// Serves senders, one after the other, until the time is up; calls `started` when it is ready.
///
/// # Errors
/// If a parameter is out of range or the port is in use. A broken session is an error of its sender only.
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
            Ok((stream, _)) => drop(serve_one(stream, &datagrams, end)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Serves one sender until it has its arrivals, or until `end`.
fn serve_one(mut stream: TcpStream, datagrams: &UdpSocket, end: Instant) -> io::Result<()> {
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
        // Longer datagrams are truncated to the head.
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
        let mut request = [0];
        stream.read_exact(&mut request)?;
        match request[0] {
            GET_TIME => stream.write_all(&nanoseconds(epoch.elapsed()))?,
            GET_ARRIVALS => {
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
    stream.set_read_timeout(Some(CONTROL_TIMEOUT))?;
    stream.set_write_timeout(Some(CONTROL_TIMEOUT))
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

    /// A server in a detached thread, with enough time for a busy host.
    fn server() -> SocketAddr {
        let (sender, ports) = mpsc::channel();
        thread::spawn(move || {
            serve(&ServeSpec { port: 0, seconds: 60.0 }, |address| sender.send(address.port()).unwrap()).unwrap();
        });
        (Ipv4Addr::LOCALHOST, ports.recv().unwrap()).into()
    }

    #[test]
    fn delays_on_loopback_are_not_negative_beyond_the_uncertainty() {
        let to = server();
        let spec = Spec { to, size: 1000, count: 100, interval: 0.002, patience: 0.05 };
        let delays = send(&spec).unwrap();
        assert_eq!(delays.seconds.len(), 100);
        let arrived: Vec<f64> = delays.seconds.iter().copied().flatten().collect();
        assert!(!arrived.is_empty());
        // Under any load, no datagram arrives earlier than it was sent by more than the uncertainty.
        assert!(arrived.iter().all(|delay| *delay >= -delays.uncertainty), "{delays:?}");
        // The next sender is served too, and gets none of the first one's arrivals.
        assert_eq!(send(&Spec { count: 1, ..spec }).unwrap().seconds.len(), 1);
    }

    #[test]
    fn errors_name_parameters_out_of_range_and_absent_receivers() {
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
