//! Sends datagrams to the server at a rate or as a flood, from one socket per thread. The server reports what arrived.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use super::{IntervalCounter, Run, stop::Stop};
use crate::{
    traffic::{
        Arrived,
        wire::{REPORT, parse_report, report_request},
    },
    udp,
};

/// The interval of requests for the server's report, and the most of them.
const RETRY: Duration = Duration::from_millis(100);
const ATTEMPTS: usize = 20;

/// Sends from one socket until the end, then gets the server's report.
pub(super) fn run(run: &Run, thread: usize, size: usize, mut counted: IntervalCounter) -> Result<Arrived, Stop> {
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
    // Checks that the server answers before anything is sent.
    get_report(&socket, spec.to, 0)?;
    let rate = spec.rate.map(|rate| rate / spec.connections as f64);
    let flow = udp::SendSpec { to: spec.to, size, rate, seconds: spec.seconds };
    let sent = udp::send_from(&socket, &flow, |batch, bytes| {
        counted.advance(run.now());
        counted.tally.requests += batch;
        counted.tally.sent += bytes;
        !run.stopped()
    });
    sent.map_err(|error| Stop::System(format!("cannot send to {}: {error}", spec.to)))?;
    get_report(&socket, spec.to, 1)
}

/// Gets the server's report of what has arrived from this socket.
fn get_report(socket: &UdpSocket, server: SocketAddr, number: u64) -> Result<Arrived, Stop> {
    let failed = |error: io::Error| Stop::System(format!("cannot get the report of {server}: {error}"));
    socket.set_read_timeout(Some(RETRY)).map_err(failed)?;
    let mut report = [0; REPORT + 1];
    let mut refused = 0;
    for _ in 0..ATTEMPTS {
        match socket.send(&report_request(number)).and_then(|_| socket.recv(&mut report)) {
            Ok(length) => match parse_report(&report[..length]) {
                Some((to, arrived)) if to == number => return Ok(arrived),
                // A second answer to an earlier request.
                Some(_) => (),
                None => return Err(Stop::protocol(server, &report[..length], "`fairlane load server`")),
            },
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // The first may be about an earlier datagram.
                refused += 1;
                if refused > 2 {
                    return Err(Stop::DatagramsRefused(server));
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => (),
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Stop::Uncounted(server))
}
