//! A network card as uplink, whose sockets and rings the next process goes on with: no frame is lost in either direction.

use crate::Change::{Failure, HandOver, Restart};
use crate::change;
use crate::frontend::{F_PROTOCOL, F_VERSION_1, Frontend, HEADER, NO_HEADER};
use crate::manager::Manager;
use crate::namespace::Namespace;
use fairlane_core::packet::checksum::Sum;
use fairlane_engine::snapshot::State;
use fairlane_lab::Error;
use nix::sys::signal::Signal::SIGTERM;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

const POLICY: &str = "control = \"DIR/control.sock\"\n[[link]]\nname = \"lan\"\nuplink = { card = \"eth0\" }\n\
                      [[vif]]\nname = \"guest\"\nsocket = \"DIR/guest.sock\"\n";

/// The UDP port of both ends, and where a datagram's port and payload are in a frame.
const PORT: u16 = 9;
const AT_PORT: usize = 36;
const AT_PAYLOAD: usize = 42;

/// Buffers of each of the guest's rings.
const BUFFERS: u16 = 64;
const BUFFER: u32 = 2048;

const MS: Duration = Duration::from_millis(1);

pub(crate) fn loses_nothing() -> Result<(), Error> {
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
    host.run(|| {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut service = Manager::start(home.path(), POLICY);
        let mut ends = Ends::new(&home.path().join("guest.sock"));
        while service.daemon.snapshot().vifs[0].port.state != State::Up {
            sleep(MS);
        }
        let done = Arc::new(AtomicBool::new(false));
        let ends_soon = done.clone();
        let traffic = std::thread::spawn(move || {
            while !ends_soon.load(Relaxed) {
                ends.send();
                ends.receive();
            }
            let start = Instant::now();
            while !ends.have_all() {
                assert!(start.elapsed() < Duration::from_secs(30), "frames were lost at the end: {ends:?}");
                ends.receive();
            }
        });
        for next in [HandOver, Failure, Restart(SIGTERM), HandOver, Failure, Restart(SIGTERM)] {
            sleep(100 * MS);
            change(&mut service, next);
        }
        sleep(100 * MS);
        done.store(true, Relaxed);
        traffic.join().expect("every frame arrived once, in order");
        let uplink = service.daemon.snapshot().links[0].uplink.clone().expect("the card");
        assert_eq!(uplink.drops.get("ring_full").or(uplink.drops.get("refused")), None, "{:?}", uplink.drops);
        Ok(())
    })
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
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "sent and received by the wire {:?}, by the guest {:?}", self.from_guest, self.from_far)
    }
}

impl Ends {
    fn new(socket: &Path) -> Ends {
        let mut guest = Frontend::connect(socket, 256);
        guest.set_up(F_VERSION_1 | F_PROTOCOL, 2);
        (0..BUFFERS).for_each(|index| guest.post_buffer(index, BUFFER));
        guest.kick(0);
        let far = UdpSocket::bind(("10.92.1.1", PORT)).expect("an address of far0");
        far.set_nonblocking(true).expect("a socket");
        Ends { guest, far, from_guest: (0, 0), from_far: (0, 0), completed: 0 }
    }

    /// Sends a datagram from each end, if the guest has a buffer for it: so however long a change takes, there is room for all.
    fn send(&mut self) {
        if self.from_far.0 - self.from_far.1 < BUFFERS.into() {
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

    /// Receives what has arrived at each end: the next in order.
    fn receive(&mut self) {
        let mut bytes = [0; 4];
        while self.far.recv(&mut bytes).is_ok() {
            assert_eq!(u32::from_be_bytes(bytes), self.from_guest.1, "at the wire");
            self.from_guest.1 += 1;
        }
        for (head, len) in self.guest.completed(0) {
            let frame = self.guest.received_buffer(head, len).split_off(HEADER);
            // The host also sends other frames.
            if frame.get(AT_PORT..AT_PORT + 2) == Some(&PORT.to_be_bytes()) {
                assert_eq!(frame[AT_PAYLOAD..AT_PAYLOAD + 4], self.from_far.1.to_be_bytes(), "at the guest");
                self.from_far.1 += 1;
            }
            self.guest.post_buffer(head as u16, BUFFER);
            self.guest.kick(0);
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
    let ethernet = [0x52, 0x54, 0, 0x92, 1, 1, 0x52, 0x54, 0, 0x92, 1, 2, 8, 0];
    let udp = [PORT, PORT, 12, 0].map(u16::to_be_bytes).concat();
    [&ethernet, &ip[..], &udp, &number.to_be_bytes()].concat()
}
