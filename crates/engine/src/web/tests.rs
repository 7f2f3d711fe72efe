use super::*;
use crate::snapshot::{PortState, Snapshot, State, VifState};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn empty() -> Snapshot {
    Snapshot { time: 1, ..Snapshot::default() }
}

/// A server of this snapshot, and how often it asked for it.
fn serving(snapshot: Snapshot) -> (Server, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let source: Source = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(snapshot.clone())
    });
    (Server::start("127.0.0.1:0".parse().unwrap(), None, source).unwrap(), asked)
}

fn served() -> (Server, Arc<AtomicUsize>) {
    serving(empty())
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
    names.filter(|name| name.starts_with("fairlane-web")).count()
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
    for _ in 0..30 {
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
    let vif = vif();
    let vifs = (0..3_000).map(|number| VifState { name: format!("v{number}"), ..vif.clone() }).collect();
    let (server, _) = serving(Snapshot { vifs, ..empty() });
    let address = server.address();
    let unread: Vec<TcpStream> = (0..PLACES)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(REQUEST).unwrap();
            stream
        })
        .collect();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(REQUEST).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.len() > 8 << 20 && answer.ends_with("# EOF\n"), "{}", answer.len());
    drop(unread);
}

#[test]
fn a_burst_of_requests_asks_for_few_snapshots() {
    let (server, asked) = served();
    let began = Instant::now();
    for _ in 0..200 {
        assert_served(&server);
    }
    // One a second, and one each step of the history.
    let most = 2 + 2 * began.elapsed().as_secs() as u128;
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
        (b"\r\n\r\n", "400"),
        (&long, "431"),
    ] {
        let answer = ask(&server, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

fn vif() -> VifState {
    VifState {
        name: "web".to_owned(),
        link: "lan".to_owned(),
        weight: 100,
        share: 0.25,
        port: PortState {
            state: State::Disabled { reason: "a loop".to_owned() },
            sent_frames: 7,
            sent_bytes: 7_000,
            drops: [("spoofed_mac".to_owned(), 3)].into(),
            ..PortState::default()
        },
        ..VifState::default()
    }
}

#[test]
fn a_reading_has_counters_and_figures() {
    let (server, _) = serving(Snapshot { vifs: vec![vif()], ..empty() });
    let answer = ask(&server, b"GET /api/v1/snapshot HTTP/1.1\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: application/json"), "{head}");
    let reading: serde_json::Value = serde_json::from_str(body).unwrap();
    let web = &reading["vifs"][0];
    assert_eq!((&web["name"], &web["state"], &web["reason"]), (&"web".into(), &"disabled".into(), &"a loop".into()));
    assert_eq!((&web["sent_bytes"], &web["drops"]["spoofed_mac"]), (&7_000.into(), &3.into()));
    assert_eq!((&web["sent_rate"], &web["due"]), (&0.0.into(), &1.0.into()));
}

#[test]
fn a_history_is_asked_for_by_name() {
    let (server, _) = serving(Snapshot { vifs: vec![vif()], ..empty() });
    for (target, status) in [
        ("/api/v1/history", "400 Bad Request"),
        // Its first step has not ended.
        ("/api/v1/history?vif=web", "404 Not Found"),
        ("/api/v1/", "404 Not Found"),
    ] {
        let answer = ask(&server, format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{target}: {answer}");
    }
}

#[test]
fn the_page_may_do_nothing_but_ask_its_server() {
    let (server, _) = served();
    let answer = ask(&server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    for field in
        ["Content-Security-Policy: default-src 'none'; ", "X-Content-Type-Options: nosniff", "Cache-Control: no-store"]
    {
        assert!(head.contains(field), "{field} is not in {head}");
    }
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
}

#[test]
fn a_server_for_others_wants_a_token() {
    let source: Source = Arc::new(|| Ok(empty()));
    let start = |token| Server::start("0.0.0.0:0".parse().unwrap(), token, source.clone());
    let refused = start(None).err().unwrap().to_string();
    assert!(refused.contains("without a token metrics are served on loopback only"), "{refused}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let refused = start(Some(&file)).err().unwrap().to_string();
    assert!(refused.contains(file.to_str().unwrap()), "{refused}");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let server = Server::start("127.0.0.1:0".parse().unwrap(), Some(&file), source.clone()).unwrap();
    assert!(ask(&server, REQUEST).starts_with("HTTP/1.1 401 Unauthorized\r\n"));
    let known = b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n";
    assert!(ask(&server, known).starts_with("HTTP/1.1 200 OK\r\n"));
}
