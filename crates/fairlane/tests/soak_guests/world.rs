//! The daemon, its guests and the host's network.
//!
//! Two guests share a link with a fixed rate, and a third is at its far end. Two more guests are on a link to the host, with early ack.
//! The last of these is an emulated machine, whose card reconnects to a restarted daemon; User-Mode Linux guests are rebooted instead.

use crate::daemon::{Daemon, vif_text, write_policy};
use crate::hostile::{ACCOMPLICE, NOBODY, attacker, mac};
use crate::journal::Journal;
use crate::namespace::Namespace;
use crate::transfers::{self, End, Transfer};
use fairlane_lab::{Agent, Command, Error, Guest, GuestSpec, Kind};
use fairlane_load::{ServeSpec, digest};
use nix::sys::signal::Signal;
use rand::RngExt;
use rand::rngs::StdRng;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command as Program};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// A guest's vif, link and address.
pub(crate) struct GuestConfig {
    pub name: &'static str,
    pub link: &'static str,
    pub address: Ipv4Addr,
    kind: Kind,
}

const fn config(name: &'static str, link: &'static str, [network, host]: [u8; 2], kind: Kind) -> GuestConfig {
    GuestConfig { name, link, address: Ipv4Addr::new(10, network, 0, host), kind }
}

pub(crate) static GUESTS: [GuestConfig; 5] = [
    config("one", "near", [85, 1], Kind::Uml),
    config("two", "near", [85, 2], Kind::Uml),
    config("three", "far", [85, 3], Kind::Uml),
    config("four", "lan", [86, 2], Kind::Uml),
    config("five", "lan", [86, 3], Kind::Qemu),
];

/// The host's address on its link, and the tap there.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 1);
const TAP: &str = "fl0";

/// The TCP port on which hosts and guests receive transfers.
pub(crate) const PORT: u16 = 7000;

/// The receiver of transfers, which runs longer than any soak.
const SERVE_SPEC: ServeSpec = ServeSpec { port: PORT, seconds: 86_400.0 };

/// Number of vifs for attackers. They are used in turn, so that each has been unused for long.
const ATTACKERS: usize = 30;

/// Number of unused vifs at the far end, so that both ends of the wire have equally many ports.
const SPARE: usize = 29;

/// The default weight, which attackers have.
pub(crate) const WEIGHT: u32 = 100;

/// The settings of the policy that change.
pub(crate) struct Settings {
    /// Rate of the shared link, in Mbit/s.
    pub rate: u32,
    /// Weights of the two guests that share it.
    pub weights: [u32; 2],
}

/// Everything. On drop, the guests end first, then the daemon, then the directory with all sockets is removed.
pub(crate) struct World {
    guests: Vec<Option<Guest>>,
    pub daemon: Daemon,
    pub settings: Settings,
    pub journal: Arc<Journal>,
    /// Whether the soak lasts hours.
    pub long: bool,
    attackers: usize,
    pub network: Namespace,
    home: TempDir,
}

impl World {
    /// Starts the daemon and boots all guests in parallel; in a short soak without the emulated machine.
    ///
    /// # Errors
    /// A guest could not be booted.
    pub(crate) fn build(network: Namespace, long: bool, journal: Arc<Journal>) -> Result<World, Error> {
        for setup in [format!("tuntap add dev {TAP} mode tap"), format!("addr add {HOST}/24 dev {TAP}")] {
            network.ip(&setup);
        }
        network.ip(&format!("link set {TAP} up"));
        network.spawn(|| digest::serve(&SERVE_SPEC, drop).expect("the host's port is free"));
        let home = tempfile::Builder::new().prefix("fairlane-soak-").tempdir().expect("a temporary directory");
        let settings = Settings { rate: 20, weights: [WEIGHT; 2] };
        let daemon = Daemon::start(home.path(), &policy_text(&settings), |command| spawn(&network, command));
        let guests = GUESTS.iter().map(|_| None).collect();
        let mut world = World { guests, daemon, settings, journal, long, attackers: 0, network, home };
        let boots: Vec<usize> = (0..GUESTS.len()).filter(|guest| long || GUESTS[*guest].kind == Kind::Uml).collect();
        world.boot(&boots)?;
        Ok(world)
    }

    /// Boots guests and starts their receivers of transfers.
    ///
    /// # Errors
    /// A guest could not be booted.
    pub(crate) fn boot(&mut self, guests: &[usize]) -> Result<(), Error> {
        let spec = |guest: &usize| {
            let GuestConfig { name, address, kind, .. } = GUESTS[*guest];
            GuestSpec::served(kind, name, self.home.path(), guest_mac(*guest), address)
        };
        let booted = Guest::boot_all(&guests.iter().map(spec).collect::<Vec<_>>())?;
        for (guest, up) in guests.iter().zip(booted) {
            self.guests[*guest] = Some(up);
            // IPv6 would send multicasts at any time. A kernel without IPv6 has no such file.
            let path = "/proc/sys/net/ipv6/conf/all/disable_ipv6".into();
            let _ = self.agent(*guest).run(Command::Write { path, text: "1".to_owned() });
            self.agent(*guest).start_job(Command::DigestServe(SERVE_SPEC))?.started()?;
        }
        Ok(())
    }

    /// Whether a guest is up.
    pub(crate) fn has(&self, guest: usize) -> bool {
        self.guests[guest].is_some()
    }

    /// The guests that are up.
    pub(crate) fn present(&self) -> Vec<usize> {
        (0..GUESTS.len()).filter(|guest| self.has(*guest)).collect()
    }

    pub(crate) fn guest(&self, guest: usize) -> &Guest {
        self.guests[guest].as_ref().expect("the guest is up")
    }

    pub(crate) fn agent(&self, guest: usize) -> &Agent {
        self.guest(guest).agent()
    }

    /// Powers a guest off.
    ///
    /// # Errors
    /// The guest had ended already.
    pub(crate) fn power_off(&mut self, guest: usize) -> Result<(), Error> {
        self.guests[guest].take().expect("the guest is up").stop()
    }

    /// The socket of a vif.
    pub(crate) fn socket(&self, vif: &str) -> PathBuf {
        self.home.path().join(format!("{vif}.sock"))
    }

    /// The vif of the next attacker.
    pub(crate) fn next_attacker(&mut self) -> String {
        self.attackers += 1;
        attacker(self.attackers % ATTACKERS)
    }

    /// Changes a setting of a vif or link.
    pub(crate) fn set(&self, target: &str, setting: &str) {
        self.journal.write(format_args!("set {target} {setting}"));
        let output = self.daemon.ctl(&["set", target, setting]);
        assert!(output.status.success(), "set {target} {setting}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Loads the policy with these settings, whatever was set before.
    pub(crate) fn reload(&mut self, settings: Settings) {
        self.settings = settings;
        self.journal.write(format_args!("reload: {} Mbit/s, weights {:?}", self.settings.rate, self.settings.weights));
        let file = write_policy(self.home.path(), &policy_text(&self.settings));
        let output =
            self.daemon.ctl(&["reload", file.to_str().expect("the path of a temporary directory is valid UTF-8")]);
        assert!(output.status.success(), "reload: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Takes the uplink to the host down for a while.
    pub(crate) fn link_down(&self, time: Duration) {
        self.journal.write(format_args!("{TAP} is down for {time:?}"));
        self.network.ip(&format!("link set {TAP} down"));
        thread::sleep(time);
        self.network.ip(&format!("link set {TAP} up"));
    }

    /// Kills the daemon or stops it as for an upgrade, and starts it again, during transfers with the emulated machine. All other guests
    /// are rebooted; they are powered off before, or lose their card.
    ///
    /// # Errors
    /// A guest could not be powered off or booted.
    pub(crate) fn restart(&mut self, random: &mut StdRng) -> Result<(), Error> {
        let (signal, gently) = (*pick(random, &[Signal::SIGKILL, Signal::SIGTERM]), random.random_bool(0.5));
        let emulated: Vec<usize> =
            self.present().into_iter().filter(|guest| GUESTS[*guest].kind == Kind::Qemu).collect();
        let others: Vec<usize> = self.present().into_iter().filter(|guest| GUESTS[*guest].kind != Kind::Qemu).collect();
        let mut running: Vec<Transfer> = Vec::new();
        for guest in emulated {
            running.push(transfers::start(self, random, End::Host, End::Guest(guest))?);
            running.push(transfers::start(self, random, End::Guest(guest), End::Host)?);
        }
        if gently {
            others.iter().try_for_each(|guest| self.power_off(*guest))?;
        }
        thread::sleep(Duration::from_millis(random.random_range(0..1500)));
        self.journal.write(format_args!("{signal}; other guests powered off before: {gently}"));
        let status = self.daemon.end(signal);
        assert!(signal == Signal::SIGKILL || status.success(), "the daemon ended with {status}\n{}", self.daemon.log());
        others.iter().for_each(|guest| drop(self.guests[*guest].take()));
        thread::sleep(Duration::from_millis(random.random_range(0..1000)));
        let policy = policy_text(&self.settings);
        self.daemon = Daemon::start(self.home.path(), &policy, |command| spawn(&self.network, command));
        self.boot(&others)?;
        running.into_iter().for_each(|transfer| transfer.finish(&self.journal));
        Ok(())
    }

    /// Powers the guests off and stops the daemon, which must end normally.
    ///
    /// # Errors
    /// A guest had ended already.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        self.present().into_iter().try_for_each(|guest| self.power_off(guest))?;
        let status = self.daemon.end(Signal::SIGTERM);
        assert!(status.success(), "the daemon ended with {status}\n{}", self.daemon.log());
        Ok(())
    }
}

/// A random element of a slice.
pub(crate) fn pick<'a, T>(random: &mut StdRng, some: &'a [T]) -> &'a T {
    &some[random.random_range(0..some.len())]
}

/// Starts a process in the host's network namespace.
fn spawn(network: &Namespace, mut command: Program) -> std::io::Result<Child> {
    network.run(move || command.spawn())
}

fn guest_mac(guest: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0x85, 0, 1 + guest as u8]
}

fn policy_text(settings: &Settings) -> String {
    let rate = settings.rate;
    let mut text = format!(
        "control = \"DIR/control.sock\"\n\
         [[link]]\nname = \"near\"\nrate = \"{rate}Mbit/s\"\n\
         uplink = {{ wire = \"far\", delay = \"1ms\", queue = \"32KiB\", backpressure = true }}\n\
         [[link]]\nname = \"far\"\n\
         [[link]]\nname = \"lan\"\nuplink = {{ tap = \"{TAP}\" }}\n"
    );
    for (guest, GuestConfig { name, link, .. }) in GUESTS.iter().enumerate() {
        text += &vif_text(name, link, guest_mac(guest));
        match settings.weights.get(guest) {
            Some(weight) => _ = writeln!(text, "weight = {weight}"),
            None if *link == "lan" => text += "early_ack = true\n",
            None => {}
        }
    }
    [ACCOMPLICE, NOBODY].iter().for_each(|name| text += &vif_text(name, "far", mac(name)));
    (0..SPARE)
        .for_each(|spare| text += &vif_text(&format!("spare-{spare}"), "far", [0x52, 0x54, 0, 0x85, 1, spare as u8]));
    (0..ATTACKERS).map(attacker).for_each(|name| text += &vif_text(&name, "near", mac(&name)));
    text
}
