//! Datagrams: a paced or flooding sender, and a receiver that counts by source and interval.
//!
//! A payload starts with its sequence number (64 bits, big endian, from 0), by which the receiver distinguishes loss from
//! reordering. Both sides transfer batches of datagrams per system call, as system calls are expensive in User-Mode Linux guests.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{self, MsgFlags, MultiHeaders, SockaddrLike, SockaddrStorage, setsockopt, sockopt},
};
use serde::{Deserialize, Serialize};

use crate::{
    Meter, Pacer, Progress, ReceiveSpec, Received, SOCKET_TIMEOUT, Sent, about, invalid, is_transient, seconds, within,
};

/// Datagrams per system call.
const BATCH: usize = 32;
/// Bytes of the sequence number, and the smallest payload.
const SEQUENCE: usize = 8;
/// The largest payload of a datagram over IPv4.
const LARGEST: usize = 65_507;
/// The sender's socket buffer, in bytes; the kernel doubles it for bookkeeping. It is large enough that a card's ring (256 frames)
/// stays full while the sender does not run, and small enough that the queue before the ring (1000 frames) does not overflow even
/// with the smallest frames (768 bytes with bookkeeping).
const SEND_BUFFER: usize = 400 << 10;
/// The receiver's socket buffer, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Parameters of a sender, which sends one flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendSpec {
    /// The receiver.
    pub to: SocketAddr,
    /// Payload bytes of a datagram, 8 to 65507. The Ethernet frame is 42 bytes longer over IPv4, 62 over IPv6.
    pub size: usize,
    /// Offered load in bits per second of Ethernet frames (with headers, without preamble and checksum); none: a flood, as fast as
    /// the socket takes them.
    pub rate: Option<f64>,
    /// How long to send, in seconds.
    pub seconds: f64,
}

/// Sends datagrams until the time is up.
///
/// # Errors
/// If a parameter is out of range, or the socket cannot be opened or fails permanently.
pub fn send(spec: &SendSpec) -> io::Result<Sent> {
    let any: SocketAddr = if spec.to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("a valid address");
    let socket = UdpSocket::bind(any)?;
    socket.connect(spec.to)?;
    send_from(&socket, spec, |_, _| true)
}

/// Sends from a connected socket until the time is up. Calls `progress` with the datagrams and bytes of each batch, and stops if it
/// returns false.
///
/// # Errors
/// As [`send`].
pub fn send_from(socket: &UdpSocket, spec: &SendSpec, mut progress: impl FnMut(u64, u64) -> bool) -> io::Result<Sent> {
    let duration = seconds("seconds", spec.seconds)?;
    within("size", spec.size, SEQUENCE, LARGEST)?;
    let headers = if spec.to.is_ipv4() { 42 } else { 62 };
    let mut pacer = match spec.rate {
        None => Pacer::flood(BATCH),
        Some(rate) if rate >= 1.0 && rate.is_finite() => Pacer::new((spec.size as u64 + headers) * 8, rate, BATCH),
        Some(rate) => return Err(invalid(format!("rate is {rate}: at least 1 bit per second is needed"))),
    };
    socket.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    // Exceeding the system's limit needs privileges.
    setsockopt(socket, sockopt::SndBufForce, &SEND_BUFFER)
        .or_else(|_| setsockopt(socket, sockopt::SndBuf, &SEND_BUFFER))?;

    let mut payloads = vec![vec![0; spec.size]; BATCH];
    let mut sent = Sent::default();
    let start = Instant::now();
    let mut now = Duration::ZERO;
    let mut due = 0;
    while now < duration {
        if due == 0 {
            due = pacer.take(now);
        }
        if due == 0 {
            thread::sleep(pacer.wait(now).min(duration - now));
        } else {
            for (sequence, payload) in (sent.datagrams..).zip(&mut payloads[..due]) {
                payload[..SEQUENCE].copy_from_slice(&sequence.to_be_bytes());
            }
            match send_batch(socket, &payloads[..due]) {
                Ok(count) => {
                    due -= count;
                    sent.datagrams += count as u64;
                    sent.bytes += (count * spec.size) as u64;
                    if !progress(count as u64, (count * spec.size) as u64) {
                        break;
                    }
                }
                // The send timed out: the ring, the queue and the socket's buffer are full.
                Err(Errno::EAGAIN | Errno::EINTR) => (),
                Err(error) if is_transient(error) => {
                    sent.refused += 1;
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        now = start.elapsed();
    }
    sent.seconds = start.elapsed().as_secs_f64();
    Ok(sent)
}

/// Sends payloads in one system call; returns how many the socket took.
fn send_batch(socket: &UdpSocket, payloads: &[Vec<u8>]) -> Result<usize, Errno> {
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(payloads.len(), None);
    let slices: Vec<[IoSlice; 1]> = payloads.iter().map(|payload| [IoSlice::new(payload)]).collect();
    let addresses = vec![None; payloads.len()];
    Ok(socket::sendmmsg(socket.as_raw_fd(), &mut headers, &slices, addresses, [], MsgFlags::empty())?.count())
}

/// Enlarges the receive buffer, to bridge the moments when this process does not run. Exceeding the system's limit needs privileges;
/// without them the buffer gets that limit.
pub(crate) fn enlarge_buffer(socket: &UdpSocket) -> nix::Result<()> {
    setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
        .or_else(|_| setsockopt(socket, sockopt::RcvBuf, &RECEIVE_BUFFER))
}

/// Counts datagrams by source and interval until the time is up, and passes events to `sink`.
///
/// # Errors
/// If a parameter is out of range, the port is in use, or the socket fails.
pub fn receive(spec: &ReceiveSpec, mut sink: impl FnMut(Progress)) -> io::Result<Received> {
    let duration = seconds("seconds", spec.seconds)?;
    let interval = seconds("interval", spec.interval)?;
    let socket =
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, spec.port)).map_err(about(format_args!("UDP port {}", spec.port)))?;
    socket.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    enlarge_buffer(&socket)?;
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let mut heads = [[0; SEQUENCE]; BATCH];
    let mut arrived = Vec::with_capacity(BATCH);

    let mut meter = Meter::new(interval);
    let start = Instant::now();
    sink(Progress::Started(socket.local_addr()?));
    loop {
        receive_batch(&socket, &mut headers, &mut heads, &mut arrived)?;
        let now = start.elapsed();
        if now >= duration {
            return Ok(meter.finish(duration, &mut |sample| sink(Progress::Sample(sample))));
        }
        meter.advance(now, &mut |sample| sink(Progress::Sample(sample)));
        for (head, (source, bytes)) in heads.iter().zip(arrived.drain(..)) {
            // A datagram too short for a sequence number is not from a sender of this program.
            if let Some(source) = source.filter(|_| bytes >= SEQUENCE) {
                meter.datagram(source, bytes as u64, u64::from_be_bytes(*head));
            }
        }
    }
}

/// Waits for a datagram, then receives the available ones in one system call: the first bytes, source and length of each.
fn receive_batch(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<SockaddrStorage>,
    heads: &mut [[u8; SEQUENCE]; BATCH],
    arrived: &mut Vec<(Option<SocketAddr>, usize)>,
) -> io::Result<()> {
    let mut slices = heads.each_mut().map(|head| [IoSliceMut::new(head)]);
    // With MSG_TRUNC the result is a datagram's full length, though only its head is copied.
    let flags = MsgFlags::MSG_WAITFORONE | MsgFlags::MSG_TRUNC;
    match socket::recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), flags, None) {
        Ok(results) => arrived.extend(results.map(|message| (message.address.and_then(std_address), message.bytes))),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => (),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn std_address(address: SockaddrStorage) -> Option<SocketAddr> {
    match address.family()? {
        socket::AddressFamily::Inet => address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into())),
        socket::AddressFamily::Inet6 => address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Runs a receiver and, once it is ready, two senders to it.
    fn exchange(first: SendSpec, second: SendSpec) -> (Received, Vec<Progress>, [Sent; 2]) {
        let (sender, addresses) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let mut progress = Vec::new();
            let received = receive(&ReceiveSpec { port: 0, interval: 0.05, seconds: 0.6 }, |event| {
                if let Progress::Started(address) = event {
                    sender.send(address).unwrap();
                }
                progress.push(event);
            });
            (received.unwrap(), progress)
        });
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, addresses.recv().unwrap().port()));
        let senders = [first, second].map(|spec| thread::spawn(move || send(&SendSpec { to, ..spec }).unwrap()));
        let sent = senders.map(|sender| sender.join().unwrap());
        let (received, progress) = receiver.join().unwrap();
        (received, progress, sent)
    }

    fn spec(size: usize, rate: Option<f64>) -> SendSpec {
        SendSpec { to: "127.0.0.1:1".parse().unwrap(), size, rate, seconds: 0.3 }
    }

    #[test]
    fn datagrams_arrive_and_are_counted_by_source() {
        let (received, progress, sent) = exchange(spec(1000, Some(2e6)), spec(200, Some(1e6)));
        assert_eq!(received.sources.len(), 2);
        for sent in &sent {
            let total =
                received.sources.iter().find(|total| total.bytes == sent.bytes).expect("a source for each sender");
            assert_eq!(total.datagrams, sent.datagrams);
            assert_eq!(total.lost(), 0);
            let samples = progress.iter().filter_map(|event| match event {
                Progress::Sample(sample) if sample.source == total.source => Some(sample.bytes),
                _ => None,
            });
            assert_eq!(samples.sum::<u64>(), total.bytes);
        }
        assert!(matches!(progress[0], Progress::Started(_)));
    }

    #[test]
    fn the_rate_is_not_exceeded() {
        let (_, _, sent) = exchange(spec(1000, Some(4e6)), spec(1000, Some(8e6)));
        for (sent, rate) in sent.iter().zip([4e6, 8e6]) {
            let most = rate * sent.seconds / (1042.0 * 8.0) + 1.0;
            assert!(sent.datagrams > 0 && sent.datagrams as f64 <= most, "{sent:?} at {rate}");
        }
    }

    #[test]
    fn datagrams_of_a_flood_arrive_or_count_as_lost() {
        let (received, _, sent) = exchange(spec(1400, None), spec(18, None));
        assert_eq!(received.sources.len(), 2);
        let datagrams: u64 = received.sources.iter().map(|total| total.datagrams).sum();
        let lost: u64 = received.sources.iter().map(|total| total.lost()).sum();
        assert!(datagrams > 0);
        assert!(datagrams + lost <= sent.iter().map(|sent| sent.datagrams).sum::<u64>());
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        for bad in [
            SendSpec { size: 7, ..spec(8, None) },
            SendSpec { size: 65_508, ..spec(8, None) },
            SendSpec { rate: Some(0.0), ..spec(8, None) },
            SendSpec { rate: Some(f64::NAN), ..spec(8, None) },
            SendSpec { seconds: -1.0, ..spec(8, None) },
            SendSpec { seconds: f64::INFINITY, ..spec(8, None) },
        ] {
            assert_eq!(send(&bad).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad:?}");
        }
        let bad = ReceiveSpec { port: 0, interval: 0.0, seconds: 1.0 };
        assert_eq!(receive(&bad, |_| ()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
