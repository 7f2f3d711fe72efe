//! The server with hostile clients: it must serve other clients all the time.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use fairlane_load::traffic::server::Acceptors;

use crate::fixture::{Server, http, run, spec};

fn is_served(at: SocketAddr) {
    let outcome = run(&spec(at, http("/?s=1000", false)));
    assert_eq!((outcome.stopped, outcome.total.failures.total()), (None, 0));
    assert!(outcome.total.requests > 0);
}

/// Whether the server closes a connection within ten seconds.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    loop {
        match stream.read(&mut [0; 1000]) {
            Ok(0) => return true,
            Ok(_) => (),
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn invalid_requests_are_refused_and_others_are_served() {
    let server = Server::start(1, Acceptors::Each);
    let rubbish: Vec<Vec<u8>> = vec![
        vec![0; 100_000],
        (0..50_000u32).flat_map(u32::to_le_bytes).collect(),
        [b"GET /".to_vec(), vec![b'a'; 100_000]].concat(),
        vec![0xfa; 3],
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n".to_vec(),
    ];
    for bytes in rubbish {
        let mut stream = TcpStream::connect(server.at).unwrap();
        // The server may close while this still writes.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert!(is_closed(&stream), "{:?}", &bytes[..3]);
        is_served(server.at);
    }
}

#[test]
fn slow_and_silent_clients_are_closed_and_others_are_served() {
    // On a busy computer the client that is to be served may itself be silent for most of a second.
    let server = Server::patient(1, Acceptors::Each, 3.0);
    let mut slow = TcpStream::connect(server.at).unwrap();
    let silent = TcpStream::connect(server.at).unwrap();
    let begun = Instant::now();
    // Single bytes do not extend the time: this head would take a minute.
    let closed = b"GET / HTTP/1.1\r\nA: ".iter().cycle().take(600).any(|byte| {
        thread::sleep(Duration::from_millis(100));
        slow.write_all(&[*byte]).is_err()
    });
    assert!(closed, "after {:?}", begun.elapsed());
    assert!(is_closed(&silent));
    is_served(server.at);
    assert_eq!(server.end().threads[0].dropped, 2);
}

#[test]
fn a_client_that_does_not_read_is_closed() {
    let server = Server::patient(1, Acceptors::Each, 0.6);
    let mut greedy = TcpStream::connect(server.at).unwrap();
    greedy.write_all(b"GET /?s=900m HTTP/1.0\r\n\r\n").unwrap();
    thread::sleep(Duration::from_millis(300));
    is_served(server.at);
    thread::sleep(Duration::from_millis(2500));
    let outcome = server.end();
    assert_eq!((outcome.threads[0].dropped, outcome.threads[0].closed), (1, outcome.threads[0].accepted));
}

/// Ten thousand clients send nothing, or as many as this process's limit of descriptors allows for both sides; others are served.
#[test]
fn ten_thousand_silent_connections() {
    let server = Server::start(1, Acceptors::Each);
    let mut silent = Vec::new();
    let memory = resident();
    for _ in 0..10_000 {
        match TcpStream::connect_timeout(&server.at, Duration::from_secs(10)) {
            Ok(stream) => silent.push(stream),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(24), "{error}");
                break;
            }
        }
    }
    // Both sides are in this process: some are closed to free descriptors for other clients.
    silent.truncate(silent.len() - silent.len() / 20);
    let grown = resident().saturating_sub(memory);
    assert!(grown < 64 << 20, "{grown} bytes for {} connections", silent.len());
    is_served(server.at);
    eprintln!("{} silent connections, {} KiB", silent.len(), grown >> 10);
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
