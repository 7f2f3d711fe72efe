//! The server's receiver of datagrams: counts them by sender, and reports to the senders.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    sync::atomic::Ordering,
    time::Instant,
};

use super::{
    Run,
    counters::{Counters, add},
};
use crate::{
    SOCKET_TIMEOUT,
    traffic::{
        Arrived,
        wire::{parse_report_request, report},
    },
    udp::enlarge_buffer,
};

/// The most senders with counts; a new one replaces the one that has been idle longest.
const SENDERS: usize = 4096;

struct Sender {
    arrived: Arrived,
    /// One more than the highest sequence number so far.
    expected: u64,
    last_received: Instant,
}

/// Counts until the run is over.
pub(super) fn run(run: &Run, socket: &UdpSocket, counters: &Counters) {
    // With a smaller buffer more is lost, which is counted.
    let _ = enlarge_buffer(socket);
    let _ = socket.set_read_timeout(Some(SOCKET_TIMEOUT));
    let mut senders: BTreeMap<SocketAddr, Sender> = BTreeMap::new();
    let mut datagram = vec![0; 1 << 16];
    while !run.over.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut datagram) {
            Ok(received) => received,
            // ICMP errors for answers to clients that have ended.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
                ) =>
            {
                continue;
            }
            Err(_) => return,
        };
        let datagram = &datagram[..length];
        if let Some(number) = parse_report_request(datagram) {
            let arrived = senders.get(&from).map_or(Arrived::default(), |sender| sender.arrived);
            let _ = socket.send_to(&report(number, &arrived), from);
        } else if let Some(sequence) = datagram.first_chunk() {
            add(&counters.received, length as u64);
            if senders.len() == SENDERS && !senders.contains_key(&from) {
                remove_oldest(&mut senders);
            }
            let sender = senders.entry(from).or_insert_with(Sender::new);
            sender.count(length as u64, u64::from_be_bytes(*sequence));
        }
    }
}

fn remove_oldest(senders: &mut BTreeMap<SocketAddr, Sender>) {
    let oldest = senders.iter().min_by_key(|(_, sender)| sender.last_received).map(|(address, _)| *address);
    oldest.and_then(|address| senders.remove(&address));
}

impl Sender {
    fn new() -> Sender {
        Sender { arrived: Arrived::default(), expected: 0, last_received: Instant::now() }
    }

    fn count(&mut self, bytes: u64, sequence: u64) {
        self.last_received = Instant::now();
        self.arrived.datagrams += 1;
        self.arrived.bytes += bytes;
        if sequence >= self.expected {
            self.expected = sequence.saturating_add(1);
        } else {
            self.arrived.reordered += 1;
        }
    }
}
