//! The states of toolstack, frontend and backend in xenstore, from a guest's first boot to its end, and across restarts
//! of the daemon.

use crate::netfront::{Backend as Worker, Frontend, Machine, frame};
use crate::xenstored::Xenstored;
use fairlane_core::packet::Offload;
use fairlane_policy::Terms;
use fairlane_port::xen::backend::{Backend, Found};
use fairlane_port::xen::store::{Event, Store};
use fairlane_port::{Control, Limit, Status};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const BACK: &str = "backend/vif/1/0";
const FRONT: &str = "/local/domain/1/device/vif/0";

/// A machine with a daemon that serves card 0 of the guest named web.
struct Host {
    store: Xenstored,
    machine: Arc<Machine>,
    backend: Option<Backend>,
    worker: Worker,
    /// The reason why the dialogue over xenstore ended.
    lost: Receiver<String>,
}

impl Host {
    fn new() -> Host {
        Host::beside(Xenstored::default(), Arc::new(Machine::default()))
    }

    fn beside(store: Xenstored, machine: Arc<Machine>) -> Host {
        let client = Store::over(store.connect().into());
        let (send, lost) = channel();
        let on_lost = move |reason: &str| send.send(reason.to_owned()).unwrap();
        let mut backend = Backend::start(client, machine.clone(), || {}, on_lost).unwrap();
        let worker = Worker::around(backend.vif("v", "web", 0, 2).unwrap());
        Host { store, machine, backend: Some(backend), worker, lost }
    }

    /// Writes what xl writes for a new guest.
    fn create(&self, domain: u16) -> Frontend {
        self.create_named(domain, "web")
    }

    fn create_named(&self, domain: u16, name: &str) -> Frontend {
        let frontend = format!("/local/domain/{domain}/device/vif/0");
        self.store.write(&format!("/local/domain/{domain}"), &[("name", name)]);
        self.store.write(&frontend, &[("backend", "..."), ("state", "1")]);
        let (id, path) = (domain.to_string(), format!("backend/vif/{domain}/0"));
        self.store.write(&path, &[("frontend", &frontend), ("frontend-id", &id), ("online", "1"), ("state", "1")]);
        Frontend::new(&self.machine, domain)
    }

    /// Writes what Linux netfront writes once the backend waits.
    fn connect(&self, domain: u16) {
        let keys = [
            ("tx-ring-ref", "1"),
            ("rx-ring-ref", "2"),
            ("event-channel-tx", "3"),
            ("event-channel-rx", "4"),
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("feature-sg", "1"),
            ("feature-gso-tcpv4", "1"),
            ("feature-gso-tcpv6", "1"),
            ("feature-ipv6-csum-offload", "1"),
            ("state", "4"),
        ];
        self.store.write(&format!("/local/domain/{domain}/device/vif/0"), &keys);
    }

    fn up(&mut self) {
        self.worker.until(|port| port.status() == Status::Up);
    }

    fn down(&mut self) {
        self.worker.until(|port| port.status() != Status::Up);
    }

    /// From a guest's first boot until it carries frames.
    fn boot(&mut self, domain: u16) -> Frontend {
        let guest = self.create(domain);
        self.store.until(&format!("backend/vif/{domain}/0/state"), "2");
        self.connect(domain);
        self.up();
        self.store.until(&format!("backend/vif/{domain}/0/state"), "4");
        guest
    }

    /// One that has served the first of two frames of its guest.
    fn in_mid_traffic() -> (Host, Frontend) {
        let mut host = Host::new();
        let mut guest = host.boot(1);
        guest.post_buffers(64);
        guest.transmit(&frame(1, 100), 4096, 0, 0, None);
        assert_eq!(host.worker.take().len(), 1);
        guest.transmit(&frame(2, 100), 4096, 0, 0, None);
        (host, guest)
    }

    /// The next daemon serves the second one, and a frame for the guest.
    #[track_caller]
    fn goes_on_with(&mut self, guest: &mut Frontend) {
        self.up();
        assert_eq!(self.worker.take(), [(frame(2, 100), Offload::default())], "no frame is lost or duplicated");
        self.worker.put(&frame(3, 100), Offload::default());
        assert_eq!(guest.receive(), [(frame(3, 100), 0, None)]);
    }
}

#[test]
fn a_guest_boots_and_ends() {
    let mut host = Host::new();
    let mut guest = host.boot(1);
    for (key, value) in [
        ("feature-sg", "1"),
        ("feature-gso-tcpv4", "1"),
        ("feature-rx-copy", "1"),
        ("feature-split-event-channels", "1"),
        ("multi-queue-max-queues", "2"),
        ("hotplug-status", "connected"),
    ] {
        assert_eq!(host.store.read(&format!("{BACK}/{key}")).as_deref(), Some(value), "{key}");
    }
    guest.transmit(&frame(1, 3000), 4096, 0, 0, None);
    assert_eq!(host.worker.take(), [(frame(1, 3000), Offload::default())]);
    // The guest shuts its card down.
    host.store.write(FRONT, &[("state", "5")]);
    host.down();
    host.store.until("backend/vif/1/0/state", "5");
    assert_eq!(host.machine.users(1, 1), 2, "everything is unmapped before the state says closed");
    host.store.write(FRONT, &[("state", "6")]);
    host.store.until("backend/vif/1/0/state", "6");
    // It connects again, as after a reboot of its kernel.
    host.store.write(FRONT, &[("state", "1")]);
    host.store.until("backend/vif/1/0/state", "2");
    let again = Frontend::new(&host.machine, 1);
    host.connect(1);
    host.up();
    drop(again);
}

#[test]
fn the_toolstacks_rate_is_the_ports_limit() {
    let mut host = Host::new();
    let _guest = host.boot(1);
    assert_eq!(host.worker.port.limit(), None);
    host.store.write(BACK, &[("rate", "500000,50000")]);
    let limit = Some(Limit { rate: 80_000_000, burst: 500_000 });
    host.worker.until(|port| port.limit() == limit);
}

#[test]
fn the_toolstack_removes_a_card() {
    let mut host = Host::new();
    let _guest = host.boot(1);
    host.store.write(BACK, &[("online", "0"), ("state", "5")]);
    host.down();
    host.store.until("backend/vif/1/0/state", "6");
    host.store.remove(BACK);
    host.store.remove(FRONT);
    // The guest is created again: another domain of the same name.
    let mut guest = host.boot(2);
    guest.transmit(&frame(2, 100), 4096, 0, 0, None);
    assert_eq!(host.worker.take().len(), 1);
}

#[test]
fn a_guest_crashes_and_its_successor_is_created_before_it_is_removed() {
    let mut host = Host::new();
    let _old = host.boot(1);
    let _new = host.create(2);
    host.store.until("backend/vif/2/0/state", "2");
    host.connect(2);
    // The port may be down for too short a time to be seen.
    let store = host.store.clone();
    host.worker.until(|_| store.read("backend/vif/2/0/state").as_deref() == Some("4"));
    host.up();
    assert_eq!(host.machine.users(1, 1), 2, "nothing of the old one stays mapped");
}

#[test]
fn all_keys_of_a_guest_vanish_at_once() {
    let mut host = Host::new();
    let _guest = host.boot(1);
    host.store.remove("/local/domain/1");
    host.store.remove("backend/vif/1");
    host.down();
    assert_eq!(host.machine.users(1, 1), 2, "nothing stays mapped");
}

#[test]
fn the_next_daemon_resumes_where_the_last_one_stopped() {
    let (mut host, mut guest) = Host::in_mid_traffic();
    let (store, machine) = (host.store.clone(), host.machine.clone());
    host.backend = None;
    drop(host);
    assert_eq!(store.read("backend/vif/1/0/state").as_deref(), Some("4"), "its frontend sees no change");
    let mut next = Host::beside(store, machine);
    next.goes_on_with(&mut guest);
}

#[test]
fn an_answer_comes_when_all_is_found_and_connected() {
    let mut host = Host::new();
    let mut guest = host.boot(1);
    let (store, machine) = (host.store.clone(), host.machine.clone());
    host.backend = None;
    drop(host);
    guest.transmit(&frame(1, 100), 4096, 0, 0, None);
    let mut backend = Backend::start(Store::over(store.connect().into()), machine, || {}, |_| {}).unwrap();
    let (send, reports) = channel();
    backend.find(move |found| send.send(found).unwrap());
    backend.settle().wait().unwrap();
    let found: Vec<Found> = reports.try_iter().collect();
    assert_eq!(found, [Found { guest: "web".to_owned(), device: 0, terms: Some(Terms::default()) }]);
    let port = backend.vif("v", "web", 0, 2).unwrap();
    backend.settle().wait().unwrap();
    let mut worker = Worker::around(port);
    assert_eq!(worker.port.status(), Status::Up, "before its first round");
    assert_eq!(worker.take(), [(frame(1, 100), Offload::default())]);
}

#[test]
fn a_successor_that_fails_gives_the_frontend_back() {
    let (mut host, mut guest) = Host::in_mid_traffic();
    let (resting, answer) = host.backend.as_ref().unwrap().rest();
    answer.wait().unwrap();
    host.worker.port.let_go();
    assert_eq!(host.machine.users(1, 1), 2, "the successor can bind its channels");
    let mut next = Host::beside(host.store.clone(), host.machine.clone());
    next.goes_on_with(&mut guest);
    // Both see this, and one heeds it.
    host.store.write(BACK, &[("rate", "500000,50000")]);
    let limit = Some(Limit { rate: 80_000_000, burst: 500_000 });
    next.worker.until(|port| port.limit() == limit);
    next.backend = None;
    drop(next);
    guest.transmit(&frame(4, 100), 4096, 0, 0, None);
    assert_eq!((host.worker.port.status(), host.worker.port.limit()), (Status::Waiting, None));
    host.worker.port.take_back();
    drop(resting);
    host.up();
    host.worker.until(|port| port.limit() == limit);
    assert_eq!(host.worker.take(), [(frame(4, 100), Offload::default())]);
    assert_eq!(host.store.read("backend/vif/1/0/state").as_deref(), Some("4"), "its frontend sees no change");
}

#[test]
fn a_frontend_that_breaks_a_rule_is_closed_with_the_reason() {
    let mut host = Host::new();
    let guest = host.boot(1);
    guest.set_producer(999);
    assert!(host.worker.take().is_empty());
    host.store.until("backend/vif/1/0/state", "5");
    let reason = host.store.read("error/backend/vif/1/0/error").unwrap();
    assert!(reason.contains("the producer index 999"), "{reason}");
    assert!(matches!(host.worker.port.status(), Status::Disabled(_)));
    // It closes, connects again, and is served again.
    host.store.write(FRONT, &[("state", "6")]);
    host.store.until("backend/vif/1/0/state", "6");
    host.store.write(FRONT, &[("state", "1")]);
    host.store.until("backend/vif/1/0/state", "2");
    let _again = Frontend::new(&host.machine, 1);
    host.connect(1);
    host.up();
}

#[test]
fn a_late_report_of_a_frontend_does_not_end_the_next_one() {
    let mut host = Host::new();
    let guest = host.boot(1);
    // The port is told to disconnect, and finds a rule broken before it listens.
    host.store.write(FRONT, &[("state", "5")]);
    host.backend.as_ref().unwrap().settle().wait().unwrap();
    guest.set_producer(999);
    assert!(host.worker.take().is_empty());
    host.store.until("backend/vif/1/0/state", "5");
    host.store.write(FRONT, &[("state", "6")]);
    host.store.until("backend/vif/1/0/state", "6");
    host.store.write(FRONT, &[("state", "1")]);
    host.store.until("backend/vif/1/0/state", "2");
    let mut again = Frontend::new(&host.machine, 1);
    host.connect(1);
    host.store.until("backend/vif/1/0/state", "4");
    // It reports the former one once more, and connects the next.
    host.up();
    host.backend.as_ref().unwrap().settle().wait().unwrap();
    again.post_buffers(64);
    again.transmit(&frame(2, 100), 4096, 0, 0, None);
    host.goes_on_with(&mut again);
}

#[test]
fn a_frontend_that_changes_its_state_all_the_time_delays_no_other() {
    let mut host = Host::new();
    let _restless = host.boot(1);
    let _port = host.backend.as_mut().unwrap().vif("w", "db", 0, 2).unwrap();
    host.store.rewrite_for_ever(&format!("{FRONT}/state"));
    let _other = host.create_named(2, "db");
    host.store.until("backend/vif/2/0/state", "2");
}

#[test]
fn frontends_with_impossible_settings_are_refused() {
    for (key, value, reason) in [
        ("request-rx-copy", "0", "page flipping"),
        ("feature-rx-notify", "0", "receive buffers"),
        ("multi-queue-num-queues", "3", "multi-queue-num-queues is 3; it must be 1 to 2"),
        ("multi-queue-num-queues", "2", "queue-0/tx-ring-ref is missing"),
        ("tx-ring-ref", "x", "it must be a number"),
        ("tx-ring-ref", "77", "ring page 77 of domain 1 cannot be mapped"),
        ("event-channel-rx", "0", "event channel 0 of domain 1 cannot be bound"),
    ] {
        let mut host = Host::new();
        let _guest = host.create(1);
        host.store.until("backend/vif/1/0/state", "2");
        host.store.write(FRONT, &[("tx-ring-ref", "1")]);
        let rest = [
            ("tx-ring-ref", "1"),
            ("rx-ring-ref", "2"),
            ("event-channel-tx", "3"),
            ("event-channel-rx", "4"),
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
        ];
        host.store.write(FRONT, &rest);
        host.store.write(FRONT, &[(key, value), ("state", "4")]);
        host.store.until("backend/vif/1/0/state", "5");
        let reason_found = host.store.read("error/backend/vif/1/0/error").unwrap();
        assert!(reason_found.contains(reason), "{reason_found}");
        host.worker.until(|port| port.status() == Status::Disabled(reason_found.clone()));
    }
}

#[test]
fn cards_that_are_in_no_policy_are_left_alone() {
    let host = Host::new();
    host.store.write("/local/domain/9", &[("name", "other")]);
    host.store.write("backend/vif/9/0", &[("frontend", "/local/domain/9/device/vif/0"), ("state", "1")]);
    let _guest = host.create(1);
    host.store.until("backend/vif/1/0/state", "2");
    assert_eq!(host.store.read("backend/vif/9/0/state").as_deref(), Some("1"));
}

#[test]
fn the_client_reads_writes_lists_and_watches() {
    let server = Xenstored::default();
    let mut store = Store::over(server.connect().into());
    assert_eq!(store.read("a").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    store.write("a/b", "text with spaces").unwrap();
    store.write("a/c", "").unwrap();
    assert_eq!(store.read("a/b").unwrap(), "text with spaces");
    assert_eq!(store.directory("a").unwrap(), ["b", "c"]);
    assert!(store.own_number().unwrap_err().to_string().contains("domid"));
    store.write("domid", "7\n").unwrap();
    assert_eq!(store.own_number().unwrap(), 7);
    store.write("domid", "seven").unwrap();
    assert!(store.own_number().unwrap_err().to_string().contains("\"seven\""));
    store.watch("a", "token").unwrap();
    let event = |path: &str| Some(Event { path: path.to_owned(), token: "token".to_owned() });
    // The first event reports the path itself. The server sends it after the reply.
    let come = |store: &mut Store| {
        let here = store.event().unwrap();
        if here.is_some() {
            return here;
        }
        poll(&mut [PollFd::new(store.descriptor(), PollFlags::POLLIN)], PollTimeout::from(10_000u16)).unwrap();
        store.event().unwrap()
    };
    assert_eq!(come(&mut store), event("a"));
    assert_eq!(store.event().unwrap(), None);
    store.write("a/b", "other").unwrap();
    assert_eq!(come(&mut store), event("a/b"));
    store.unwatch("a", "token").unwrap();
    store.remove("a").unwrap();
    assert_eq!(store.event().unwrap(), None);
    assert!(store.directory("a").is_err());
}

#[test]
fn every_card_is_reported_with_its_terms_until_it_is_gone() {
    let host = Host::new();
    let (send, reports) = channel();
    host.backend.as_ref().unwrap().find(move |found| send.send(found).unwrap());
    let next = || {
        let found: Found = reports.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((found.guest.as_str(), found.device), ("web", 0));
        found.terms
    };
    let weighs = |weight: &str| Some(Terms { weight: Some(weight.to_owned()), min_rate: None });
    let first = host.create(1);
    assert_eq!(next(), Some(Terms::default()));
    host.store.write(BACK, &[("weight", "30")]);
    assert_eq!(next(), weighs("30"));
    // The guest is back before its old card is gone, which is then not reported.
    let second = host.create(2);
    assert_eq!(next(), Some(Terms::default()));
    host.store.remove(BACK);
    host.store.write("backend/vif/2/0", &[("weight", "40")]);
    assert_eq!(next(), weighs("40"));
    host.store.remove("backend/vif/2/0");
    assert_eq!(next(), None);
    drop((first, second));
}

#[test]
fn a_lost_xenstore_is_reported() {
    let mut host = Host::new();
    let mut guest = host.boot(1);
    host.store.end();
    let reason = host.lost.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(reason.starts_with("the connection to xenstore is lost: "), "{reason}");
    guest.transmit(&frame(1, 100), 4096, 0, 0, None);
    assert_eq!(host.worker.take().len(), 1, "connected frontends are served until the process ends");
}

#[test]
fn a_panic_of_the_xenstore_thread_is_reported() {
    let host = Host::new();
    host.backend.as_ref().unwrap().find(|_| panic!("on purpose"));
    let _guest = host.create(1);
    let reason = host.lost.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(reason, "the xenstore thread panicked");
}

#[test]
fn a_stopped_backend_reports_no_loss() {
    let mut host = Host::new();
    host.backend = None;
    // Its thread has ended without a message.
    assert_eq!(host.lost.recv_timeout(Duration::from_secs(10)), Err(RecvTimeoutError::Disconnected));
}
