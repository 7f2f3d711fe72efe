use super::*;
use crate::snapshot::Snapshot;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A server, and how often it asked for a snapshot.
fn served() -> (Server, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let source: Source = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Snapshot { time: 0, links: Vec::new(), tenants: Vec::new(), vifs: Vec::new() })
    });
    (Server::start("127.0.0.1:0".parse().unwrap(), source).unwrap(), asked)
}

fn ask(server: &Server, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn assert_served(server: &Server) {
    let answer = ask(server, REQUEST);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"), "{answer}");
}

/// Threads of this process that serve metrics; other tests have some as well.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("fairlane-metric")).count()
}

/// Sockets of this process that are connected to clients of this server.
fn held(server: &Server) -> usize {
    let port = format!(":{:04X}", server.address().port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let ours = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours: Vec<String> = ours.filter_map(|fd| Some(fd.path().read_link().ok()?.to_str()?.to_owned())).collect();
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let accepted = rows.filter(|row| row[1].ends_with(&port) && row[3] != "0A");
    accepted.filter(|row| ours.contains(&format!("socket:[{}]", row[9]))).count()
}

#[test]
fn silent_clients_take_a_few_places_and_keep_nobody_out() {
    let (server, asked) = served();
    // In parts: a listening socket's backlog is 128.
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.extend((0..100).map(|_| TcpStream::connect(server.address()).unwrap()));
        assert_served(&server);
        assert!(held(&server) <= PLACES, "{} of {}", held(&server), silent.len());
    }
    assert!(threads() <= 10, "one a server, and as many servers as there are tests here");
    assert!(asked.load(Ordering::Relaxed) >= 1);
    drop(server);
    drop(silent);
}

#[test]
fn who_never_reads_blocks_nobody() {
    let (server, _) = served();
    let greedy: Vec<TcpStream> = (0..2 * PLACES).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    for mut stream in &greedy {
        stream.set_nonblocking(true).unwrap();
        // Until it is sent away, or neither side takes more.
        while stream.write(&REQUEST.repeat(100)).is_ok() {}
    }
    assert_served(&server);
    drop(server);
    drop(greedy);
}

#[test]
fn a_page_larger_than_a_sockets_room_is_taken_in_parts_and_given_up_for_who_does_not() {
    let body: Arc<str> = "x".repeat(16 << 20).into();
    let pages = Pages {
        source: Arc::new(|| Err(Error::NoLink(String::new()))),
        last: Some((Instant::now() + PATIENCE, Ok(body.clone()))),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let mut desk = Desk { listener, connections: Vec::new(), pages, refused: None };
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap());
    let rung = bell.clone();
    let thread = std::thread::spawn(move || while desk.turn(&rung) {});
    let unread: Vec<TcpStream> = (0..PLACES)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(REQUEST).unwrap();
            stream
        })
        .collect();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(REQUEST).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(body.as_bytes()));
    bell.write(1).unwrap();
    thread.join().unwrap();
    drop(unread);
}

#[test]
fn a_burst_of_requests_asks_for_few_snapshots() {
    let (server, asked) = served();
    let began = Instant::now();
    for _ in 0..200 {
        assert_served(&server);
    }
    let most = 1 + began.elapsed().as_millis() / FRESH.as_millis();
    assert!(asked.load(Ordering::Relaxed) as u128 <= most, "{asked:?} snapshots, {most} at most");
}

#[test]
fn requests_in_parts_and_those_that_are_none() {
    let (server, _) = served();
    let mut slow = TcpStream::connect(server.address()).unwrap();
    for part in REQUEST.chunks(7) {
        slow.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    slow.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let long = [b"GET /", "a".repeat(HEAD - 5).as_bytes()].concat();
    for (request, status) in [
        (&b"GET /metrics?name=x HTTP/1.0\r\n\r\n"[..], "200"),
        (b"GET /metricses HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\r\n\r\n", "405"),
        (&long, "431"),
    ] {
        let answer = ask(&server, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}
