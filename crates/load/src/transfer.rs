//! The times of sequential TCP transfers.
//!
//! A new connection starts with a handshake and slow start, which makes short transfers sensitive to the round-trip time; a kept
//! connection does not. A sender that starts the next transfer as soon as the last was answered always finds the receiver running,
//! even a guest that seldom has its CPU, and measures the best case. Hence the pauses of random length. The receiver confirms the
//! last byte, so a transfer ends when the receiving program has all data. Both sides measure it: data that have waited for a guest
//! to run arrive faster there than the link's rate.

use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use crate::{ServeSpec, about, readable, seconds, serve_each, within};

/// The timeout of a stalled transfer.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest pause, in seconds: shorter than the receiver's timeout.
pub const LONGEST_PAUSE: f64 = 10.0;
/// How often to check whether all data are acknowledged.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Bytes of a read or write.
const CHUNK: usize = 128 << 10;
/// Bytes of the number before the data (their length) and of the confirmation (the receiver's nanoseconds).
const NUMBER: usize = 8;

/// Parameters of a sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The server.
    pub to: SocketAddr,
    /// Bytes of a transfer.
    pub size: u64,
    /// The number of transfers, 1 to 1,000,000.
    pub count: usize,
    /// No transfer starts later than this many seconds after the start.
    pub seconds: f64,
    /// The longest pause before each transfer, in seconds, 0 to [`LONGEST_PAUSE`]. Its length is pseudorandom, the same in each run.
    pub pause: f64,
    /// Whether all transfers share one connection.
    pub kept: bool,
}

/// One transfer; times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Its start, relative to the first.
    pub t: f64,
    /// The time of connect; 0 on a kept connection.
    pub connect: f64,
    /// From its start, including connect, until the sender's kernel had ACKs for all data: the sender's view.
    pub acknowledged: f64,
    /// From its start until the receiver had confirmed the last byte.
    pub seconds: f64,
    /// On the receiver's clock, from accepting the connection, or from the first byte on a kept one, to the last byte.
    pub received: f64,
}

/// Bytes of a connection that were written and are not acknowledged: `tx_queue` in Linux's `/proc/net/tcp`, found by both addresses.
/// Zero if the connection is not listed, as over IPv6.
fn unacknowledged(stream: &TcpStream) -> io::Result<u64> {
    let name = |address: SocketAddr| match address {
        SocketAddr::V4(address) => format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()),
        SocketAddr::V6(_) => String::new(),
    };
    let ends = format!(" {} {} ", name(stream.local_addr()?), name(stream.peer_addr()?));
    let table = fs::read_to_string("/proc/net/tcp")?;
    let bytes = table.split_once(&ends).and_then(|(_, rest)| rest.split([' ', ':']).nth(1));
    Ok(bytes.and_then(|bytes| u64::from_str_radix(bytes, 16).ok()).unwrap_or(0))
}

/// Makes the transfers.
///
/// # Errors
/// If a parameter is out of range, or a connection is refused, breaks, or stalls for 15 s.
pub fn send(spec: &Spec) -> io::Result<Vec<Transfer>> {
    let limit = seconds("seconds", spec.seconds)?;
    within("count", spec.count, 1, 1_000_000)?;
    within("pause", spec.pause, 0.0, LONGEST_PAUSE)?;
    let data = vec![0; CHUNK];
    let mut random = StdRng::seed_from_u64(spec.size);
    let start = Instant::now();
    let (mut transfers, mut connection) = (Vec::new(), None);
    while transfers.len() < spec.count {
        thread::sleep(Duration::from_secs_f64(random.random_range(0.0..=spec.pause)));
        if start.elapsed() >= limit {
            break;
        }
        let (transfer, stream) = transfer(spec, connection.take(), start, &data).map_err(about(spec.to))?;
        transfers.push(transfer);
        connection = spec.kept.then_some(stream);
    }
    Ok(transfers)
}

/// Makes one transfer, over an existing connection or a new one.
fn transfer(
    spec: &Spec,
    connection: Option<TcpStream>,
    start: Instant,
    data: &[u8],
) -> io::Result<(Transfer, TcpStream)> {
    let begun = Instant::now();
    let (mut stream, connect) = match connection {
        Some(stream) => (stream, Duration::ZERO),
        None => (TcpStream::connect_timeout(&spec.to, STALL_TIMEOUT)?, begun.elapsed()),
    };
    prepare(&stream)?;
    stream.write_all(&spec.size.to_be_bytes())?;
    let mut left = spec.size;
    while left > 0 {
        left -= stream.write(&data[..at_most(data.len(), left)])? as u64;
    }
    let mut acknowledged = None;
    while !readable(&stream, Instant::now() + POLL_INTERVAL)? {
        if acknowledged.is_none() && unacknowledged(&stream)? == 0 {
            acknowledged = Some(begun.elapsed());
        }
        if begun.elapsed() > STALL_TIMEOUT {
            break;
        }
    }
    // Data that the receiver has confirmed are acknowledged.
    let acknowledged = acknowledged.unwrap_or_else(|| begun.elapsed());
    let mut confirmed = [0; NUMBER];
    stream.read_exact(&mut confirmed)?;
    let transfer = Transfer {
        t: (begun - start).as_secs_f64(),
        connect: connect.as_secs_f64(),
        acknowledged: acknowledged.as_secs_f64(),
        seconds: begun.elapsed().as_secs_f64(),
        received: Duration::from_nanos(u64::from_be_bytes(confirmed)).as_secs_f64(),
    };
    Ok((transfer, stream))
}

/// Receives transfers until the time is up; calls `started` when it is ready.
///
/// # Errors
/// If a parameter is out of range or the port is in use. A broken transfer is an error of its sender only.
pub fn serve(spec: &ServeSpec, started: impl FnOnce(SocketAddr)) -> io::Result<()> {
    serve_each(spec, started, |stream| receive(stream, Instant::now()))
}

/// Receives the transfers of a connection until its sender closes it.
fn receive(mut stream: TcpStream, accepted: Instant) -> io::Result<()> {
    prepare(&stream)?;
    let mut data = vec![0; CHUNK];
    let mut begun = accepted;
    loop {
        let mut size = [0; NUMBER];
        stream.read_exact(&mut size)?;
        let mut left = u64::from_be_bytes(size);
        while left > 0 {
            let most = at_most(data.len(), left);
            match stream.read(&mut data[..most])? as u64 {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
        let elapsed = begun.elapsed().as_nanos() as u64;
        stream.write_all(&elapsed.to_be_bytes())?;
        // The next transfer starts with its first byte.
        if stream.peek(&mut [0])? == 0 {
            return Ok(());
        }
        begun = Instant::now();
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL_TIMEOUT))?;
    stream.set_write_timeout(Some(STALL_TIMEOUT))
}

fn at_most(chunk: usize, left: u64) -> usize {
    usize::try_from(left).map_or(chunk, |left| left.min(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{Ipv4Addr, TcpListener},
        sync::mpsc,
    };

    fn server(seconds: f64) -> (SocketAddr, thread::JoinHandle<()>) {
        let (sender, ports) = mpsc::channel();
        let serving = thread::spawn(move || {
            serve(&ServeSpec { port: 0, seconds }, |address| sender.send(address.port()).unwrap()).unwrap();
        });
        ((Ipv4Addr::LOCALHOST, ports.recv().unwrap()).into(), serving)
    }

    fn spec(to: SocketAddr, size: u64, count: usize) -> Spec {
        Spec { to, size, count, seconds: 60.0, pause: 0.0, kept: false }
    }

    #[test]
    fn each_transfer_is_confirmed_and_measured_by_both_sides() {
        let (to, serving) = server(2.0);
        for (size, count) in [(0, 3), (1, 3), (10_000, 20), (3_000_000, 2)] {
            let transfers = send(&spec(to, size, count)).unwrap();
            assert_eq!(transfers.len(), count);
            assert!(transfers.is_sorted_by(|a, b| a.t < b.t));
            for transfer in transfers {
                assert!(0.0 < transfer.connect && transfer.connect < transfer.seconds, "{transfer:?}");
                assert!(0.0 < transfer.received, "{transfer:?}");
                assert!(transfer.connect < transfer.acknowledged, "{transfer:?}");
                assert!(transfer.acknowledged < transfer.seconds, "{transfer:?}");
            }
        }
        serving.join().unwrap();
    }

    #[test]
    fn transfers_on_a_kept_connection_have_pauses_between_them() {
        let (to, serving) = server(2.0);
        let spec = Spec { to, size: 10_000, count: 20, seconds: 60.0, pause: 0.02, kept: true };
        let begun = Instant::now();
        let transfers = send(&spec).unwrap();
        assert!(begun.elapsed() > Duration::from_millis(20), "20 pauses of up to 20 ms");
        let connects: Vec<bool> = transfers.iter().map(|transfer| transfer.connect > 0.0).collect();
        assert_eq!(connects, [vec![true], vec![false; 19]].concat());
        for transfer in transfers {
            assert!(0.0 < transfer.received && transfer.received < transfer.seconds, "{transfer:?}");
        }
        let error = send(&Spec { pause: 11.0, ..spec }).unwrap_err();
        assert!(error.to_string().contains("pause is 11: 0 to 10 is possible"), "{error}");
        serving.join().unwrap();
    }

    #[test]
    fn unread_data_beyond_the_window_are_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        assert_eq!(unacknowledged(&stream).unwrap(), 0);
        // The receiver does not read, so its window closes.
        let written: usize = std::iter::from_fn(|| stream.write(&[0; CHUNK]).ok()).sum();
        assert!((1..=written as u64).contains(&unacknowledged(&stream).unwrap()));
    }

    #[test]
    fn no_transfer_starts_after_the_limit() {
        let (to, serving) = server(0.5);
        let transfers = send(&Spec { seconds: 0.1, ..spec(to, 1000, 1_000_000) }).unwrap();
        assert!((1..1_000_000).contains(&transfers.len()));
        serving.join().unwrap();
    }

    #[test]
    fn an_error_names_the_absent_server() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = send(&spec(free, 1, 1)).unwrap_err();
        assert!(error.to_string().contains(&free.to_string()), "{error}");
        let error = send(&spec(free, 1, 0)).unwrap_err();
        assert!(error.to_string().contains("count"), "{error}");
    }
}
