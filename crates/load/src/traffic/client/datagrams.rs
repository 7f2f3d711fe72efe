//! Datagrams to the server at a rate or as a flood: one socket a thread. The server says what came of them.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use super::{IntervalCounter, Run, stop::Stop};
use crate::{
    traffic::{
        Arrived,
        wire::{ANSWER, parse_answer, question},
    },
    udp,
};

/// From one question to the server to the next, and how many.
const RETRY: Duration = Duration::from_millis(100);
const QUESTIONS: usize = 20;

/// Sends from one socket to the end, then asks the server.
pub fn run(run: &Run, thread: usize, size: usize, mut counted: IntervalCounter) -> Result<Arrived, Stop> {
    let outcome = exchange(run, thread, size, &mut counted);
    counted.close();
    outcome
}

fn exchange(run: &Run, thread: usize, size: usize, counted: &mut IntervalCounter) -> Result<Arrived, Stop> {
    let spec = run.spec;
    let any = if spec.to.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
    let source = run.source(thread).unwrap_or(any);
    let socket =
        UdpSocket::bind((source, 0)).map_err(|error| Stop::System(format!("cannot send from {source}: {error}")))?;
    socket.connect(spec.to).map_err(|error| Stop::System(format!("cannot reach {}: {error}", spec.to)))?;
    // Whether anybody is there is better known before than after.
    ask(&socket, spec.to, 0)?;
    let rate = spec.rate.map(|rate| rate / spec.connections as f64);
    let orders = udp::SendSpec { to: spec.to, size, rate, seconds: spec.seconds };
    let sent = udp::send_from(&socket, &orders, |batch, bytes| {
        counted.advance(run.now());
        counted.tally.requests += batch;
        counted.tally.sent += bytes;
        !run.stopped()
    });
    sent.map_err(|error| Stop::System(format!("cannot send to {}: {error}", spec.to)))?;
    ask(&socket, spec.to, 1)
}

/// Asks the server what has come from this socket.
fn ask(socket: &UdpSocket, server: SocketAddr, number: u64) -> Result<Arrived, Stop> {
    let words = |error: io::Error| Stop::System(format!("cannot ask {server} what came: {error}"));
    socket.set_read_timeout(Some(RETRY)).map_err(words)?;
    let mut answer = [0; ANSWER + 1];
    let mut refused = 0;
    for _ in 0..QUESTIONS {
        match socket.send(&question(number)).and_then(|_| socket.recv(&mut answer)) {
            Ok(length) => match parse_answer(&answer[..length]) {
                Some((to, arrived)) if to == number => return Ok(arrived),
                // An answer to an earlier question that was asked twice.
                Some(_) => (),
                None => return Err(Stop::protocol(server, &answer[..length], "`fairlane load server`")),
            },
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // The first may be about a datagram long ago.
                refused += 1;
                if refused > 2 {
                    return Err(Stop::DatagramsRefused(server));
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => (),
            Err(error) => return Err(words(error)),
        }
    }
    Err(Stop::Uncounted(server))
}
