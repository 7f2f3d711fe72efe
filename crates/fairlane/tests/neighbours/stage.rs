//! A daemon with two links of the same rate, the attacked one and one beside it, and on each an honest guest that sends to another
//! at the link's far end.

use fairlane_engine::snapshot::{PortState, Snapshot};
use fairlane_lab::{Agent, Backend, Command, Error, Guest, GuestSpec, Job, Kind, Nic, Outcome, Tools};
use fairlane_load::{ReceiveSpec, Received, Sent, ping, udp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The honest guests: who sends and who receives, first where the attacker is, then beside it.
pub const GUESTS: [&str; 4] = ["sender", "receiver", "sender-beside", "receiver-beside"];

/// The vifs of frontends that are none of a guest's: who attacks, who sends to it from the far end, and one that is never connected.
pub const ATTACKER: &str = "attacker";
pub const ACCOMPLICE: &str = "accomplice";
pub const NOBODY: &str = "nobody";

/// Both links' rate. A hundredth of what a busy computer can do: what a guest gets is then for the backend to say.
const RATE: &str = "20Mbit/s";

/// What receivers send back, in bits a second.
const BACK: f64 = 1e6;

const PORT: u16 = 5001;

/// The two pairs of guests, as places of [`GUESTS`].
const PAIRS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

/// The MAC address of a vif.
pub fn mac(name: &str) -> [u8; 6] {
    let others = [ATTACKER, ACCOMPLICE, NOBODY];
    let number = GUESTS.iter().chain(&others).position(|known| *known == name).expect("a vif of the stage");
    [0x52, 0x54, 0, 0x84, 0, number as u8 + 1]
}

fn address(guest: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, 1 + guest as u8)
}

/// The daemon and the guests. Dropped, guests end first, then the daemon, then the directory with all sockets goes.
pub struct Stage {
    guests: Vec<Guest>,
    daemon: Daemon,
    home: TempDir,
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Stage {
    /// Starts the daemon and boots the guests, all at once.
    pub fn build() -> Result<Stage, Error> {
        let home = tempfile::Builder::new().prefix("fairlane-neighbours-").tempdir().expect("a temporary directory");
        let policy = home.path().join("policy.toml");
        std::fs::write(&policy, policy_text(home.path())).expect("the policy is written");
        let log = std::fs::File::create(home.path().join("daemon.log")).expect("a log");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fairlane"));
        command.args(["up", "--log", "error"]).arg(policy).stdin(Stdio::null()).stderr(log);
        let daemon = Daemon(command.spawn().expect("the daemon starts"));
        let control = home.path().join("control.sock");
        for _ in 0..3000 {
            if UnixStream::connect(&control).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let guests = thread::scope(|scope| {
            let specs = (0..GUESTS.len()).map(|guest| spec(guest, home.path()));
            let booting: Vec<_> = specs.map(|spec| scope.spawn(move || Guest::boot(&spec))).collect();
            booting.into_iter().map(|guest| guest.join().expect("booting does not panic")).collect::<Result<_, _>>()
        })?;
        let stage = Stage { guests, daemon, home };
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

    /// What is shown of the daemon.
    pub fn snapshot(&self) -> Snapshot {
        let control = self.home.path().join("control.sock");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fairlane"));
        let asked = command.args(["ctl", "--json", "--control"]).arg(control).arg("show").output().expect("ctl runs");
        assert!(asked.status.success(), "{}\n{}", String::from_utf8_lossy(&asked.stderr), self.log());
        serde_json::from_slice(&asked.stdout).expect("a snapshot")
    }

    /// Whether the daemon lives.
    pub fn lives(&mut self) -> bool {
        self.daemon.0.try_wait().expect("a child").is_none()
    }

    /// What the daemon complained of.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("daemon.log")).unwrap_or_default()
    }

    /// Has both pairs' senders flood their receivers for so many seconds, and the receivers send a little back and ask for echoes.
    pub fn traffic(&self, seconds: f64) -> Result<Traffic, Error> {
        // What is in queues and rings arrives after the senders' end.
        let order = ReceiveSpec { port: PORT, interval: 1.0, seconds: seconds + 0.8 };
        let ways =
            PAIRS.into_iter().flat_map(|[sender, receiver]| [(sender, receiver, None), (receiver, sender, Some(BACK))]);
        let mut traffic = Traffic { streams: Vec::new(), pings: Vec::new() };
        for (from, to, rate) in ways {
            let receiving = self.agent(to).start_job(Command::UdpReceive(order.clone()))?;
            receiving.started()?;
            let spec = udp::SendSpec { to: (address(to), PORT).into(), size: 1472, rate, seconds };
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
        kill(Pid::from_raw(self.daemon.0.id() as i32), Signal::SIGTERM).expect("it lives");
        let status = self.daemon.0.wait().expect("a child");
        assert!(status.success(), "the daemon ended with {status}\n{}", self.log());
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

/// A vif of a snapshot.
pub fn vif<'a>(snapshot: &'a Snapshot, name: &str) -> &'a PortState {
    &snapshot.vifs.iter().find(|vif| vif.name == name).expect("a vif of the stage").port
}

/// The attacked link's uplink in a snapshot.
pub fn uplink(snapshot: &Snapshot) -> &PortState {
    let link = snapshot.links.iter().find(|link| link.name == "attacked").expect("a link of the stage");
    link.uplink.as_ref().expect("it has a wire")
}

fn policy_text(home: &Path) -> String {
    let home = home.display();
    let mut text = format!("control = \"{home}/control.sock\"\n");
    for (near, far) in [("attacked", "attacked-far"), ("beside", "beside-far")] {
        let _ = write!(
            text,
            "[[link]]\nname = \"{near}\"\nrate = \"{RATE}\"\n\
             uplink = {{ wire = \"{far}\", delay = \"1ms\", queue = \"32KiB\", backpressure = true }}\n\
             [[link]]\nname = \"{far}\"\n"
        );
    }
    let guests = GUESTS.iter().zip(["attacked", "attacked-far", "beside", "beside-far"]);
    let others = [(ATTACKER, "attacked"), (ACCOMPLICE, "attacked-far"), (NOBODY, "attacked-far")];
    for (name, link) in guests.map(|(name, link)| (*name, link)).chain(others) {
        let mac = mac(name).map(|byte| format!("{byte:02x}")).join(":");
        let _ = write!(
            text,
            "[[vif]]\nname = \"{name}\"\nlink = \"{link}\"\nsocket = \"{home}/{name}.sock\"\nmac = \"{mac}\"\n"
        );
    }
    text
}

fn spec(guest: usize, home: &Path) -> GuestSpec {
    let name = GUESTS[guest];
    GuestSpec {
        name: name.to_owned(),
        kind: Kind::Uml,
        cpus: 1,
        memory_mib: 128,
        tools: Tools::default(),
        nic: Some(Nic {
            backend: Backend::VhostUser(home.join(format!("{name}.sock"))),
            mac: mac(name),
            address: address(guest),
            prefix: 24,
            queues: 1,
        }),
        monitor: None,
        log: home.join(format!("{name}.console")),
    }
}
