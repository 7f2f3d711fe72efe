//! A network card as uplink, whose sockets and rings the next process goes on with: no frame is lost in either direction. A successor
//! also goes on with a capture of the guest's frames.

use crate::Change::{self, Failure, HandOver, Restart};
use crate::change;
use crate::frontend::{F_PROTOCOL, F_VERSION_1, Frontend, HEADER, NO_HEADER};
use crate::manager::Manager;
use crate::namespace::Namespace;
use fairlane_core::packet::checksum::Sum;
use fairlane_engine::snapshot::State;
use fairlane_lab::Error;
use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

const POLICY: &str = "control = \"DIR/control.sock\"\n[[link]]\nname = \"lan\"\nuplink = { KIND = \"eth0\" }\n\
                      [[vif]]\nname = \"guest\"\nsocket = \"DIR/guest.sock\"\n";

/// The UDP port of both ends, and where a datagram's port and payload are in a frame.
const PORT: u16 = 9;
const AT_PORT: usize = 36;
const AT_PAYLOAD: usize = 42;

/// The address of the host on the wire.
const FAR: [u8; 6] = [0x52, 0x54, 0, 0x92, 1, 1];

/// Buffers of each of the guest's rings.
const BUFFERS: u16 = 64;
const BUFFER: u32 = 2048;

const MS: Duration = Duration::from_millis(1);

/// Changes after which no frame may be missing.
const CLEAN: [Change; 6] = [HandOver, Failure, Restart(SIGTERM), HandOver, Failure, Restart(SIGTERM)];

pub(crate) fn loses_nothing(kind: &'static str) -> Result<(), Error> {
    with_card(kind, move |mut service, home| {
        let traffic = Traffic::start(&service, home, Duration::MAX);
        for next in CLEAN {
            sleep(100 * MS);
            change(&mut service, next);
            assert_eq!(has_program(), kind == "xdp", "after {next:?}");
        }
        sleep(100 * MS);
        let ends = traffic.end();
        assert_eq!((ends.missing, ends.repeated), (0, 0), "{ends:?}");
        let uplink = service.daemon.snapshot().links[0].uplink.clone().expect("the card");
        assert_eq!(uplink.drops.get("ring_full").or(uplink.drops.get("refused")), None, "{:?}", uplink.drops);
    })
}

/// Processes are killed. What was in them is lost, but the next one goes on with the same sockets, all of whose memory serves still.
pub(crate) fn outlives_kills(kind: &'static str) -> Result<(), Error> {
    const KILLS: u32 = 10;
    with_card(kind, |mut service, home| {
        let traffic = Traffic::start(&service, home, 100 * MS);
        let held: Vec<String> = service.held().into_iter().map(str::to_owned).collect();
        for _ in 0..KILLS {
            sleep(50 * MS);
            service.wait_until_kept();
            change(&mut service, Restart(SIGKILL));
            assert_eq!(service.held(), held);
        }
        sleep(100 * MS);
        change(&mut service, HandOver);
        traffic.goes_on();
        let ends = traffic.end();
        // All that was on its way, at worst.
        assert!(ends.missing <= KILLS * 2 * u32::from(BUFFERS), "{ends:?}");
    })
}

/// A card that has changed since it was opened cannot be gone on with: a successor leaves it to the running process, and the next process
/// opens it anew, once the manager has closed what it held.
pub(crate) fn is_opened_anew() -> Result<(), Error> {
    with_card("xdp", |mut service, home| {
        let mut held: Vec<String> = service.held().into_iter().map(str::to_owned).collect();
        held.sort();
        let traffic = Traffic::start(&service, home, 100 * MS);
        let address = Command::new("ip").args("link set eth0 address 52:54:00:92:01:77".split(' ')).status();
        assert!(address.expect("iproute2 is installed").success());
        let pid = service.daemon.pid();
        assert!(!service.hand_over());
        assert!(service.daemon.log().contains("cannot pass them on"), "{}", service.daemon.log());
        traffic.goes_on();
        assert_eq!(service.daemon.pid(), pid);
        change(&mut service, Restart(SIGTERM));
        assert!(has_program(), "{}", service.daemon.log());
        traffic.goes_on();
        change(&mut service, HandOver);
        traffic.goes_on();
        traffic.end();
        let mut now = service.held();
        now.sort();
        assert_eq!(now, held);
    })
}

/// A capture has each frame once, in order, whoever wrote it.
pub(crate) fn is_captured() -> Result<(), Error> {
    with_card("xdp", |mut service, home| {
        let file = home.join("guest.pcap");
        let path = file.to_str().expect("a temporary directory");
        let started = service.daemon.ctl(&["capture", "guest", path]);
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let traffic = Traffic::start(&service, home, Duration::MAX);
        for next in [HandOver, Failure, HandOver, Failure] {
            sleep(100 * MS);
            change(&mut service, next);
        }
        sleep(100 * MS);
        let ends = traffic.end();
        let stopped = service.daemon.ctl(&["capture", "guest", "--stop", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&stopped.stdout).expect("a report");
        let bytes = fs::read(&file).expect("the capture");
        let (mut from_guest, mut from_far) = (0, 0);
        for frame in records(&bytes) {
            if frame.get(AT_PORT..AT_PORT + 2) != Some(&PORT.to_be_bytes()) {
                continue;
            }
            let number = u32::from_be_bytes(frame[AT_PAYLOAD..AT_PAYLOAD + 4].try_into().expect("four bytes"));
            let next = if frame[..6] == FAR { &mut from_guest } else { &mut from_far };
            assert_eq!(number, *next);
            *next += 1;
        }
        assert_eq!((from_guest, from_far), (ends.from_guest.0, ends.from_far.0));
        let all = serde_json::json!({
            "frames": records(&bytes).len(), "bytes": bytes.len(), "left_out": 0, "ended": null
        });
        assert_eq!(report, all);
    })
}

/// The frames of a pcap file.
fn records(file: &[u8]) -> Vec<&[u8]> {
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        frames.push(&rest[16..16 + len]);
        rest = &rest[16 + len..];
    }
    frames
}

/// Runs something with a service whose uplink is a card of this kind, and its directory, in a namespace with the host at the other end
/// of the wire.
fn with_card(kind: &'static str, run: impl FnOnce(Manager, &Path) + Send + 'static) -> Result<(), Error> {
    let host = Namespace::new()?;
    for step in [
        "link add eth0 type veth peer name far0",
        "link set far0 address 52:54:00:92:01:01",
        "link set eth0 up",
        "link set far0 up",
        "address add 10.92.1.1/24 dev far0",
        "neighbour add 10.92.1.2 lladdr 52:54:00:92:01:02 dev far0 nud permanent",
    ] {
        host.ip(step);
    }
    host.run(move || {
        // As on a wire: the driver of a card sees no frames without their checksums.
        let offloads = Command::new("ethtool").args("-K far0 tx off tso off gso off".split(' ')).output();
        assert!(offloads.expect("ethtool is installed").status.success());
        let home = tempfile::tempdir().expect("a temporary directory");
        let service = Manager::start(home.path(), &POLICY.replace("KIND", kind));
        assert_eq!(has_program(), kind == "xdp");
        run(service, home.path());
    });
    Ok(())
}

/// Whether the card has an XDP program, so that no packet socket carries the frames.
fn has_program() -> bool {
    let shown = Command::new("ip").args(["link", "show", "eth0"]).output().expect("iproute2 is installed");
    String::from_utf8_lossy(&shown.stdout).contains("xdp")
}

/// Datagrams in both directions, on a thread of their own.
struct Traffic {
    done: Arc<AtomicBool>,
    /// How many have arrived at each end.
    received: Arc<[AtomicU32; 2]>,
    thread: JoinHandle<Ends>,
}

impl Traffic {
    /// Starts it. A datagram for the guest is sent after so long even if it has no room for one: all that are on their way may be lost.
    fn start(service: &Manager, home: &Path, patience: Duration) -> Traffic {
        let mut ends = Ends::new(&home.join("guest.sock"), patience);
        while service.daemon.snapshot().vifs[0].port.state != State::Up {
            sleep(MS);
        }
        let (done, received) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicU32::new(0) }; 2]));
        let (ends_soon, counts) = (done.clone(), received.clone());
        let thread = std::thread::spawn(move || {
            while !ends_soon.load(Relaxed) {
                ends.send();
                ends.receive();
                counts[0].store(ends.from_guest.1, Relaxed);
                counts[1].store(ends.from_far.1, Relaxed);
            }
            let start = Instant::now();
            while !ends.have_all() {
                assert!(start.elapsed() < Duration::from_secs(30), "frames were lost at the end: {ends:?}");
                ends.receive();
            }
            ends
        });
        Traffic { done, received, thread }
    }

    /// Waits until some more have arrived at each end.
    fn goes_on(&self) {
        for received in &*self.received {
            let before = received.load(Relaxed);
            while received.load(Relaxed) < before + 4 * u32::from(BUFFERS) {
                assert!(!self.thread.is_finished());
                sleep(MS);
            }
        }
    }

    /// Ends it, once everything has arrived.
    fn end(self) -> Ends {
        self.done.store(true, Relaxed);
        self.thread.join().expect("the rest arrives")
    }
}

/// A guest and a host on the wire, which send each other numbered datagrams.
struct Ends {
    guest: Frontend,
    far: UdpSocket,
    /// Datagrams sent and received by each.
    from_guest: (u32, u32),
    from_far: (u32, u32),
    /// Buffers of the guest's that were sent.
    completed: u32,
    /// When the last datagram for the guest was sent. The next one follows after `patience` at the latest.
    last: Instant,
    patience: Duration,
    /// Datagrams that did not arrive, and that arrived again.
    missing: u32,
    repeated: u32,
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ends { from_guest, from_far, missing, repeated, .. } = self;
        write!(out, "sent and received by the wire {from_guest:?}, by the guest {from_far:?}, ")?;
        write!(out, "missing {missing}, repeated {repeated}")
    }
}

impl Ends {
    fn new(socket: &Path, patience: Duration) -> Ends {
        let mut guest = Frontend::connect(socket, 256);
        guest.set_up(F_VERSION_1 | F_PROTOCOL, 2);
        (0..BUFFERS).for_each(|index| guest.post_buffer(index, BUFFER));
        guest.kick(0);
        let far = UdpSocket::bind(("10.92.1.1", PORT)).expect("an address of far0");
        far.set_nonblocking(true).expect("a socket");
        let (from_guest, from_far, last) = ((0, 0), (0, 0), Instant::now());
        Ends { guest, far, from_guest, from_far, completed: 0, last, patience, missing: 0, repeated: 0 }
    }

    /// Sends a datagram from each end, if the guest has a buffer for it: so however long a change takes, there is room for all.
    fn send(&mut self) {
        if self.from_far.0 - self.from_far.1 < BUFFERS.into() || self.last.elapsed() >= self.patience {
            self.last = Instant::now();
            self.far.send_to(&self.from_far.0.to_be_bytes(), ("10.92.1.2", PORT)).expect("far0 is up");
            self.from_far.0 += 1;
        }
        self.completed += self.guest.completed(1).len() as u32;
        let sent = self.from_guest.0;
        if sent - self.completed < BUFFERS.into() {
            self.guest.transmit((sent % u32::from(BUFFERS)) as u16, NO_HEADER, &datagram(sent));
            self.guest.kick(1);
            self.from_guest.0 += 1;
        }
    }

    /// Receives what has arrived at each end, and counts what is not the next in order.
    fn receive(&mut self) {
        let mut bytes = [0; 4];
        while self.far.recv(&mut bytes).is_ok() {
            self.count(u32::from_be_bytes(bytes), |ends| &mut ends.from_guest.1);
        }
        for (head, len) in self.guest.completed(0) {
            let frame = self.guest.received_buffer(head, len).split_off(HEADER);
            // The host also sends other frames.
            if frame.get(AT_PORT..AT_PORT + 2) == Some(&PORT.to_be_bytes()) {
                let number = frame[AT_PAYLOAD..AT_PAYLOAD + 4].try_into().expect("four bytes");
                self.count(u32::from_be_bytes(number), |ends| &mut ends.from_far.1);
            }
            self.guest.post_buffer(head as u16, BUFFER);
            self.guest.kick(0);
        }
    }

    /// Counts a datagram with this number that arrived at the end whose next one this is.
    fn count(&mut self, number: u32, next: fn(&mut Ends) -> &mut u32) {
        let due = *next(self);
        match number.checked_sub(due) {
            Some(missing) => {
                self.missing += missing;
                *next(self) = number + 1;
            }
            None => self.repeated += 1,
        }
    }

    fn have_all(&self) -> bool {
        self.from_guest.0 == self.from_guest.1 && self.from_far.0 == self.from_far.1
    }
}

/// A datagram of the guest's with this number, without a checksum of its own.
fn datagram(number: u32) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 92, 1, 2, 10, 92, 1, 1];
    let sum = Sum::default().with(&ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let ethernet = [&FAR[..], &[0x52, 0x54, 0, 0x92, 1, 2, 8, 0]].concat();
    let udp = [PORT, PORT, 12, 0].map(u16::to_be_bytes).concat();
    [&ethernet, &ip[..], &udp, &number.to_be_bytes()].concat()
}
