//! The stage of an act: a backend in this process, guests that send, one that receives, and a wire between them.

use super::acts::{SENDERS, Setting};
use anyhow::Context;
use fairlane_core::packet::Mac;
use fairlane_engine::Engine;
use fairlane_engine::snapshot::Snapshot;
use fairlane_lab::{Agent, Command, Guest, GuestSpec, Kind};
use fairlane_load::{ReceiveSpec, udp};
use fairlane_policy::Policy;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use tempfile::TempDir;

/// The guest that receives.
pub const RECEIVER: &str = "receiver";

/// The engine and its guests. Dropped, guests end first, then the engine, then the directory with all sockets goes.
pub struct Stage {
    /// The guests, in the order of [`SENDERS`], then the receiver.
    guests: Vec<(GuestSpec, Guest)>,
    engine: Engine,
    /// The policy it was started with.
    pub policy: String,
    _home: TempDir,
}

impl Stage {
    /// Starts the backend and boots the guests, all at once. With `backpressure`, a full wire takes no more; without, it
    /// drops, and the link is served as netback does.
    ///
    /// # Errors
    /// What could not be started; then nothing is left behind.
    pub fn build(kind: Kind, senders: usize, backpressure: bool) -> anyhow::Result<Stage> {
        let home = tempfile::Builder::new().prefix("fairlane-demo-").tempdir().context("a temporary directory")?;
        let names: Vec<&str> = SENDERS.into_iter().take(senders).chain([RECEIVER]).collect();
        let text = policy(home.path(), &names, backpressure);
        let policy = Policy::parse("the demo's policy", &text).map_err(|problems| {
            anyhow::anyhow!(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        })?;
        let engine = Engine::start(policy)?;
        let spec = |name: &&str| GuestSpec::served(kind, name, home.path(), mac(name), address(name));
        let specs: Vec<GuestSpec> = names.iter().map(spec).collect();
        let guests = Guest::boot_all(&specs)?;
        let guests = specs.into_iter().zip(guests).collect();
        let stage = Stage { guests, engine, policy: text, _home: home };
        stage.introduce().map_err(|error| stage.explain(error))?;
        Ok(stage)
    }

    /// Has the senders learn the receiver's MAC address: what a flood sends before that, its own kernel drops.
    fn introduce(&self) -> Result<(), fairlane_lab::Error> {
        let order = ReceiveSpec { port: PORT, interval: 1.0, seconds: 0.3 };
        let receiving = self.receiver().start_job(Command::UdpReceive(order))?;
        receiving.started()?;
        let to = (RECEIVER_ADDRESS, PORT).into();
        let (_, senders) = self.guests.split_last().expect("there is a receiver");
        for (_, sender) in senders {
            sender.agent().run(Command::UdpSend(udp::SendSpec { to, size: 8, rate: Some(1e5), seconds: 0.02 }))?;
        }
        receiving.wait().map(drop)
    }

    /// The guest of one of [`SENDERS`].
    pub fn sender(&self, index: usize) -> &Agent {
        self.guests[index].1.agent()
    }

    /// The guest that receives.
    pub fn receiver(&self) -> &Agent {
        self.guests[self.guests.len() - 1].1.agent()
    }

    /// The guest that receives, to take its CPU from it.
    pub fn receiving_guest(&self) -> &Guest {
        &self.guests[self.guests.len() - 1].1
    }

    /// Makes a setting while frames pass.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set(&self, setting: &Setting) -> anyhow::Result<()> {
        let Setting { target, key, value } = setting;
        self.engine.set(target, key, value).with_context(|| format!("set {target} {key} {value}"))
    }

    /// The backend's counters.
    ///
    /// # Errors
    /// The backend has ended.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        Ok(self.engine.snapshot()?)
    }

    /// An error of a guest that was up, with the last words of its kernel if it ended.
    pub fn explain(&self, error: fairlane_lab::Error) -> anyhow::Error {
        let fairlane_lab::Error::Gone { guest: gone, .. } = &error else { return error.into() };
        let words = self.guests.iter().find(|(spec, _)| spec.name == *gone).map(|(spec, _)| spec.last_words());
        anyhow::anyhow!("{error}; its console ends:\n{}", words.unwrap_or_default())
    }
}

/// The IP address of a sender, by its place in [`SENDERS`].
pub fn sender_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 83, 0, 1 + index as u8)
}

/// The UDP port the receiver counts at.
pub const PORT: u16 = 5001;

/// The receiver's IP address.
pub const RECEIVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 83, 0, 100);

fn address(name: &str) -> Ipv4Addr {
    SENDERS.iter().position(|sender| *sender == name).map_or(RECEIVER_ADDRESS, sender_address)
}

fn mac(name: &str) -> [u8; 6] {
    let [_, _, _, host] = address(name).octets();
    [0x52, 0x54, 0, 0x83, 0, host]
}

/// The policy of the stage: senders, a wire of the link's rate, the receiver.
fn policy(home: &Path, names: &[&str], backpressure: bool) -> String {
    let home = home.display();
    let scheduler = if backpressure { "fair" } else { "netback" };
    // The queue is 2.6 ms of the wire: short beside a second, and long enough to keep the wire busy.
    let mut text = format!(
        "control = \"{home}/control.sock\"\n\n\
         [[link]]\nname = \"senders\"\nrate = \"100Mbit/s\"\nscheduler = \"{scheduler}\"\n\
         uplink = {{ wire = \"receivers\", delay = \"1ms\", queue = \"32KiB\", backpressure = {backpressure} }}\n\n\
         [[link]]\nname = \"receivers\"\n"
    );
    for name in names {
        let link = if *name == RECEIVER { "receivers" } else { "senders" };
        let mac = Mac(mac(name));
        let _ = write!(
            text,
            "\n[[vif]]\nname = \"{name}\"\nlink = \"{link}\"\nsocket = \"{home}/{name}.sock\"\nmac = \"{mac}\"\n"
        );
    }
    text
}
