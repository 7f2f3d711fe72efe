//! The exchange of a parallel computation: again and again every node sends a block to each other node, and goes on when
//! it has theirs.
//!
//! The pattern of MPI_Alltoall as the Intel MPI Benchmarks time it: a barrier, then iterations back to back. It is our own
//! exchange over TCP, not an MPI library: no rendezvous, no algorithm by message size. All nodes are joined by one
//! connection a pair.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::{about, await_any, invalid, readable, seconds, within};

/// Between two attempts to reach a node that does not listen yet.
const RETRY: Duration = Duration::from_millis(20);
/// Bytes a read or write.
const CHUNK: usize = 128 << 10;

/// One node's orders; every node has the same but for `own`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// All nodes, 2 to 64, each with the port it listens at.
    pub nodes: Vec<SocketAddr>,
    /// Which of them this is.
    pub own: usize,
    /// What to exchange, in order.
    pub rounds: Vec<Round>,
    /// Seconds after which to give up.
    pub seconds: f64,
}

/// Iterations with blocks of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Bytes from each node to each other, at most 64 MiB.
    pub bytes: usize,
    /// Iterations, 1 to 100,000.
    pub iterations: usize,
}

/// How long one round's iterations took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Bytes from each node to each other.
    pub bytes: usize,
    /// Seconds of each iteration on this node.
    pub seconds: Vec<f64>,
}

/// Takes part as one node.
///
/// # Errors
/// Orders out of range, a port in use, a node that is not there or breaks off, or the time is up before the end.
pub fn run(spec: &Spec) -> io::Result<Vec<Times>> {
    let end = Instant::now() + seconds("seconds", spec.seconds)?;
    within("nodes", spec.nodes.len(), 2, 64)?;
    within("own", spec.own, 0, spec.nodes.len() - 1)?;
    for round in &spec.rounds {
        within("bytes", round.bytes, 0, 64 << 20)?;
        within("iterations", round.iterations, 1, 100_000)?;
    }
    let mut mesh = Mesh::join(spec, end)?;
    let mut times = Vec::with_capacity(spec.rounds.len());
    for round in &spec.rounds {
        // Nobody has all blocks before everybody has sent one: one exchange of a byte is a barrier.
        mesh.exchange(1)?;
        let mut seconds = Vec::with_capacity(round.iterations);
        for _ in 0..round.iterations {
            let start = Instant::now();
            mesh.exchange(round.bytes)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        times.push(Times { bytes: round.bytes, seconds });
    }
    Ok(times)
}

/// The connections to all other nodes.
struct Mesh {
    peers: Vec<Peer>,
    /// What is sent, and where what is received goes: of no meaning.
    sent: Vec<u8>,
    received: Vec<u8>,
    /// When to give up.
    end: Instant,
}

struct Peer {
    address: SocketAddr,
    stream: TcpStream,
    /// Bytes of the exchange under way that are still to go and to come.
    to_send: usize,
    to_receive: usize,
}

impl Mesh {
    /// Connects to the nodes before this one and takes the connections of those behind it.
    fn join(spec: &Spec, end: Instant) -> io::Result<Mesh> {
        let own = spec.nodes[spec.own];
        let listener = TcpListener::bind(own).map_err(about(format_args!("TCP {own}")))?;
        let mut streams = Vec::with_capacity(spec.nodes.len() - 1);
        for (node, address) in spec.nodes[..spec.own].iter().enumerate() {
            let mut stream = reach(*address, end).map_err(about(address))?;
            stream.write_all(&[spec.own as u8])?;
            streams.push((node, stream));
        }
        while streams.len() + 1 < spec.nodes.len() {
            let (stream, node) = take(&listener, end)?;
            if node <= spec.own || node >= spec.nodes.len() || streams.iter().any(|(taken, _)| *taken == node) {
                return Err(invalid(format!("a node came as number {node}, which is none, or taken")));
            }
            streams.push((node, stream));
        }
        let peer = |(node, stream): (usize, TcpStream)| {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(Peer { address: spec.nodes[node], stream, to_send: 0, to_receive: 0 })
        };
        let peers = streams.into_iter().map(peer).collect::<io::Result<_>>()?;
        Ok(Mesh { peers, sent: vec![0; CHUNK], received: vec![0; CHUNK], end })
    }

    /// Sends `bytes` to each other node and takes as many from each.
    fn exchange(&mut self, bytes: usize) -> io::Result<()> {
        for peer in &mut self.peers {
            (peer.to_send, peer.to_receive) = (bytes, bytes);
        }
        loop {
            for peer in &mut self.peers {
                peer.progress(&self.sent, &mut self.received).map_err(about(peer.address))?;
            }
            let waiting = self.peers.iter().filter(|peer| peer.events() != PollFlags::empty());
            let mut sockets: Vec<_> = waiting.map(|peer| PollFd::new(peer.stream.as_fd(), peer.events())).collect();
            if sockets.is_empty() {
                return Ok(());
            }
            if !await_any(&mut sockets, self.end)? {
                let silent = self.peers.iter().find(|peer| peer.to_receive > 0).unwrap_or(&self.peers[0]);
                return Err(about(silent.address)(ErrorKind::TimedOut.into()));
            }
        }
    }
}

impl Peer {
    /// Moves what can be moved without waiting.
    fn progress(&mut self, sent: &[u8], received: &mut [u8]) -> io::Result<()> {
        while self.to_send > 0 {
            match self.stream.write(&sent[..self.to_send.min(CHUNK)]) {
                Ok(written) => self.to_send -= written,
                Err(error) if passing(&error) => break,
                Err(error) => return Err(error),
            }
        }
        while self.to_receive > 0 {
            match self.stream.read(&mut received[..self.to_receive.min(CHUNK)]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.to_receive -= read,
                Err(error) if passing(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What it waits for.
    fn events(&self) -> PollFlags {
        let of = |bytes: usize, flag: PollFlags| if bytes > 0 { flag } else { PollFlags::empty() };
        of(self.to_send, PollFlags::POLLOUT) | of(self.to_receive, PollFlags::POLLIN)
    }
}

fn passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Connects to a node, which may not listen yet.
fn reach(node: SocketAddr, end: Instant) -> io::Result<TcpStream> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&node, left.max(RETRY)) {
            Err(_) if left > RETRY => thread::sleep(RETRY),
            reached => return reached,
        }
    }
}

/// Takes the connection of a node; answers which it is.
fn take(listener: &TcpListener, end: Instant) -> io::Result<(TcpStream, usize)> {
    if !readable(listener, end)? {
        return Err(about("not all nodes came")(ErrorKind::TimedOut.into()));
    }
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(end.saturating_duration_since(Instant::now()).max(RETRY)))?;
    let mut number = [0];
    stream.read_exact(&mut number)?;
    Ok((stream, number[0].into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Addresses on loopback that nobody else has: not this test process's other tests, nor another's.
    fn nodes(count: usize) -> Vec<SocketAddr> {
        static MESHES: AtomicU8 = AtomicU8::new(0);
        let mesh = MESHES.fetch_add(1, Ordering::Relaxed);
        (1..=count).map(|node| ([127, std::process::id() as u8, mesh, node as u8], 4000).into()).collect()
    }

    /// Runs all nodes but those of `absent`.
    fn exchange(count: usize, rounds: &[Round], absent: &[usize], seconds: f64) -> Vec<io::Result<Vec<Times>>> {
        let nodes = nodes(count);
        thread::scope(|scope| {
            let present = (0..count).filter(|own| !absent.contains(own));
            let runs = present.map(|own| {
                let spec = Spec { nodes: nodes.clone(), own, rounds: rounds.to_vec(), seconds };
                scope.spawn(move || run(&spec))
            });
            let runs: Vec<_> = runs.collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        /// Any number of nodes exchange blocks of any size to the end, also such as fill every buffer on the way.
        #[test]
        fn everybody_gets_through(
            count in 2usize..6,
            rounds in prop::collection::vec((prop_oneof![0usize..3, 0usize..100_000, Just(3 << 20)], 1usize..6), 1..4),
        ) {
            let rounds: Vec<_> = rounds.into_iter().map(|(bytes, iterations)| Round { bytes, iterations }).collect();
            for times in exchange(count, &rounds, &[], 60.0) {
                let times = times.unwrap();
                prop_assert_eq!(times.len(), rounds.len());
                for (times, round) in times.iter().zip(&rounds) {
                    prop_assert_eq!((times.bytes, times.seconds.len()), (round.bytes, round.iterations));
                }
            }
        }
    }

    #[test]
    fn a_node_that_is_missing_is_an_error_for_all() {
        for absent in [0, 2] {
            for outcome in exchange(3, &[Round { bytes: 10, iterations: 1 }], &[absent], 0.3) {
                assert!(outcome.is_err());
            }
        }
    }

    #[test]
    fn orders_out_of_range_are_named() {
        let good = Spec { nodes: nodes(2), own: 0, rounds: vec![], seconds: 1.0 };
        for (bad, named) in [
            (Spec { nodes: nodes(1), ..good.clone() }, "nodes"),
            (Spec { own: 2, ..good.clone() }, "own"),
            (Spec { rounds: vec![Round { bytes: 1, iterations: 0 }], ..good.clone() }, "iterations"),
            (Spec { rounds: vec![Round { bytes: 1 << 30, iterations: 1 }], ..good.clone() }, "bytes"),
        ] {
            let error = run(&bad).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
