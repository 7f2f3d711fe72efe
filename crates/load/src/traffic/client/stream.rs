//! A stream to or from the server, one connection per thread.
//!
//! At the end of a stream to the server, the server reports how many bytes it received, and the stream ends with that answer.
//! Intervals count the bytes that the socket took.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::{errno::Errno, poll::PollFd, poll::PollFlags};

use super::{Close, IntervalCounter, Run, nanos, stop::Stop};
use crate::{
    SOCKET_TIMEOUT, await_any,
    traffic::{
        Pattern,
        sockets::{dial, receive},
        wire::{self, RESPONSE},
    },
};

/// Bytes of a read or write.
const CHUNK: usize = 128 << 10;

/// Runs one stream until its end.
pub(super) fn run(run: &Run, thread: usize, mut counted: IntervalCounter) -> Result<(), Stop> {
    let outcome = stream(run, thread, &mut counted);
    counted.close();
    outcome
}

fn stream(run: &Run, thread: usize, counted: &mut IntervalCounter) -> Result<(), Stop> {
    let mut stream = connect(run, thread)?;
    counted.tally.connections += 1;
    counted.tally.connect.saturating_record(run.now());
    let sends = run.spec.pattern == Pattern::Stream;
    let mut buffer = vec![0; CHUNK];
    let request = wire::request(&run.spec.pattern);
    if sends {
        buffer[..request.len()].copy_from_slice(&request);
    } else {
        stream.write_all(&request).map_err(|error| broken(run, &error))?;
    }
    let (mut first, mut total, mut moved) = (true, 0u64, run.now());
    loop {
        let now = run.now();
        if now >= run.end() || run.stopped() {
            break;
        }
        counted.advance(now);
        let result = if sends { stream.write(&buffer) } else { stream.read(&mut buffer) };
        match result {
            Ok(0) => return Err(broken(run, &ErrorKind::UnexpectedEof.into())),
            Ok(bytes) if sends => {
                counted.tally.sent += bytes as u64;
                total += bytes as u64;
                moved = now;
            }
            Ok(bytes) => {
                if first && buffer[0] != RESPONSE {
                    return Err(Stop::protocol(run.spec.to, &buffer[..bytes], "`fairlane load server`"));
                }
                counted.tally.received += bytes as u64;
                moved = now;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                if now - moved >= nanos(run.spec.timeout) {
                    return Err(Stop::Silent { to: run.spec.to, seconds: run.spec.timeout });
                }
                continue;
            }
            Err(error) => return Err(broken(run, &error)),
        }
        if first {
            // Only the first bytes are a header; the rest is padding.
            buffer.fill(0);
            first = false;
        }
    }
    if sends { confirm(run, &mut stream, total) } else { Ok(()) }
}

fn connect(run: &Run, thread: usize) -> Result<TcpStream, Stop> {
    let (spec, source) = (run.spec, run.source(thread));
    let socket = dial(spec.to, source, spec.close == Close::Reset, false);
    let socket = socket.map_err(|error| Stop::dialling(error, spec.to, source))?;
    let deadline = Instant::now() + Duration::from_secs_f64(spec.timeout);
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    if !await_any(&mut polled, deadline).map_err(|error| Stop::System(error.to_string()))? {
        return Err(Stop::connecting(Errno::ETIMEDOUT, spec.to));
    }
    match receive(&socket, &mut []) {
        Ok(_) | Err(Errno::EAGAIN) => (),
        Err(error) => return Err(Stop::connecting(error, spec.to)),
    }
    let stream = TcpStream::from(socket);
    let set = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(SOCKET_TIMEOUT)));
    set.and_then(|()| stream.set_write_timeout(Some(SOCKET_TIMEOUT)))
        .map_err(|error| Stop::System(error.to_string()))?;
    Ok(stream)
}

/// Waits until the server reports that it has received everything.
fn confirm(run: &Run, stream: &mut TcpStream, total: u64) -> Result<(), Stop> {
    let mut answer = [0; 8];
    let wait = Some(Duration::from_secs_f64(run.spec.timeout));
    let result = stream.shutdown(Shutdown::Write).and_then(|()| stream.set_read_timeout(wait));
    result.and_then(|()| stream.read_exact(&mut answer)).map_err(|error| broken(run, &error))?;
    match u64::from_be_bytes(answer) {
        taken if taken == total => Ok(()),
        taken => Err(Stop::Miscounted { to: run.spec.to, taken, total }),
    }
}

fn broken(run: &Run, error: &std::io::Error) -> Stop {
    Stop::Broken { to: run.spec.to, error: error.to_string() }
}
