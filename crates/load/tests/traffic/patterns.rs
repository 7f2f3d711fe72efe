//! Every pattern works, and both sides count the same.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream, UdpSocket},
    sync::atomic::AtomicBool,
};

use fairlane_load::traffic::{
    Pattern, Sizes,
    client::{self, Close, Spec},
    server::{Acceptors, Served},
};

use crate::fixture::{Server, http, run, spec};

fn sum(threads: &[Served]) -> Served {
    threads.iter().fold(Served::default(), |sum, served| sum + *served)
}

#[test]
fn each_crr_request_has_its_own_connection() {
    for (acceptors, close) in [(Acceptors::Each, Close::Graceful), (Acceptors::One, Close::Reset)] {
        let server = Server::start(2, acceptors);
        let pattern = Pattern::Crr(Sizes { request: 32, response: 1024 });
        let outcome = run(&Spec { connections: 5, threads: 2, close, ..spec(server.at, pattern) });
        assert_eq!(outcome.stopped, None);
        let (client, served) = (outcome.total, sum(&server.end().threads));
        assert!(client.requests > 10, "{client:?}");
        // Some are in progress when the time is up.
        assert!((client.requests..=client.requests + 5).contains(&served.requests), "{served:?}");
        assert!(client.connections >= client.requests && served.accepted >= client.requests);
        assert!(client.received >= client.requests * 1024 && client.sent >= client.requests * 32);
        assert_eq!((client.latency.len(), client.failures.total()), (client.requests, 0));
        assert_eq!(client.connect.len(), client.connections);
    }
}

#[test]
fn acceptors_of_one_port_share_connections() {
    let server = Server::start(3, Acceptors::Each);
    let pattern = Pattern::Crr(Sizes { request: 12, response: 1 });
    run(&Spec { connections: 8, ..spec(server.at, pattern) });
    let accepted: Vec<u64> = server.end().threads[..3].iter().map(|served| served.accepted).collect();
    assert!(accepted.iter().all(|accepted| *accepted > 0), "{accepted:?}");
    let server = Server::start(3, Acceptors::One);
    run(&Spec { connections: 8, ..spec(server.at, Pattern::Crr(Sizes { request: 12, response: 1 })) });
    let accepted: Vec<u64> = server.end().threads[..3].iter().map(|served| served.accepted).collect();
    let (least, most) = (accepted.iter().min().unwrap(), accepted.iter().max().unwrap());
    assert!(most - least <= 2, "distributed in turn: {accepted:?}");
}

#[test]
fn rr_requests_share_a_connection() {
    let server = Server::start(1, Acceptors::Each);
    for sizes in [Sizes { request: 12, response: 1 }, Sizes { request: 300_000, response: 400_000 }] {
        let outcome = run(&Spec { connections: 3, ..spec(server.at, Pattern::Rr(sizes)) });
        assert_eq!((outcome.stopped, outcome.total.connections), (None, 3));
        assert!(outcome.total.requests > 3, "{:?}", outcome.total);
    }
}

#[test]
fn objects_of_every_size() {
    let server = Server::start(1, Acceptors::Each);
    for keep_alive in [true, false] {
        for size in [0, 1, 1000, 65536, 3_000_000] {
            let outcome = run(&spec(server.at, http(&format!("/?s={size}"), keep_alive)));
            let total = outcome.total;
            assert_eq!((outcome.stopped, total.failures.total()), (None, 0));
            assert!(total.requests > 0 && total.received >= total.requests * size, "{size}: {total:?}");
            assert!(keep_alive == (total.connections == 1) || total.requests == 1, "{total:?}");
        }
    }
}

#[test]
fn intervals_add_up() {
    let server = Server::start(1, Acceptors::Each);
    let mut intervals = Vec::new();
    let short = Spec { threads: 2, connections: 3, seconds: 0.5, ..spec(server.at, http("/", false)) };
    let outcome = client::run(&short, &AtomicBool::new(false), |interval| intervals.push(interval.clone())).unwrap();
    assert_eq!(intervals.iter().map(|interval| interval.tally.requests).sum::<u64>(), outcome.total.requests);
    assert!(intervals.len() >= 5 && intervals.is_sorted_by(|a, b| a.t < b.t), "{}", intervals.len());
}

#[test]
fn streams_are_confirmed() {
    let server = Server::start(1, Acceptors::Each);
    let outcome = run(&Spec { connections: 2, ..spec(server.at, Pattern::Stream) });
    assert_eq!((outcome.stopped, outcome.total.connections), (None, 2));
    assert!(outcome.total.sent > 1 << 20);
    let received = run(&spec(server.at, Pattern::Maerts));
    assert_eq!(received.stopped, None);
    assert!(received.total.received > 1 << 20);
    let served = sum(&server.end().threads);
    assert!(served.received >= outcome.total.sent && served.sent >= received.total.received);
}

#[test]
fn arrived_datagrams_are_reported() {
    let server = Server::start(1, Acceptors::Each);
    let udp = Pattern::Udp { size: 200 };
    let outcome = run(&Spec { rate: Some(4e6), connections: 2, ..spec(server.at, udp.clone()) });
    let arrived = outcome.arrived.unwrap();
    assert_eq!((arrived.datagrams, arrived.reordered, outcome.stopped), (outcome.total.requests, 0, None));
    assert_eq!(arrived.bytes, outcome.total.sent);
    let outcome = run(&spec(server.at, udp));
    assert!(outcome.arrived.unwrap().datagrams <= outcome.total.requests);
}

/// With a relay between client and server that drops one datagram and delays another.
#[test]
fn loss_and_reordering_are_counted() {
    let server = Server::start(1, Acceptors::Each);
    let to_client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to_server = UdpSocket::bind("127.0.0.1:0").unwrap();
    to_server.connect(server.at).unwrap();
    let at = to_client.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut datagram, mut held) = ([0; 2048], Vec::new());
        while let Ok((length, from)) = to_client.recv_from(&mut datagram) {
            let datagram = &datagram[..length];
            match datagram[..8] {
                [255, ..] => {
                    to_server.send(datagram).unwrap();
                    let mut answer = [0; 64];
                    let length = to_server.recv(&mut answer).unwrap();
                    to_client.send_to(&answer[..length], from).unwrap();
                }
                [.., 3] => (),
                [.., 7] => held = datagram.to_vec(),
                _ => {
                    to_server.send(datagram).unwrap();
                    if !held.is_empty() {
                        to_server.send(&std::mem::take(&mut held)).unwrap();
                    }
                }
            }
        }
    });
    // 25 datagrams per second for 0.4 seconds: ten, numbered from 0.
    let udp = spec(at, Pattern::Udp { size: 58 });
    let outcome = run(&Spec { rate: Some(25.0 * 800.0), ..udp });
    let arrived = outcome.arrived.unwrap();
    assert!(outcome.total.requests >= 9, "{:?}", outcome.total.requests);
    assert_eq!((outcome.total.requests - arrived.datagrams, arrived.reordered), (1, 1));
}

#[test]
fn several_sources_are_used_in_turn() {
    let (sender, peers) = std::sync::mpsc::channel();
    let at = crate::fixture::scripted(move |mut stream| {
        sender.send(stream.peer_addr().unwrap().ip().to_string()).unwrap();
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.shutdown(Shutdown::Both);
    });
    let sources = ["127.0.0.5", "127.0.0.6", "127.0.0.7"].map(|source| source.parse().unwrap()).to_vec();
    let outcome = run(&Spec { sources, ..spec(at, http("/", false)) });
    assert!(outcome.total.requests >= 3 && outcome.stopped.is_none());
    let first: Vec<String> = peers.iter().take(6).collect();
    assert_eq!(first, ["127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.0.5", "127.0.0.6", "127.0.0.7"]);
}

/// Requests as of curl, wrk and ab: keep-alive of both versions, a body, HEAD, pipelined requests, a divided head.
#[test]
fn other_clients_are_served() {
    let server = Server::start(1, Acceptors::Each);
    let exchange = |pieces: &[&str]| {
        let mut stream = TcpStream::connect(server.at).unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in pieces {
            stream.write_all(piece.as_bytes()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let ok = |size: usize, connection: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: {connection}\r\n\r\n")
    };
    assert_eq!(exchange(&["GET /?s=3 HTTP/1.0\r\n\r\n"]), ok(3, "close") + "...");
    assert_eq!(exchange(&["GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"]), ok(0, "keep-alive"));
    assert_eq!(exchange(&["HEAD /?s=9 HTTP/1.1\r\n\r\n"]), ok(9, "keep-alive"));
    let body = "x".repeat(10_000);
    let post = format!("POST /?s=1 HTTP/1.1\r\nContent-Length: 10000\r\n\r\n{body}");
    assert_eq!(exchange(&[&post, "GET /?s=2 HTTP/1.0\r\n\r\n"]), ok(1, "keep-alive") + "." + &ok(2, "close") + "..");
    let several = "GET /?s=1 HTTP/1.1\r\n\r\n".repeat(500);
    assert_eq!(exchange(&[&several]), (ok(1, "keep-alive") + ".").repeat(500));
    assert_eq!(exchange(&["GE", "T /?s=1 HT", "TP/1.0\r", "\n\r\n"]), ok(1, "close") + ".");
    assert!(exchange(&["\r\n\r\n rubbish"]).starts_with("HTTP/1.1 400 Bad Request\r\n"));
    assert!(exchange(&[&"\u{fa}".repeat(50)]).starts_with("HTTP/1.1 400 "));
    assert_eq!(sum(&server.end().threads).refused, 2);
}
