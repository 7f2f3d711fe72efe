//! A daemon with two links of the same rate, the attacked one and one beside it, and on each an honest guest that sends to another
//! at the link's far end.

use crate::daemon::{Daemon, vif_text};
use crate::hostile::{ACCOMPLICE, NOBODY, attacker, mac};
use fairlane_engine::snapshot::{PortState, Snapshot};
use fairlane_lab::{Agent, Command, Error, Guest, GuestSpec, Job, Kind, Outcome};
use fairlane_load::{ReceiveSpec, Received, Sent, ping, udp};
use nix::sys::signal::Signal;
use std::cell::Cell;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The honest guests: sender and receiver on the attacked link, then on the other one.
pub(crate) const GUESTS: [&str; 4] = ["sender", "receiver", "sender-beside", "receiver-beside"];

/// The rate of both links: a hundredth of what a busy machine can forward, so that a guest's rate depends on the backend alone.
const RATE: &str = "20Mbit/s";

/// Rate that receivers send back, in bits per second.
const RETURN_RATE: f64 = 1e6;

/// The first UDP port, and the number of ports: traffic of that many attacks may be in flight at once.
const PORT: u16 = 5001;
const PORTS: u16 = 8;

/// The two pairs of guests, as indices of [`GUESTS`].
const PAIRS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

fn guest_mac(guest: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0x84, 0, 1 + guest as u8]
}

fn address(guest: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, 1 + guest as u8)
}

/// The daemon and the guests. On drop, the guests end first, then the daemon, then the directory with all sockets is removed.
pub(crate) struct Stage {
    guests: Vec<Guest>,
    pub daemon: Daemon,
    home: TempDir,
    /// Number of calls of [`Stage::traffic`].
    traffics: Cell<u16>,
}

impl Stage {
    /// Starts the daemon, with vifs for the attackers, and boots all guests in parallel.
    pub(crate) fn build(attackers: usize) -> Result<Stage, Error> {
        let home = tempfile::Builder::new().prefix("fairlane-neighbours-").tempdir().expect("a temporary directory");
        let daemon = Daemon::start(home.path(), &policy_text(attackers), |mut command| command.spawn());
        let specs = (0..GUESTS.len()).map(|guest| spec(guest, home.path())).collect::<Vec<_>>();
        let guests = Guest::boot_all(&specs)?;
        let stage = Stage { guests, daemon, home, traffics: Cell::new(0) };
        for guest in 0..GUESTS.len() {
            // IPv6 would send multicasts at any time. A kernel without IPv6 has no such file.
            let path = "/proc/sys/net/ipv6/conf/all/disable_ipv6".into();
            let _ = stage.agent(guest).run(Command::Write { path, text: "1".to_owned() });
        }
        // The guests resolve each other's MAC addresses: until then, their kernels drop datagrams.
        for [sender, receiver] in PAIRS {
            let trips = stage.ping(sender, receiver, 3)?.wait()?;
            assert!(
                matches!(trips, Outcome::RoundTrips(trips) if trips.lost() < 3),
                "the guests do not reach each other"
            );
        }
        Ok(stage)
    }

    /// The socket of a vif.
    pub(crate) fn socket(&self, vif: &str) -> PathBuf {
        self.home.path().join(format!("{vif}.sock"))
    }

    fn agent(&self, guest: usize) -> &Agent {
        self.guests[guest].agent()
    }

    /// Makes a guest ping another, fifty times per second.
    fn ping(&self, from: usize, to: usize, count: u16) -> Result<Job, Error> {
        let spec = ping::Spec { to: address(to), count, interval: 0.02, patience: 5.0 };
        self.agent(from).start_job(Command::Ping(spec))
    }

    /// Makes both senders flood their receivers, and the receivers send a little back and ping, for some seconds.
    pub(crate) fn traffic(&self, seconds: f64) -> Result<Traffic, Error> {
        let number = self.traffics.replace(self.traffics.get() + 1);
        let port = PORT + number % PORTS;
        // Longer than the senders, since frames in queues and rings arrive later.
        let spec = ReceiveSpec { port, interval: 1.0, seconds: seconds + 2.5 };
        let directions = PAIRS
            .into_iter()
            .flat_map(|[sender, receiver]| [(sender, receiver, None), (receiver, sender, Some(RETURN_RATE))]);
        let mut traffic = Traffic { streams: Vec::new(), pings: Vec::new() };
        for (from, to, rate) in directions {
            let receiver = self.agent(to).start_job(Command::UdpReceive(spec.clone()))?;
            receiver.started()?;
            let spec = udp::SendSpec { to: (address(to), port).into(), size: 1472, rate, seconds };
            let sender = self.agent(from).start_job(Command::UdpSend(spec))?;
            traffic.streams.push((GUESTS[from], sender, receiver));
        }
        for [sender, receiver] in PAIRS {
            traffic.pings.push((GUESTS[sender], self.ping(receiver, sender, (seconds * 50.0) as u16)?));
        }
        Ok(traffic)
    }

    /// Powers the guests off and stops the daemon, which must end normally.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        std::mem::take(&mut self.guests).into_iter().try_for_each(Guest::stop)?;
        let status = self.daemon.end(Signal::SIGTERM);
        assert!(status.success(), "the daemon ended with {status}\n{}", self.daemon.log());
        Ok(())
    }
}

/// Traffic of the honest guests: streams with sender's name, sending job and receiving job, and pings with the target's name.
pub(crate) struct Traffic {
    streams: Vec<(&'static str, Job, Job)>,
    pings: Vec<(&'static str, Job)>,
}

impl Traffic {
    /// Waits for the end of the traffic. Returns descriptions of the losses.
    pub(crate) fn losses(self) -> Result<Vec<String>, Error> {
        let mut losses = Vec::new();
        for (name, sender, receiver) in self.streams {
            let Outcome::Sent(Sent { datagrams: sent, .. }) = sender.wait()? else { panic!("sent") };
            let Outcome::Received(Received { sources, .. }) = receiver.wait()? else { panic!("received") };
            let received: u64 = sources.iter().map(|source| source.datagrams).sum();
            if received != sent {
                losses.push(format!("{received} of {sent} datagrams of {name} arrived"));
            }
        }
        for (name, pings) in self.pings {
            let Outcome::RoundTrips(trips) = pings.wait()? else { panic!("trips") };
            if trips.lost() > 0 {
                losses.push(format!("{} of {} echoes of {name} were lost", trips.lost(), trips.seconds.len()));
            }
        }
        Ok(losses)
    }
}

/// The uplink of the attacked link in a snapshot.
pub(crate) fn uplink(snapshot: &Snapshot) -> &PortState {
    let link = snapshot.links.iter().find(|link| link.name == "attacked").expect("a link of the policy");
    link.uplink.as_ref().expect("the link has a wire")
}

fn policy_text(attackers: usize) -> String {
    let mut text = "control = \"DIR/control.sock\"\n".to_owned();
    for (near, far) in [("attacked", "attacked-far"), ("beside", "beside-far")] {
        let _ = write!(
            text,
            "[[link]]\nname = \"{near}\"\nrate = \"{RATE}\"\n\
             uplink = {{ wire = \"{far}\", delay = \"1ms\", queue = \"32KiB\", backpressure = true }}\n\
             [[link]]\nname = \"{far}\"\n"
        );
    }
    let guests = GUESTS.iter().zip(["attacked", "attacked-far", "beside", "beside-far"]);
    guests.enumerate().for_each(|(guest, (name, link))| text += &vif_text(name, link, guest_mac(guest)));
    [ACCOMPLICE, NOBODY].iter().for_each(|name| text += &vif_text(name, "attacked-far", mac(name)));
    (0..attackers).map(attacker).for_each(|name| text += &vif_text(&name, "attacked", mac(&name)));
    text
}

fn spec(guest: usize, home: &Path) -> GuestSpec {
    GuestSpec::served(Kind::Uml, GUESTS[guest], home, guest_mac(guest), address(guest))
}
