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

/// The honest guests: who sends and who receives, first where the attacker is, then beside it.
pub const GUESTS: [&str; 4] = ["sender", "receiver", "sender-beside", "receiver-beside"];

/// Both links' rate. A hundredth of what a busy computer can do: what a guest gets is then for the backend to say.
const RATE: &str = "20Mbit/s";

/// What receivers send back, in bits a second.
const BACK: f64 = 1e6;

/// The first of the ports that are sent to, and how many traffics may be under way at once.
const PORT: u16 = 5001;
const AT_ONCE: u16 = 8;

/// The two pairs of guests, as places of [`GUESTS`].
const PAIRS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

fn guest_mac(guest: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0x84, 0, 1 + guest as u8]
}

fn address(guest: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, 1 + guest as u8)
}

/// The daemon and the guests. Dropped, guests end first, then the daemon, then the directory with all sockets goes.
pub struct Stage {
    guests: Vec<Guest>,
    pub daemon: Daemon,
    home: TempDir,
    /// How many traffics there were.
    traffics: Cell<u16>,
}

impl Stage {
    /// Starts the daemon, with vifs for so many attackers, and boots the guests, all at once.
    pub fn build(attackers: usize) -> Result<Stage, Error> {
        let home = tempfile::Builder::new().prefix("fairlane-neighbours-").tempdir().expect("a temporary directory");
        let daemon = Daemon::start(home.path(), &policy_text(attackers), |mut command| command.spawn());
        let specs = (0..GUESTS.len()).map(|guest| spec(guest, home.path())).collect::<Vec<_>>();
        let guests = Guest::boot_all(&specs)?;
        let stage = Stage { guests, daemon, home, traffics: Cell::new(0) };
        for guest in 0..GUESTS.len() {
            // It would send frames to all at times of its own. A kernel without it has no such file.
            let path = "/proc/sys/net/ipv6/conf/all/disable_ipv6".into();
            let _ = stage.agent(guest).run(Command::Write { path, text: "1".to_owned() });
        }
        // They learn each other's MAC addresses: what is sent before that, their own kernels drop.
        for [sender, receiver] in PAIRS {
            let trips = stage.ping(sender, receiver, 3)?.wait()?;
            assert!(matches!(trips, Outcome::RoundTrips(trips) if trips.lost() < 3), "the guests hear each other");
        }
        Ok(stage)
    }

    /// The socket of a vif.
    pub fn socket(&self, vif: &str) -> PathBuf {
        self.home.path().join(format!("{vif}.sock"))
    }

    fn agent(&self, guest: usize) -> &Agent {
        self.guests[guest].agent()
    }

    /// Has a guest ask another for echoes, fifty a second.
    fn ping(&self, from: usize, to: usize, count: u16) -> Result<Job, Error> {
        let spec = ping::Spec { to: address(to), count, interval: 0.02, patience: 5.0 };
        self.agent(from).start_job(Command::Ping(spec))
    }

    /// Has both pairs' senders flood their receivers for so many seconds, and the receivers send a little back and ask for echoes.
    pub fn traffic(&self, seconds: f64) -> Result<Traffic, Error> {
        let number = self.traffics.replace(self.traffics.get() + 1);
        let port = PORT + number % AT_ONCE;
        // What is in queues and rings arrives after the senders' end.
        let order = ReceiveSpec { port, interval: 1.0, seconds: seconds + 2.5 };
        let ways =
            PAIRS.into_iter().flat_map(|[sender, receiver]| [(sender, receiver, None), (receiver, sender, Some(BACK))]);
        let mut traffic = Traffic { streams: Vec::new(), pings: Vec::new() };
        for (from, to, rate) in ways {
            let receiving = self.agent(to).start_job(Command::UdpReceive(order.clone()))?;
            receiving.started()?;
            let spec = udp::SendSpec { to: (address(to), port).into(), size: 1472, rate, seconds };
            let sending = self.agent(from).start_job(Command::UdpSend(spec))?;
            traffic.streams.push((GUESTS[from], sending, receiving));
        }
        for [sender, receiver] in PAIRS {
            traffic.pings.push((GUESTS[sender], self.ping(receiver, sender, (seconds * 50.0) as u16)?));
        }
        Ok(traffic)
    }

    /// Powers the guests off, and has the daemon end, which it must do as if nothing had been.
    pub fn stop(mut self) -> Result<(), Error> {
        std::mem::take(&mut self.guests).into_iter().try_for_each(Guest::stop)?;
        let status = self.daemon.end(Signal::SIGTERM);
        assert!(status.success(), "the daemon ended with {status}\n{}", self.daemon.log());
        Ok(())
    }
}

/// What honest guests do meanwhile: who sends, that it does, and that it is received; and whom echoes are asked of.
pub struct Traffic {
    streams: Vec<(&'static str, Job, Job)>,
    pings: Vec<(&'static str, Job)>,
}

impl Traffic {
    /// Waits for its end. Answers what was lost, in words.
    pub fn losses(self) -> Result<Vec<String>, Error> {
        let mut losses = Vec::new();
        for (name, sending, receiving) in self.streams {
            let Outcome::Sent(Sent { datagrams: sent, .. }) = sending.wait()? else { panic!("sent") };
            let Outcome::Received(Received { sources, .. }) = receiving.wait()? else { panic!("received") };
            let came: u64 = sources.iter().map(|source| source.datagrams).sum();
            if came != sent {
                losses.push(format!("of {sent} datagrams of {name} came {came}"));
            }
        }
        for (name, pings) in self.pings {
            let Outcome::RoundTrips(trips) = pings.wait()? else { panic!("trips") };
            if trips.lost() > 0 {
                losses.push(format!("of {} echoes of {name} are lost {}", trips.seconds.len(), trips.lost()));
            }
        }
        Ok(losses)
    }
}

/// The attacked link's uplink in a snapshot.
pub fn uplink(snapshot: &Snapshot) -> &PortState {
    let link = snapshot.links.iter().find(|link| link.name == "attacked").expect("a link of the stage");
    link.uplink.as_ref().expect("it has a wire")
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
