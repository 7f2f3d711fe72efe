//! The round-trip times of ICMP echo requests, which the other side's kernel answers.
//!
//! Requests are due at even intervals, and a round trip counts from when its request was *due*, so a delay of the sender is
//! included.

use std::{
    io, iter,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    ops::Range,
    process,
    sync::atomic::{AtomicU16, Ordering},
    time::Instant,
};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket},
};
use serde::{Deserialize, Serialize};

use crate::{about, is_transient, readable, seconds, within};

/// Bytes of a request's ICMP header and data, as in common ping programs.
const LENGTH: usize = 64;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// Parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The destination.
    pub to: Ipv4Addr,
    /// The number of requests, 1 to 65535.
    pub count: u16,
    /// Seconds from one request to the next.
    pub interval: f64,
    /// Seconds to wait for replies after the last request.
    pub patience: f64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// For each request in order the seconds from when it was due to its reply; none without a reply.
    pub seconds: Vec<Option<f64>>,
}

impl RoundTrips {
    /// Requests without a reply.
    pub fn lost(&self) -> usize {
        self.seconds.iter().filter(|trip| trip.is_none()).count()
    }

    /// The longest time without an answer to requests that were due every `interval`, among those times that overlap this range. The first
    /// begins when the first request was due, and the last one ends when the last request was. All in seconds, counted from the first.
    pub fn gap(&self, interval: f64, within: Range<f64>) -> f64 {
        let arrival = |(number, trip): (usize, &Option<f64>)| trip.map(|trip| number as f64 * interval + trip);
        let mut arrivals: Vec<f64> = self.seconds.iter().enumerate().filter_map(arrival).collect();
        arrivals.sort_by(f64::total_cmp);
        let last_due = self.seconds.len().saturating_sub(1) as f64 * interval;
        let ends =
            arrivals.iter().copied().chain(arrivals.last().is_none_or(|last| *last < last_due).then_some(last_due));
        let begins = iter::once(0.0).chain(arrivals.iter().copied());
        let waits = begins.zip(ends).filter(|(begin, end)| *begin < within.end && *end > within.start);
        waits.map(|(begin, end)| end - begin).fold(0.0, f64::max)
    }
}

/// Sends the requests and waits for their replies.
///
/// # Errors
/// If a parameter is out of range, neither a raw socket nor a ping socket may be opened, or the socket fails permanently.
pub fn run(spec: &Spec) -> io::Result<RoundTrips> {
    let interval = seconds("interval", spec.interval)?;
    let patience = seconds("patience", spec.patience)?;
    within("count", spec.count, 1, u16::MAX)?;
    let echo = Echo::open(spec.to)?;
    let start = Instant::now();
    let due = |sequence: u16| start + interval * u32::from(sequence);
    let end = due(spec.count - 1) + patience;
    let mut trips = vec![None; spec.count.into()];
    let (mut sent, mut answered) = (0, 0);
    while answered < spec.count {
        let now = Instant::now();
        while sent < spec.count && due(sent) <= now {
            echo.send(sent)?;
            sent += 1;
        }
        if now >= end {
            break;
        }
        let wake = if sent < spec.count { due(sent) } else { end };
        if readable(&echo.socket, wake)?
            && let Some(sequence) = echo.receive()?
            && sequence < sent
            && trips[usize::from(sequence)].is_none()
        {
            trips[usize::from(sequence)] = Some(due(sequence).elapsed().as_secs_f64());
            answered += 1;
        }
    }
    Ok(RoundTrips { seconds: trips })
}

/// A socket for echo requests and replies, in the type that the standard library has for UDP sockets.
struct Echo {
    socket: UdpSocket,
    id: Id,
}

/// How replies are recognized as answers to this socket's requests.
#[derive(Clone, Copy, PartialEq)]
enum Id {
    /// By this ICMP identifier, on a raw socket, which receives all replies.
    Ours(u16),
    /// By the kernel, on a ping socket, which sets the identifier itself.
    Kernel,
}

impl Echo {
    fn open(to: Ipv4Addr) -> io::Result<Echo> {
        static OPENED: AtomicU16 = AtomicU16::new(0);
        let open = |kind| socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp);
        let (socket, id) = match open(SockType::Raw) {
            Ok(socket) => {
                let own = OPENED.fetch_add(1, Ordering::Relaxed);
                (socket, Id::Ours((process::id() as u16).wrapping_add(own)))
            }
            // The sysctl net.ipv4.ping_group_range may allow ping sockets without privileges.
            Err(Errno::EPERM | Errno::EACCES) => {
                let refused =
                    "a socket for echo requests needs CAP_NET_RAW, or this group in net.ipv4.ping_group_range";
                (open(SockType::Datagram).map_err(io::Error::from).map_err(about(refused))?, Id::Kernel)
            }
            Err(error) => return Err(error.into()),
        };
        let socket = UdpSocket::from(socket);
        socket.connect(SocketAddr::from((to, 0))).map_err(about(to))?;
        Ok(Echo { socket, id })
    }

    /// Sends a request. After a transient error it counts as lost.
    fn send(&self, sequence: u16) -> io::Result<()> {
        let id = if let Id::Ours(id) = self.id { id } else { 0 };
        self.socket.send(&request(id, sequence)).map(drop).or_else(ignore_transient)
    }

    /// Receives a packet; returns the sequence number if it is a reply to this socket's requests.
    fn receive(&self) -> io::Result<Option<u16>> {
        let mut packet = [0; 256];
        match self.socket.recv(&mut packet) {
            Ok(length) => Ok(reply(&packet[..length], self.id)),
            Err(error) => ignore_transient(error).map(|()| None),
        }
    }
}

fn ignore_transient(error: io::Error) -> io::Result<()> {
    let transient = error.raw_os_error().is_some_and(|number| is_transient(Errno::from_raw(number)));
    if transient { Ok(()) } else { Err(error) }
}

/// An echo request (RFC 792).
fn request(id: u16, sequence: u16) -> [u8; LENGTH] {
    let mut packet = [0; LENGTH];
    packet[0] = ECHO_REQUEST;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    let sum = checksum(&packet);
    packet[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The sequence number of an echo reply with this id. A raw socket's packets start with the IP header.
fn reply(packet: &[u8], id: Id) -> Option<u16> {
    let packet = match id {
        Id::Ours(_) => packet.get(usize::from(packet.first()? & 0xf) * 4..)?,
        Id::Kernel => packet,
    };
    let field = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let ours = match id {
        Id::Ours(id) => field(4)? == id,
        Id::Kernel => true,
    };
    if *packet.first()? == ECHO_REPLY && ours { field(6) } else { None }
}

/// The Internet checksum of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A request with its checksum sums to zero, and only its own sender recognizes the reply.
        #[test]
        fn a_reply_is_recognized_by_its_id(id: u16, sequence: u16, other: u16) {
            let mut packet = request(id, sequence);
            prop_assert_eq!(checksum(&packet), 0);
            prop_assert_eq!(reply(&packet, Id::Kernel), None);
            packet[0] = ECHO_REPLY;
            prop_assert_eq!(reply(&packet, Id::Kernel), Some(sequence));
            let mut raw = vec![0x45; 20];
            raw.extend(packet);
            prop_assert_eq!(reply(&raw, Id::Ours(id)), Some(sequence));
            prop_assert_eq!(reply(&raw, Id::Ours(other)).is_some(), other == id);
        }

        /// No packet causes a panic.
        #[test]
        fn any_packet_is_parsed(packet in prop::collection::vec(any::<u8>(), 0..80), id: u16) {
            let _ = (reply(&packet, Id::Kernel), reply(&packet, Id::Ours(id)));
        }
    }

    /// Whether this process may ping; if not, tests are skipped with a message.
    fn may_ping() -> bool {
        let opened = Echo::open(Ipv4Addr::LOCALHOST);
        if let Err(error) = &opened {
            eprintln!("SKIPPED: {error}");
        }
        opened.is_ok()
    }

    #[test]
    fn concurrent_pings_on_loopback_get_all_their_own_replies() {
        if !may_ping() {
            return;
        }
        let spec = Spec { to: Ipv4Addr::LOCALHOST, count: 50, interval: 0.002, patience: 5.0 };
        let both = std::thread::scope(|scope| {
            [(); 2].map(|()| scope.spawn(|| run(&spec).unwrap())).map(|run| run.join().unwrap())
        });
        for trips in both {
            assert_eq!((trips.seconds.len(), trips.lost()), (50, 0));
            assert!(trips.seconds.iter().flatten().all(|trip| *trip > 0.0));
        }
    }

    #[test]
    fn an_error_names_an_invalid_destination() {
        // Loopback's broadcast address.
        let spec = Spec { to: Ipv4Addr::new(127, 255, 255, 255), count: 1, interval: 0.001, patience: 0.01 };
        let error = run(&spec).unwrap_err().to_string();
        assert!(!may_ping() || error.contains("127.255.255.255"), "{error}");
    }

    #[test]
    fn requests_without_a_reply_are_lost() {
        assert_eq!(RoundTrips { seconds: vec![Some(0.1), None, None] }.lost(), 2);
    }

    #[test]
    fn a_gap_is_the_longest_time_without_an_answer() {
        // Answers at 0.1, 1.5, 1.2 and 4.1: the second one is overtaken.
        let trips = RoundTrips { seconds: vec![Some(0.1), Some(0.5), Some(-0.8), None, Some(0.1)] };
        let near = |gap: f64, expected: f64| assert!((gap - expected).abs() < 1e-9, "{gap}");
        near(trips.gap(1.0, 0.0..f64::INFINITY), 2.6);
        near(trips.gap(1.0, 0.0..1.3), 1.1);
        // What began before a range and ended after it is all that there was of that range.
        near(trips.gap(1.0, 2.0..2.5), 2.6);
        near(trips.gap(1.0, 1.3..1.4), 0.3);
        near(trips.gap(1.0, 5.0..9.0), 0.0);
    }

    #[test]
    fn without_an_answer_all_is_a_gap() {
        let trips = |seconds: &[Option<f64>]| RoundTrips { seconds: seconds.into() };
        for (seconds, expected) in
            [(vec![None; 4], 3.0), (vec![Some(0.5), None, None, None], 2.5), (vec![None, Some(0.5)], 1.5)]
        {
            assert_eq!(trips(&seconds).gap(1.0, 0.0..9.0), expected, "{seconds:?}");
        }
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let good = Spec { to: Ipv4Addr::LOCALHOST, count: 1, interval: 1.0, patience: 1.0 };
        for (bad, named) in [
            (Spec { count: 0, ..good.clone() }, "count"),
            (Spec { interval: 0.0, ..good.clone() }, "interval"),
            (Spec { patience: -1.0, ..good.clone() }, "patience"),
        ] {
            let error = run(&bad).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
