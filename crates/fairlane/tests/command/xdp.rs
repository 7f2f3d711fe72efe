//! A confined backend with a card of AF_XDP as uplink, and one that has to do without.

use crate::frontend::{Frontend, HEADER};
use crate::guests::{guest, wait_for};
use crate::workspace::Workspace;
use fairlane_core::packet::checksum::Sum;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A guest on a link to a card.
const POLICY: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
uplink = { xdp = "fl0" }
[[vif]]
name = "web"
socket = "DIR/web.sock"
"#;

fn run(line: &str) {
    let mut words = line.split(' ');
    let done = Command::new(words.next().unwrap()).args(words).output().expect("iproute2 and ethtool are installed");
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Runs a backend whose guest exchanges datagrams with a host at the other end of a veth pair with this MTU. The log must
/// have this sentence.
fn exchange(mtu: u32, sentence: &'static str) {
    let test = thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            let _ = writeln!(io::stderr(), "SKIPPED: this test needs a network namespace (root): {error}");
            return;
        }
        run(&format!("ip link add fl0 mtu {mtu} type veth peer name eth0 mtu {mtu}"));
        run("ethtool -K eth0 tx off tso off gso off");
        run("ip addr add 10.9.0.1/24 dev eth0");
        run("ip link set eth0 up");
        run("ip link set fl0 up");
        run("ip neigh add 10.9.0.2 lladdr 52:54:00:00:00:01 dev eth0");
        let workspace = Workspace::new();
        workspace.write("policy.toml", POLICY);
        let mut backend = workspace.up();
        assert!(backend.startup_log.contains(sentence), "{}", backend.startup_log);
        assert!(backend.startup_log.contains("confined: no capability is left"), "{}", backend.startup_log);

        let mut guest = guest(&workspace.path("web.sock"));
        let socket = UdpSocket::bind("10.9.0.1:700").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let frame = datagram(&[5; 100]);
        let mut received = [0; 200];
        wait_for("the guest's datagram", || {
            let index = guest.available[1] % 64;
            guest.transmit(index, [0; HEADER], &frame);
            guest.kick(1);
            socket.recv(&mut received).is_ok_and(|bytes| received[..bytes] == [5; 100])
        });
        wait_for("a datagram for the guest", || {
            socket.send_to(&[7; 100], "10.9.0.2:9").unwrap();
            thread::sleep(Duration::from_millis(5));
            has_received(&mut guest, &[7; 100])
        });
        backend.signal(Signal::SIGTERM);
        let log = backend.rest_of_log();
        assert!(!log.contains("was refused it"), "{log}");
    });
    test.join().unwrap();
}

/// Whether a frame that the guest received ends like this.
fn has_received(guest: &mut Frontend, end: &[u8]) -> bool {
    let completed = guest.completed(0);
    completed.iter().any(|(head, len)| guest.received_buffer(*head, *len).ends_with(end))
}

/// A datagram from 10.9.0.2 to port 700 of 10.9.0.1, as a broadcast. It has no checksum, as IPv4 allows.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([0x52, 0x54, 0, 0, 0, 1, 8, 0, 0x45, 0]);
    frame.extend((28 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let checksum = Sum::default().with(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend([0, 9, 2, 188]);
    frame.extend((8 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

#[test]
fn a_confined_backend_carries_frames_by_af_xdp() {
    exchange(1500, "AF_XDP on fl0: copies from the driver, queues: 1");
}

#[test]
fn without_af_xdp_a_packet_socket_carries_the_frames() {
    exchange(
        9000,
        "no AF_XDP, so a packet socket carries the frames (`card`): interface fl0 has an MTU of 9000, and AF_XDP one of \
         at most 3822: `ip link set fl0 mtu 3822`",
    );
}
