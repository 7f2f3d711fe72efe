//! The stage of an act: a backend in this process, sending guests, a receiving guest, and a wire between them.

use super::acts::{SENDERS, Setting};
use anyhow::Context;
use fairlane_core::packet::Mac;
use fairlane_engine::Engine;
use fairlane_engine::snapshot::Snapshot;
use fairlane_lab::{Agent, Command, Error, Guest, GuestSpec, Kind};
use fairlane_load::{ReceiveSpec, udp};
use fairlane_policy::{Policy, Vif};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// How long a guest runs and waits alternately, as if it shared the CPU with two other guests in slices of 30 ms.
pub(super) const RUN_TIME: Duration = Duration::from_millis(30);
pub(super) const WAIT_TIME: Duration = Duration::from_millis(60);
/// The time from one run of such a guest to the next.
pub(super) const PERIOD: Duration = RUN_TIME.saturating_add(WAIT_TIME);

/// The vif of the receiving guest.
pub(super) const RECEIVER: &str = "receiver";

/// The engine and its guests. On drop, the guests end first, then the engine, then the directory with all sockets is removed.
pub(super) struct Stage {
    /// The guests, in the order of [`SENDERS`], then the receiver.
    guests: Vec<(GuestSpec, Guest)>,
    engine: Engine,
    /// The policy it was started with.
    pub policy: String,
    _home: TempDir,
}

impl Stage {
    /// Starts the backend and boots all guests in parallel. With `backpressure`, frames wait while the wire is full; without, the wire
    /// drops frames, and the link is scheduled as netback does.
    ///
    /// # Errors
    /// The backend or a guest could not be started. Nothing is left running.
    pub(super) fn build(kind: Kind, senders: usize, backpressure: bool) -> anyhow::Result<Stage> {
        let home = tempfile::Builder::new().prefix("fairlane-demo-").tempdir().context("a temporary directory")?;
        let (text, policy) = policy(home.path(), senders, backpressure)?;
        let spec = |vif: &Vif| {
            let name = vif.name.as_str();
            GuestSpec::served(kind, name, home.path(), mac(name), address(name))
        };
        let specs: Vec<GuestSpec> = policy.vifs.iter().map(spec).collect();
        let engine = Engine::start(policy)?;
        let guests = Guest::boot_all(&specs)?;
        let guests = specs.into_iter().zip(guests).collect();
        let stage = Stage { guests, engine, policy: text, _home: home };
        stage.resolve_receiver().map_err(|error| stage.explain(error))?;
        Ok(stage)
    }

    /// Makes the senders resolve the receiver's MAC address: until then, their kernels drop the datagrams of a flood.
    fn resolve_receiver(&self) -> Result<(), Error> {
        let spec = ReceiveSpec { port: PORT, interval: 1.0, seconds: 0.3 };
        let receiving = self.receiver().start_job(Command::UdpReceive(spec))?;
        receiving.started()?;
        let to = (RECEIVER_ADDRESS, PORT).into();
        let (_, senders) = self.guests.split_last().expect("there is a receiver");
        for (_, sender) in senders {
            sender.agent().run(Command::UdpSend(udp::SendSpec { to, size: 8, rate: Some(1e5), seconds: 0.02 }))?;
        }
        receiving.wait().map(drop)
    }

    /// The agent of a sending guest, by index in [`SENDERS`].
    pub(super) fn sender(&self, index: usize) -> &Agent {
        self.guests[index].1.agent()
    }

    /// The agent of the receiving guest.
    pub(super) fn receiver(&self) -> &Agent {
        self.guests[self.guests.len() - 1].1.agent()
    }

    /// A sending guest itself, to suspend and resume it.
    pub(super) fn sending_guest(&self, index: usize) -> &Guest {
        &self.guests[index].1
    }

    /// Runs `work` while a guest alternately waits and runs.
    ///
    /// # Errors
    /// The work failed, or the guest ended.
    pub(super) fn in_slices<R>(&self, guest: &Guest, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let schedule = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    guest.suspend()?;
                    thread::sleep(WAIT_TIME);
                    guest.resume()?;
                    thread::sleep(RUN_TIME);
                }
                Ok(())
            });
            let outcome = work();
            done.store(true, Ordering::Relaxed);
            schedule.join().expect("the schedule does not panic")?;
            outcome
        })
    }

    /// The receiving guest itself, to suspend and resume it.
    pub(super) fn receiving_guest(&self) -> &Guest {
        &self.guests[self.guests.len() - 1].1
    }

    /// Applies a setting to the running backend.
    ///
    /// # Errors
    /// The setting is invalid.
    pub(super) fn set(&self, setting: &Setting) -> anyhow::Result<()> {
        let Setting { target, key, value } = setting;
        self.engine.set(target, key, value).with_context(|| format!("set {target} {key} {value}"))
    }

    /// The backend's counters.
    ///
    /// # Errors
    /// The backend has ended.
    pub(super) fn snapshot(&self) -> anyhow::Result<Snapshot> {
        Ok(self.engine.snapshot()?)
    }

    /// Adds the end of a guest's console to an error, if the guest ended.
    pub(super) fn explain(&self, error: Error) -> anyhow::Error {
        let Error::Gone { guest: gone, .. } = &error else { return error.into() };
        let console = self.guests.iter().find(|(spec, _)| spec.name == *gone).map(|(spec, _)| spec.last_words());
        anyhow::anyhow!("{error}; its console ends:\n{}", console.unwrap_or_default())
    }
}

/// The IP address of a sender, by index in [`SENDERS`].
pub(super) fn sender_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 83, 0, 1 + index as u8)
}

/// The UDP port of the receiver.
pub(super) const PORT: u16 = 5001;

/// The receiver's IP address.
pub(super) const RECEIVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 83, 0, 100);

fn address(name: &str) -> Ipv4Addr {
    SENDERS.iter().position(|sender| *sender == name).map_or(RECEIVER_ADDRESS, sender_address)
}

fn mac(name: &str) -> [u8; 6] {
    let [_, _, _, host] = address(name).octets();
    [0x52, 0x54, 0, 0x83, 0, host]
}

/// The policy of the stage, as text and parsed: senders, a wire with the link's rate, the receiver.
///
/// # Errors
/// It is wrong.
pub(super) fn policy(home: &Path, senders: usize, backpressure: bool) -> anyhow::Result<(String, Policy)> {
    let home = home.display();
    let scheduler = if backpressure { "fair" } else { "netback" };
    // The queue holds 2.6 ms of the wire: short compared to a second, and long enough to keep the wire busy.
    let mut text = format!(
        "control = \"{home}/control.sock\"\n\n\
         [[link]]\nname = \"senders\"\nrate = \"100Mbit/s\"\nscheduler = \"{scheduler}\"\n\
         uplink = {{ wire = \"receivers\", delay = \"1ms\", queue = \"32KiB\", backpressure = {backpressure} }}\n\n\
         [[link]]\nname = \"receivers\"\n"
    );
    for name in SENDERS.into_iter().take(senders).chain([RECEIVER]) {
        let link = if name == RECEIVER { "receivers" } else { "senders" };
        let mac = Mac(mac(name));
        let _ = write!(
            text,
            "\n[[vif]]\nname = \"{name}\"\nlink = \"{link}\"\nsocket = \"{home}/{name}.sock\"\nmac = \"{mac}\"\n"
        );
    }
    let policy = Policy::parse("the demo's policy", &text)
        .map_err(|problems| anyhow::anyhow!(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
    Ok((text, policy))
}
