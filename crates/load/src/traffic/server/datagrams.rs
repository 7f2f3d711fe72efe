//! Datagrams at a server: counted by who sent them, and told to whom asks.

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
        wire::{answer, parse_question},
    },
    udp::widen,
};

/// Senders remembered at once; the one silent longest is forgotten for a new one.
const SENDERS: usize = 4096;

struct Sender {
    arrived: Arrived,
    /// The lowest sequence number above all that came.
    expected: u64,
    heard: Instant,
}

/// Counts until the run is over.
pub fn run(run: &Run, socket: &UdpSocket, counters: &Counters) {
    // With less, more is lost, which is counted.
    let _ = widen(socket);
    let _ = socket.set_read_timeout(Some(SOCKET_TIMEOUT));
    let mut senders: BTreeMap<SocketAddr, Sender> = BTreeMap::new();
    let mut datagram = vec![0; 1 << 16];
    while !run.over.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut datagram) {
            Ok(received) => received,
            // Refusals are echoes of answers to those who left.
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
        if let Some(number) = parse_question(datagram) {
            let arrived = senders.get(&from).map_or(Arrived::default(), |sender| sender.arrived);
            let _ = socket.send_to(&answer(number, &arrived), from);
        } else if let Some(sequence) = datagram.first_chunk() {
            add(&counters.received, length as u64);
            if senders.len() == SENDERS && !senders.contains_key(&from) {
                forget_one(&mut senders);
            }
            let sender = senders.entry(from).or_insert_with(Sender::new);
            sender.count(length as u64, u64::from_be_bytes(*sequence));
        }
    }
}

fn forget_one(senders: &mut BTreeMap<SocketAddr, Sender>) {
    let silent = senders.iter().min_by_key(|(_, sender)| sender.heard).map(|(address, _)| *address);
    silent.and_then(|address| senders.remove(&address));
}

impl Sender {
    fn new() -> Sender {
        Sender { arrived: Arrived::default(), expected: 0, heard: Instant::now() }
    }

    fn count(&mut self, bytes: u64, sequence: u64) {
        self.heard = Instant::now();
        self.arrived.datagrams += 1;
        self.arrived.bytes += bytes;
        if sequence >= self.expected {
            self.expected = sequence.saturating_add(1);
        } else {
            self.arrived.reordered += 1;
        }
    }
}
