//! The client: latency from when a request was due, and its errors for servers that fail.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{atomic::AtomicBool, mpsc},
    thread,
    time::Duration,
};

use fairlane_load::traffic::{
    Pattern, Sizes,
    client::{self, Spec, Stop},
    server::Acceptors,
};

use crate::fixture::{Server, http, run, scripted, spec};

const SMALL: Pattern = Pattern::Crr(Sizes { request: 12, response: 1 });
const SECOND: u64 = 1_000_000_000;

/// An HTTP server that serves one connection after the other and answers at once, but stalls once, for a second after 50 requests.
fn server_that_stalls() -> std::net::SocketAddr {
    let mut answered = 0;
    scripted(move |mut stream| {
        let mut request = [0; 1000];
        while matches!(stream.read(&mut request), Ok(read) if read > 0) {
            answered += 1;
            if answered == 50 {
                thread::sleep(Duration::from_secs(1));
            }
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                break;
            }
        }
    })
}

/// At 200 requests per second, about 200 are due while the server stalls. Each has waited since it was due, so about half of them for
/// half a second or more. A client that counts from when a request could start would see only one.
#[test]
fn the_wait_for_a_stalled_server_counts() {
    let open = Spec { rate: Some(200.0), seconds: 3.0, ..spec(server_that_stalls(), http("/", true)) };
    let outcome = run(&open);
    let total = &outcome.total;
    assert_eq!(outcome.stopped, None);
    // Every due request is counted, answered or not.
    assert_eq!(total.requests + total.unanswered, 600);
    assert_eq!(total.latency.len(), 600);
    let longer = |nanos| total.latency.count_between(nanos, u64::MAX);
    // The number of requests due in that second does not depend on the host's load; a slow host can only add to it.
    assert!(longer(SECOND / 2) >= 95, "{} waited half a second", longer(SECOND / 2));
    assert!(longer(SECOND / 4) >= 145, "{} waited a quarter", longer(SECOND / 4));
    assert!(longer(SECOND / 2) < longer(SECOND / 4) && longer(SECOND - SECOND / 10) >= 1);

    let closed = Spec { seconds: 3.0, ..spec(server_that_stalls(), http("/", true)) };
    let total = run(&closed).total;
    assert!(total.latency.count_between(SECOND - SECOND / 10, u64::MAX) >= 1);
    // In closed loop only one request shows the stall, and half of them took far less.
    assert!(total.latency.value_at_quantile(0.5) < SECOND / 4);
}

#[test]
fn a_rate_is_kept() {
    let server = Server::start(1, Acceptors::Each);
    let at_rate = Spec { rate: Some(500.0), threads: 2, connections: 4, seconds: 0.5, ..spec(server.at, SMALL) };
    let total = run(&at_rate).total;
    assert_eq!((total.requests + total.unanswered + total.failures.total(), total.failures.total()), (250, 0));
}

#[test]
fn an_error_names_the_absent_server() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for pattern in [SMALL, http("/", true), Pattern::Stream, Pattern::Maerts, Pattern::Udp { size: 100 }] {
        let outcome = run(&spec(free, pattern.clone()));
        let why = outcome.stopped.unwrap().to_string();
        assert!(why.contains(&free.to_string()) && why.contains("refuses"), "{pattern:?}: {why}");
        assert_eq!(outcome.total.requests, 0);
    }
}

#[test]
fn an_error_names_another_protocol() {
    let at = scripted(|mut stream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9\r\n");
        let _ = stream.read(&mut [0; 1000]);
    });
    for pattern in [SMALL, http("/", false), Pattern::Maerts] {
        let why = run(&spec(at, pattern)).stopped.unwrap().to_string();
        assert!(why.contains("another protocol (\"SSH-2.0-OpenSSH_9\")"), "{why}");
    }
    // Fairlane's own patterns with a web server.
    let web = scripted(|mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let why = run(&spec(web, SMALL)).stopped.unwrap().to_string();
    assert!(why.contains("`fairlane load server` is needed"), "{why}");
}

#[test]
fn a_server_that_goes_away_ends_the_run_with_the_counts_so_far() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().take(20).flatten() {
            let mut stream: TcpStream = stream;
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let outcome = run(&Spec { seconds: 20.0, ..spec(at, http("/", false)) });
    assert_eq!(outcome.stopped, Some(Stop::Refused(at)));
    assert_eq!(outcome.total.requests, 20);
    assert!(outcome.seconds < 20.0);
}

#[test]
fn a_server_that_never_completes_a_response_ends_the_run() {
    let at = scripted(|mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    });
    let outcome = run(&Spec { seconds: 20.0, ..spec(at, http("/", false)) });
    let why = outcome.stopped.unwrap().to_string();
    assert!(why.contains("100 requests in a row") && why.contains("ended before the response"), "{why}");
    assert_eq!((outcome.total.requests, outcome.total.failures.closed), (0, 100));
}

#[test]
fn an_error_status_is_a_failed_request() {
    let at = scripted(|mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.0 503 Busy\r\nContent-Length: 0\r\n\r\n");
    });
    let outcome = run(&Spec { seconds: 20.0, ..spec(at, http("/", false)) });
    assert!(outcome.stopped.unwrap().to_string().contains("status 503"));
    assert_eq!((outcome.total.requests, outcome.total.latency.len(), outcome.total.failures.status), (0, 0, 100));
}

#[test]
fn a_server_that_never_answers_ends_the_run() {
    // Connections wait in the backlog and are never accepted.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    for pattern in [SMALL, http("/", false), Pattern::Maerts] {
        let outcome = run(&Spec { seconds: 30.0, timeout: 0.3, ..spec(at, pattern) });
        assert!(matches!(outcome.stopped, Some(Stop::Silent { .. })), "{:?}", outcome.stopped);
        assert!(outcome.seconds < 30.0);
    }
    let outcome = run(&Spec { seconds: 0.2, ..spec(at, http("/", false)) });
    assert!(matches!(outcome.stopped, Some(Stop::Silent { .. })), "a run shorter than the timeout");
}

#[test]
fn an_error_names_a_source_of_another_host() {
    let server = Server::start(1, Acceptors::Each);
    let sources = vec!["192.0.2.1".parse().unwrap()];
    let why = run(&Spec { sources, ..spec(server.at, SMALL) }).stopped.unwrap().to_string();
    assert!(why.contains("192.0.2.1") && why.contains("address of this host"), "{why}");
}

#[test]
fn an_interrupt_keeps_the_counts() {
    let server = Server::start(1, Acceptors::Each);
    let over = AtomicBool::new(false);
    let long = Spec { seconds: 100.0, ..spec(server.at, SMALL) };
    let outcome = client::run(&long, &over, |_| over.store(true, std::sync::atomic::Ordering::Relaxed)).unwrap();
    assert_eq!(outcome.stopped, Some(Stop::Interrupted));
    assert!(outcome.total.requests > 0 && outcome.seconds < 100.0);
}

#[test]
fn parameters_out_of_range_are_named() {
    let good = spec("127.0.0.1:1".parse().unwrap(), SMALL);
    for (bad, named) in [
        (Spec { threads: 0, ..good.clone() }, "threads"),
        (Spec { connections: 0, ..good.clone() }, "connections"),
        (Spec { seconds: 0.0, ..good.clone() }, "seconds"),
        (Spec { interval: -1.0, ..good.clone() }, "interval"),
        (Spec { rate: Some(0.0), ..good.clone() }, "rate"),
        (Spec { rate: Some(1.0), pattern: Pattern::Stream, ..good.clone() }, "rate"),
        (Spec { pattern: Pattern::Rr(Sizes { request: 11, response: 1 }), ..good.clone() }, "request"),
        (Spec { pattern: Pattern::Rr(Sizes { request: 12, response: 0 }), ..good.clone() }, "response"),
        (Spec { pattern: http("no path", true), ..good.clone() }, "path"),
        (Spec { pattern: http("/a b", true), ..good.clone() }, "path"),
        (Spec { sources: vec!["::1".parse().unwrap()], ..good.clone() }, "source"),
    ] {
        let error = client::run(&bad, &AtomicBool::new(false), |_| ()).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// The side that closes first keeps a port in TIME_WAIT: the client must not close first if the server has announced to close.
#[test]
fn a_server_that_announces_to_close_closes_first() {
    let (sender, closed_first) = mpsc::channel();
    let at = scripted(move |mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        // The receiver is gone once the test is over.
        let _ = sender.send(stream.read(&mut [0; 1]).is_err());
    });
    let outcome = run(&Spec { seconds: 2.0, ..spec(at, http("/", false)) });
    assert_eq!((outcome.stopped, outcome.total.failures.total()), (None, 0));
    let mut first: Vec<bool> = closed_first.try_iter().collect();
    // The run may end while the last one waits.
    first.pop();
    assert!(!first.is_empty() && first.iter().all(|server| *server), "{first:?}");
    // The wait for the server's FIN is not part of the latency.
    assert!(outcome.total.latency.value_at_quantile(0.0) < 300_000_000);
}

/// Such a server delays the next request by the timeout, but causes no failure.
#[test]
fn a_server_that_does_not_close_as_announced_is_not_waited_for() {
    let at = scripted(|mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read(&mut [0; 1]);
    });
    let outcome = run(&Spec { seconds: 1.0, timeout: 0.2, ..spec(at, http("/", false)) });
    assert_eq!((outcome.stopped, outcome.total.failures.total()), (None, 0));
    assert!((2..=5).contains(&outcome.total.requests), "{}", outcome.total.requests);
}
