//! Bulk streams over several TCP connections, counted at the receiver by connection and interval.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{Meter, Progress, ReceiveSpec, Received, SOCKET_TIMEOUT, Sent, about, readable, seconds, within};

/// The most bytes of a read or write: large enough to measure the path and not system calls, which take some 30 us under User-Mode
/// Linux. Two such guests carried 7 Gbit/s with 128 KiB, and 20 Gbit/s with this.
const CHUNK: usize = 1 << 20;
/// The most connections of a sender or receiver.
const MOST: usize = 1000;

/// Parameters of a sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendSpec {
    /// The receiver.
    pub to: SocketAddr,
    /// The number of connections, 1 to 1000.
    pub connections: usize,
    /// How long to send, in seconds.
    pub seconds: f64,
}

/// Sends on every connection until the time is up. A connection that is not answered in that time sends nothing: the path may be
/// flooded, which is a measurement too.
///
/// # Errors
/// If a parameter is out of range, or a connection is refused or breaks.
pub fn send(spec: &SendSpec) -> io::Result<Sent> {
    let duration = seconds("seconds", spec.seconds)?;
    let connections = 0..within("connections", spec.connections, 1, MOST)?;
    let connect = |_| match TcpStream::connect_timeout(&spec.to, duration) {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
        result => result.map(Some),
    };
    let connections: Result<Vec<_>, _> = connections.map(connect).filter_map(Result::transpose).collect();
    let connections = connections.map_err(about(spec.to))?;
    let start = Instant::now();
    let bytes = thread::scope(|scope| {
        let senders: Vec<_> =
            connections.into_iter().map(|stream| scope.spawn(move || flood(stream, start, duration))).collect();
        senders.into_iter().map(|sender| sender.join().expect("a sender thread")).sum::<io::Result<u64>>()
    })?;
    Ok(Sent { seconds: start.elapsed().as_secs_f64(), bytes, ..Sent::default() })
}

/// Writes to one connection until the time is up; returns the number of bytes that its socket took.
fn flood(mut stream: TcpStream, start: Instant, duration: Duration) -> io::Result<u64> {
    stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    let data = vec![0; CHUNK];
    let mut bytes = 0;
    while start.elapsed() < duration {
        bytes += progress(stream.write(&data))?;
    }
    Ok(bytes)
}

/// Counts bytes by connection and interval until the time is up, and passes events to `sink`.
///
/// # Errors
/// If a parameter is out of range, the port is in use, or a socket fails. A broken connection only ends.
pub fn receive(spec: &ReceiveSpec, mut sink: impl FnMut(Progress)) -> io::Result<Received> {
    let duration = seconds("seconds", spec.seconds)?;
    let interval = seconds("interval", spec.interval)?;
    let listener =
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, spec.port)).map_err(about(format_args!("TCP port {}", spec.port)))?;
    listener.set_nonblocking(true)?;
    let over = AtomicBool::new(false);
    // One counter per connection for the whole time, so that threads can borrow them.
    let counters: [AtomicU64; MOST] = std::array::from_fn(|_| AtomicU64::new(0));
    thread::scope(|scope| {
        let mut sources: Vec<SocketAddr> = Vec::new();
        let mut meter = Meter::new(interval);
        let start = Instant::now();
        sink(Progress::Started(listener.local_addr()?));
        let outcome = loop {
            let now = start.elapsed();
            if now >= meter.boundary() || now >= duration {
                for (source, counter) in sources.iter().zip(&counters) {
                    meter.stream(*source, counter.swap(0, Ordering::Relaxed));
                }
            }
            if now >= duration {
                break Ok(meter.finish(duration, &mut |sample| sink(Progress::Sample(sample))));
            }
            meter.advance(now, &mut |sample| sink(Progress::Sample(sample)));
            match listener.accept() {
                Ok((stream, source)) if sources.len() < MOST => {
                    let (counter, over) = (&counters[sources.len()], &over);
                    sources.push(source);
                    scope.spawn(move || drain(stream, counter, over));
                }
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if let Err(error) = readable(&listener, start + meter.boundary().min(duration)) {
                        break Err(error);
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => (),
                Err(error) => break Err(error),
            }
        };
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Reads one connection until its end, or until counting is over.
fn drain(mut stream: TcpStream, counter: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    let mut data = vec![0; CHUNK];
    while !over.load(Ordering::Relaxed) {
        match stream.read(&mut data) {
            Ok(0) => break,
            result => counter.fetch_add(progress(result)?, Ordering::Relaxed),
        };
    }
    Ok(())
}

/// The number of bytes of a call; zero after a timeout, which only lets the loop check its deadline.
fn progress(result: io::Result<usize>) -> io::Result<u64> {
    match result {
        Ok(bytes) => Ok(bytes as u64),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn streams_are_counted_by_connection() {
        let (sender, addresses) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let mut samples = 0;
            let received = receive(&ReceiveSpec { port: 0, interval: 0.05, seconds: 0.8 }, |event| match event {
                Progress::Started(address) => sender.send(address).unwrap(),
                Progress::Sample(sample) => samples += sample.bytes,
            });
            (received.unwrap(), samples)
        });
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, addresses.recv().unwrap().port()));
        let sent = send(&SendSpec { to, connections: 3, seconds: 0.3 }).unwrap();
        let (received, samples) = receiver.join().unwrap();
        assert_eq!(received.sources.len(), 3);
        let bytes: u64 = received.sources.iter().map(|total| total.bytes).sum();
        assert_eq!((bytes, samples), (sent.bytes, sent.bytes));
    }

    #[test]
    fn an_error_names_the_absent_receiver() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = send(&SendSpec { to: free, connections: 1, seconds: 0.1 }).unwrap_err();
        assert!(error.to_string().contains(&free.to_string()), "{error}");
    }

    #[test]
    fn a_connection_that_is_not_answered_sends_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        // Once the listener's queue is full, the kernel does not answer.
        let _queued: Vec<TcpStream> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&to, Duration::from_millis(200)).ok()).collect();
        let sent = send(&SendSpec { to, connections: 1, seconds: 0.2 }).unwrap();
        assert_eq!(sent.bytes, 0);
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let to = "127.0.0.1:1".parse().unwrap();
        for (connections, seconds) in [(0, 1.0), (1001, 1.0), (1, 0.0)] {
            let error = send(&SendSpec { to, connections, seconds }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }
}
