//! A running policy, used through its sockets.

use fairlane_core::ack::Mode;
use fairlane_engine::Engine;
use fairlane_engine::control::{Client, Error};
use fairlane_engine::snapshot::State;
use fairlane_policy::Policy;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::mkfifo;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A policy of two links joined by a wire, in its own directory.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn control(&self) -> PathBuf {
        self.path("control.sock")
    }

    fn text(&self, vifs: &str) -> String {
        let control = self.control();
        let vifs = vifs.replace("DIR", &self.0.path().display().to_string());
        format!(
            r#"
            control = {control:?}
            metrics = "127.0.0.1:0"
            [[link]]
            name = "near"
            rate = "100Mbit/s"
            uplink = {{ wire = "far", delay = "1ms" }}
            [[link]]
            name = "far"
            {vifs}
            "#
        )
    }

    fn policy(&self, vifs: &str) -> Policy {
        Policy::parse("policy.toml", &self.text(vifs)).unwrap()
    }
}

const TWO: &str = r#"
    [[vif]]
    name = "web"
    link = "near"
    socket = "DIR/web.sock"
    weight = 200
    mac = "52:54:00:00:00:01"
    [[vif]]
    name = "batch"
    link = "far"
    socket = "DIR/batch.sock"
    mac = "52:54:00:00:00:02"
"#;

/// The sentence of a refusal.
fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(Error::Refused(sentence)) => sentence,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_socket_shows_sets_and_stops() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let mode = place.control().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let mut client = Client::connect(&place.control()).unwrap();
    let shown = client.show().unwrap();
    let names: Vec<&str> = shown.vifs.iter().map(|vif| vif.name.as_str()).collect();
    assert_eq!(names, ["web", "batch"]);
    assert_eq!((shown.vifs[0].weight, shown.vifs[0].link.as_str()), (200, "near"));
    assert_eq!(shown.vifs[0].port.state, State::Waiting);
    assert_eq!((shown.links[0].scheduler.as_str(), shown.links[0].rate), ("fair", Some(100_000_000)));
    assert_eq!(shown.links[1].rate, Some(100_000_000), "the wire's");
    assert!(shown.links.iter().all(|link| link.uplink.as_ref().unwrap().state == State::Up));

    client.set("web", "weight", "30").unwrap();
    client.set("web", "max_rate", "50Mbit/s").unwrap();
    client.set("near", "scheduler", "wrr").unwrap();
    client.set("near", "rate", "200Mbit/s").unwrap();
    let shown = client.show().unwrap();
    assert_eq!((shown.vifs[0].weight, shown.vifs[0].max_rate), (30, Some(50_000_000)));
    assert_eq!((shown.links[0].scheduler.as_str(), shown.links[1].rate), ("wrr", Some(200_000_000)));
    assert_eq!(engine.policy().vifs[0].shares.tx.weight, 30);

    client.stop().unwrap();
    assert!(engine.wait(None));
    drop(engine);
    for left in ["control.sock", "web.sock", "batch.sock"] {
        assert!(!place.path(left).exists(), "{left}");
    }
    assert!(matches!(Client::connect(&place.control()), Err(Error::NoBackend { .. })));
}

#[test]
fn a_wrong_setting_is_refused_and_changes_nothing() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let mut client = Client::connect(&place.control()).unwrap();
    let before = engine.policy();
    for (target, key, value, word) in [
        ("wbe", "weight", "3", "web"),
        ("web", "wieght", "3", "weight"),
        ("web", "weight", "0", "10000"),
        ("web", "max_rate", "3", "bit/s"),
        ("web", "min_rate", "900Mbit/s", "100Mbit/s"),
    ] {
        let sentence = refusal(client.set(target, key, value));
        assert!(sentence.contains(word), "{sentence}");
    }
    assert_eq!(engine.policy(), before);
}

#[test]
fn a_newer_policy_is_applied() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let mut client = Client::connect(&place.control()).unwrap();
    // `batch` is removed; `web` and `log` swap nothing, but take over addresses and a socket.
    let newer = r#"
        [[vif]]
        name = "web"
        link = "near"
        socket = "DIR/web.sock"
        mac = "52:54:00:00:00:02"
        [[vif]]
        name = "log"
        link = "far"
        socket = "DIR/batch.sock"
        mac = "52:54:00:00:00:01"
        [[vif]]
        name = "new"
        link = "near"
        socket = "DIR/new.sock"
        weight = 7
    "#;
    assert!(client.reload("newer.toml", &place.text(newer)).unwrap() >= 4);
    let shown = client.show().unwrap();
    let names: Vec<&str> = shown.vifs.iter().map(|vif| vif.name.as_str()).collect();
    assert_eq!(names, ["web", "log", "new"]);
    assert_eq!(shown.vifs[2].weight, 7);
    assert!(place.path("new.sock").exists() && place.path("batch.sock").exists());
    assert_eq!(client.reload("newer.toml", &place.text(newer)).unwrap(), 0);
    assert_eq!(engine.policy(), place.policy(newer));
}

#[test]
fn vifs_change_places_between_workers() {
    let place = Place::new();
    let without_wire = |vifs: &str| {
        let text = place.text(vifs).replace("uplink = { wire = \"far\", delay = \"1ms\" }", "");
        Policy::parse("policy.toml", &text).unwrap()
    };
    let swapped =
        |text: &str, one: &str, other: &str| text.replace(one, "third").replace(other, one).replace("third", other);
    let engine = Engine::start(without_wire(TWO)).unwrap();
    let links_change = swapped(TWO, "\"near\"", "\"far\"");
    let sockets_change = swapped(&links_change, "web.sock", "batch.sock");
    for vifs in [&links_change, &sockets_change, TWO] {
        assert_eq!(engine.reload(without_wire(vifs)).unwrap(), 4, "both are closed and opened");
        assert_eq!(engine.policy(), without_wire(vifs));
        assert_eq!(engine.snapshot().unwrap().vifs.len(), 2);
        for socket in ["web.sock", "batch.sock"] {
            UnixStream::connect(place.path(socket)).unwrap();
        }
    }
}

#[test]
fn tenants_come_and_go_by_a_reload() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let mut client = Client::connect(&place.control()).unwrap();
    let tenant = |client: &mut Client| client.show().unwrap().vifs[0].tenant.clone();
    assert_eq!(tenant(&mut client), None);
    let with = format!("[[tenant]]\nname = \"red\"\n{}", TWO.replacen("weight = 200", "tenant = \"red\"", 1));
    client.reload("newer.toml", &place.text(&with)).unwrap();
    assert_eq!(tenant(&mut client).as_deref(), Some("red"));
    client.reload("newer.toml", &place.text(TWO)).unwrap();
    assert_eq!(tenant(&mut client), None);
    assert_eq!(engine.policy(), place.policy(TWO));
}

#[test]
fn a_bad_reload_leaves_the_running_policy_in_place() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let mut client = Client::connect(&place.control()).unwrap();
    let before = engine.policy();
    let sentence = refusal(client.reload("bad.toml", &place.text(&TWO.replace("200", "0"))));
    assert!(sentence.contains("bad.toml:") && sentence.contains("weight"), "{sentence}");
    let moved = place.text(TWO).replace(r#"delay = "1ms""#, r#"delay = "2ms""#);
    assert!(refusal(client.reload("moved.toml", &moved)).contains("restart"));
    // A socket that cannot be created: no other change is applied either.
    let homeless = TWO.replace("weight = 200", "weight = 5").replace("DIR/batch.sock", "DIR/nowhere/batch.sock");
    let sentence = refusal(client.reload("homeless.toml", &place.text(&homeless)));
    assert!(sentence.contains("batch") && sentence.contains("nowhere"), "{sentence}");
    assert_eq!(engine.policy(), before);
    let shown = client.show().unwrap();
    assert_eq!((shown.vifs[0].weight, shown.vifs.len()), (200, 2));
}

/// A failed change is not reported as done, also not to a second request.
#[test]
fn a_failed_change_can_be_requested_again() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let before = engine.policy();
    // Something else is in the place of the file for `web`.
    let file = place.path("control.sock.early-ack/web");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&file).unwrap();
    for _ in 0..2 {
        let refused = engine.set("web", "early_ack", "true").unwrap_err().to_string();
        assert!(refused.contains("cannot keep early ack"), "{refused}");
        assert_eq!(engine.policy(), before);
    }
    let mut newer = before.clone();
    newer.vifs.iter_mut().for_each(|vif| vif.early_ack = Mode::Auto);
    engine.reload(newer.clone()).unwrap_err();
    assert_eq!(engine.policy().vifs.iter().map(|vif| vif.early_ack).collect::<Vec<_>>(), [Mode::Off, Mode::Auto]);
    std::fs::remove_dir(&file).unwrap();
    assert_eq!(engine.reload(newer).unwrap(), 1);
    assert!(engine.snapshot().unwrap().vifs.iter().all(|vif| vif.early_ack.is_some()));
}

#[test]
fn captures_write_to_new_files_only() {
    let place = Place::new();
    let _engine = Engine::start(place.policy(TWO)).unwrap();
    let mut client = Client::connect(&place.control()).unwrap();
    let file = place.path("web.pcap");
    assert!(refusal(client.start_capture("web", Path::new("web.pcap"), None, None)).contains("begin with /"));
    assert!(refusal(client.start_capture("nobody", &file, None, None)).contains("web"));
    assert!(refusal(client.stop_capture("web")).contains("not under capture"));
    client.start_capture("web", &file, Some(64), None).unwrap();
    assert!(refusal(client.start_capture("web", &file, None, None)).contains("exists"));
    assert!(refusal(client.start_capture("web", &place.path("second.pcap"), None, None)).contains("already"));
    assert!(!place.path("second.pcap").exists());
    let report = client.stop_capture("web").unwrap();
    assert_eq!((report.frames, report.ended), (0, None));
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(&std::fs::read(&file).unwrap()[..4], &0xa1b2_3c4d_u32.to_ne_bytes());
}

#[test]
fn the_capture_of_a_removed_vif_can_be_ended_and_begun_anew() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let mut client = Client::connect(&place.control()).unwrap();
    let (both, files) = (engine.policy(), ["first", "second", "third"].map(|name| place.path(name)));
    let without =
        || Policy { vifs: both.vifs.iter().filter(|vif| vif.name != "web").cloned().collect(), ..both.clone() };
    client.start_capture("web", &files[0], None, None).unwrap();
    engine.reload(without()).unwrap();
    assert_eq!(client.stop_capture("web").unwrap().ended, None);
    assert!(refusal(client.stop_capture("web")).contains("web"));
    engine.reload(both.clone()).unwrap();
    client.start_capture("web", &files[1], None, None).unwrap();
    for policy in [without(), both.clone()] {
        engine.reload(policy).unwrap();
    }
    client.start_capture("web", &files[2], None, None).unwrap();
    client.stop_capture("web").unwrap();
}

#[test]
fn pipes_without_an_other_end_block_no_client() {
    let place = Place::new();
    let _engine = Engine::start(place.policy(TWO)).unwrap();
    let mut client = Client::connect(&place.control()).unwrap();
    let pipe = place.path("pipe");
    mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refusal(client.start_capture("web", &pipe, None, None)).contains("exists"));
    assert!(refusal(client.export_flows("web", &pipe)).contains("web"));
    assert!(refusal(client.import_flows("web", &pipe)).contains("web"));
}

#[test]
fn an_invalid_request_gets_an_error() {
    let place = Place::new();
    let _engine = Engine::start(place.policy(TWO)).unwrap();
    let mut stream = BufReader::new(UnixStream::connect(place.control()).unwrap());
    for (line, word) in [
        ("hello", "not understood"),
        ("{}", "protocol"),
        (r#"{"protocol":9,"request":"show"}"#, "speaks 1"),
        (r#"{"protocol":1,"request":"dance"}"#, "show"),
        (r#"{"protocol":1,"request":{"set":{"target":"web"}}}"#, "key"),
        (r#"{"protocol":1,"request":"show","more":1}"#, "more"),
        ("\u{0}\u{1}", "not understood"),
    ] {
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        assert!(answer.starts_with(r#"{"error":""#) && answer.contains(word), "{line}: {answer}");
    }
    // The connection still works, and so do others while one is silent.
    let _silent = UnixStream::connect(place.control()).unwrap();
    stream.get_mut().write_all(b"{\"protocol\":1,\"request\":\"show\"}\n").unwrap();
    let mut answer = String::new();
    stream.read_line(&mut answer).unwrap();
    assert!(answer.starts_with(r#"{"ok":{"#));
}

#[test]
fn excess_clients_get_an_error() {
    let place = Place::new();
    let _engine = Engine::start(place.policy(TWO)).unwrap();
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(&place.control()).unwrap()).collect();
    for client in &mut clients {
        client.show().unwrap();
    }
    assert!(refusal(Client::connect(&place.control()).unwrap().show()).contains("try again"));
    clients[15].show().unwrap();
}

#[test]
fn a_socket_path_in_use_is_refused_and_a_stale_one_replaced() {
    let place = Place::new();
    let started = |place: &Place| Engine::start(place.policy(TWO)).map(|_| ()).map_err(|error| error.to_string());
    std::fs::write(place.control(), "precious").unwrap();
    assert!(started(&place).unwrap_err().contains("not a socket"));
    assert_eq!(std::fs::read(place.control()).unwrap(), b"precious");
    std::fs::remove_file(place.control()).unwrap();

    let alive = UnixListener::bind(place.control()).unwrap();
    assert!(started(&place).unwrap_err().contains("in use"));
    assert!(!place.path("web.sock").exists(), "nothing is left behind");
    drop(alive);
    assert!(place.control().exists());
    started(&place).unwrap();
}

#[test]
fn metrics_are_valid() {
    let place = Place::new();
    let engine = Engine::start(place.policy(TWO)).unwrap();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(engine.metrics().unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let page = answer.split_once("\r\n\r\n").unwrap().1;
    for line in [
        r#"fairlane_vif_bytes_total{vif="web",link="near",direction="sent"} 0"#,
        r#"fairlane_vif_frames_total{vif="batch",link="far",direction="received"} 0"#,
        r#"fairlane_vif_weight{vif="web",link="near"} 200.0"#,
        r#"fairlane_vif_share_ratio{vif="web",link="near"} 0.0"#,
        r#"fairlane_vif_state{vif="web",link="near",state="waiting"} 1"#,
        r#"fairlane_uplink_bytes_total{link="near",direction="received"} 0"#,
        r#"fairlane_vif_waiting_seconds_count{vif="web",link="near"} 0"#,
        r#"fairlane_vif_waiting_seconds_bucket{le="+Inf",vif="web",link="near"} 0"#,
        "# EOF",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("fairlane_") && value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(get("/").starts_with("HTTP/1.1 200"));
    assert!(get("/no").starts_with("HTTP/1.1 404"));
}

#[test]
fn metrics_are_served_on_loopback_only() {
    let place = Place::new();
    let mut policy = place.policy(TWO);
    policy.metrics = Some("0.0.0.0:0".parse().unwrap());
    let error = Engine::start(policy).err().unwrap().to_string();
    assert!(error.contains("loopback"), "{error}");
    assert!(!place.control().exists());
}

/// There is enough memory for the early ack of some vifs only: every vif is served.
#[test]
fn a_vif_without_memory_for_early_ack_stops_no_other() {
    let place = Place::new();
    // For this thread only, and those that it starts.
    unshare(CloneFlags::CLONE_NEWNS).expect("the test may make a namespace of its own");
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_PRIVATE | MsFlags::MS_REC, nothing).unwrap();
    mount(Some("tmpfs"), place.0.path(), Some("tmpfs"), MsFlags::empty(), Some("size=900k,mode=700")).unwrap();
    let mut policy = place.policy(TWO);
    for vif in &mut policy.vifs {
        vif.early_ack = Mode::Auto;
    }
    let engine = Engine::start(policy).expect("both are served");
    let vifs = engine.snapshot().unwrap().vifs;
    let with: Vec<bool> = vifs.iter().map(|vif| vif.early_ack.is_some()).collect();
    assert_eq!((with.len(), with.iter().filter(|with| **with).count()), (2, 1), "{with:?}");
    drop(engine);
    // Threads may still close the sockets.
    umount2(place.0.path(), MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn sockets_belong_to_their_owner_and_a_reload_changes_it() {
    if !nix::unistd::geteuid().is_root() {
        // Bypasses the test harness, which shows only what failed.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this test needs root, to give sockets to others");
        return;
    }
    let place = Place::new();
    let with = |keys: &str| place.policy(&TWO.replace("weight = 200", keys));
    let owner = |keys: &str| format!("{keys}\nmode = \"0600\"");
    let of = |socket: &str| {
        let info = place.path(socket).metadata().unwrap();
        (info.uid(), info.gid(), info.mode() & 0o777)
    };
    let nobody = nix::unistd::User::from_name("nobody").unwrap().expect("every host has nobody").uid.as_raw();
    let engine = Engine::start(with(&owner("owner = \"nobody\"\ngroup = \"root\""))).unwrap();
    assert_eq!(of("web.sock"), (nobody, 0, 0o600));
    // Name and number mean the same account; another owner gets the vif's socket.
    assert_eq!(engine.reload(with(&owner(&format!("owner = {nobody}\ngroup = 0")))).unwrap(), 0);
    assert_eq!(engine.reload(with(&owner("owner = 64001"))).unwrap(), 2);
    assert_eq!(of("web.sock"), (64001, 0, 0o600));

    let refused = engine.reload(with("owner = \"no-such-user\"")).unwrap_err().to_string();
    let said = "vif `web`: owner: no user is named `no-such-user` on this host: make it, or name another";
    assert_eq!(refused, said);
    assert_eq!(of("web.sock"), (64001, 0, 0o600), "what runs stays");
    drop(engine);
    let refused = Engine::start(with("group = \"no-such-group\"")).err().unwrap().to_string();
    assert!(refused.contains("group: no group is named `no-such-group` on this host"), "{refused}");
    assert!(!place.path("web.sock").exists());
}
