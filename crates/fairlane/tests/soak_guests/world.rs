//! The daemon, its guests and the network of the host.
//!
//! Two guests on a link of a fixed rate and one at its far end, who contest it; two on a link that leads to the host, with early ack. The
//! last of those is an emulated computer, whose card finds a daemon that is started again; a User-Mode Linux guest is booted anew.

use crate::daemon::{Daemon, vif_text, write_policy};
use crate::diary::Diary;
use crate::hostile::{ACCOMPLICE, NOBODY, attacker, mac};
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

/// A guest's vif and where it is.
pub struct Place {
    pub name: &'static str,
    pub link: &'static str,
    pub address: Ipv4Addr,
    kind: Kind,
}

const fn place(name: &'static str, link: &'static str, [network, host]: [u8; 2], kind: Kind) -> Place {
    Place { name, link, address: Ipv4Addr::new(10, network, 0, host), kind }
}

pub static PLACES: [Place; 5] = [
    place("one", "near", [85, 1], Kind::Uml),
    place("two", "near", [85, 2], Kind::Uml),
    place("three", "far", [85, 3], Kind::Uml),
    place("four", "lan", [86, 2], Kind::Uml),
    place("five", "lan", [86, 3], Kind::Qemu),
];

/// The host's address on the link that leads to it, and its interface there.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 1);
const TAP: &str = "fl0";

/// Where everyone hashes what comes.
pub const PORT: u16 = 7000;

/// For longer than any soak.
const SERVING: ServeSpec = ServeSpec { port: PORT, seconds: 86_400.0 };

/// Vifs for attackers. They are used in turn, so that who attacks was not heard for long.
const ATTACKERS: usize = 30;

/// Vifs at the far end that nobody has, so that both ends of the wire have as many ports.
const SPARE: usize = 29;

/// The weight of who has none in a policy, an attacker's too.
pub const WEIGHT: u32 = 100;

/// What a policy says that changes.
pub struct Settings {
    /// Of the contested link, in Mbit/s.
    pub rate: u32,
    /// Of the two who contest it.
    pub weights: [u32; 2],
}

/// All of it. Dropped, guests end first, then the daemon, then the directory with all sockets goes.
pub struct World {
    guests: Vec<Option<Guest>>,
    pub daemon: Daemon,
    pub settings: Settings,
    pub diary: Arc<Diary>,
    /// Whether it is for hours.
    pub long: bool,
    attackers: usize,
    pub network: Namespace,
    home: TempDir,
}

impl World {
    /// Starts the daemon and boots the guests, all at once; where it is not for hours there is no emulated computer among them.
    ///
    /// # Errors
    /// What could not be booted.
    pub fn build(network: Namespace, long: bool, diary: Arc<Diary>) -> Result<World, Error> {
        for setup in [format!("tuntap add dev {TAP} mode tap"), format!("addr add {HOST}/24 dev {TAP}")] {
            network.ip(&setup);
        }
        network.ip(&format!("link set {TAP} up"));
        network.spawn(|| digest::serve(&SERVING, drop).expect("the host's port is free"));
        let home = tempfile::Builder::new().prefix("fairlane-soak-").tempdir().expect("a temporary directory");
        let settings = Settings { rate: 20, weights: [WEIGHT; 2] };
        let daemon = Daemon::start(home.path(), &policy_text(&settings), |command| spawn(&network, command));
        let guests = PLACES.iter().map(|_| None).collect();
        let mut world = World { guests, daemon, settings, diary, long, attackers: 0, network, home };
        let boots: Vec<usize> = (0..PLACES.len()).filter(|guest| long || PLACES[*guest].kind == Kind::Uml).collect();
        world.boot(&boots)?;
        Ok(world)
    }

    /// Boots guests, and has them hash what comes.
    ///
    /// # Errors
    /// What could not be booted.
    pub fn boot(&mut self, guests: &[usize]) -> Result<(), Error> {
        let spec = |guest: &usize| {
            let Place { name, address, kind, .. } = PLACES[*guest];
            GuestSpec::served(kind, name, self.home.path(), guest_mac(*guest), address)
        };
        let booted = Guest::boot_all(&guests.iter().map(spec).collect::<Vec<_>>())?;
        for (guest, up) in guests.iter().zip(booted) {
            self.guests[*guest] = Some(up);
            // It would send frames to all at times of its own. A kernel without it has no such file.
            let path = "/proc/sys/net/ipv6/conf/all/disable_ipv6".into();
            let _ = self.agent(*guest).run(Command::Write { path, text: "1".to_owned() });
            self.agent(*guest).start_job(Command::DigestServe(SERVING))?.started()?;
        }
        Ok(())
    }

    /// Whether a guest is up.
    pub fn has(&self, guest: usize) -> bool {
        self.guests[guest].is_some()
    }

    /// Those that are up.
    pub fn present(&self) -> Vec<usize> {
        (0..PLACES.len()).filter(|guest| self.has(*guest)).collect()
    }

    pub fn guest(&self, guest: usize) -> &Guest {
        self.guests[guest].as_ref().expect("it is up")
    }

    pub fn agent(&self, guest: usize) -> &Agent {
        self.guest(guest).agent()
    }

    /// Powers a guest off.
    ///
    /// # Errors
    /// It was gone already.
    pub fn power_off(&mut self, guest: usize) -> Result<(), Error> {
        self.guests[guest].take().expect("it is up").stop()
    }

    /// The socket of a vif.
    pub fn socket(&self, vif: &str) -> PathBuf {
        self.home.path().join(format!("{vif}.sock"))
    }

    /// The vif of the next attacker.
    pub fn next_attacker(&mut self) -> String {
        self.attackers += 1;
        attacker(self.attackers % ATTACKERS)
    }

    /// Makes a setting of a vif or link.
    pub fn set(&self, target: &str, setting: &str) {
        self.diary.say(format_args!("set {target} {setting}"));
        let asked = self.daemon.ctl(&["set", target, setting]);
        assert!(asked.status.success(), "set {target} {setting}: {}", String::from_utf8_lossy(&asked.stderr));
    }

    /// Goes over to the policy that these settings make, whatever was set before.
    pub fn reload(&mut self, settings: Settings) {
        self.settings = settings;
        self.diary.say(format_args!("reload: {} Mbit/s, weights {:?}", self.settings.rate, self.settings.weights));
        let file = write_policy(self.home.path(), &policy_text(&self.settings));
        let asked = self.daemon.ctl(&["reload", file.to_str().expect("a temporary directory has a plain name")]);
        assert!(asked.status.success(), "reload: {}", String::from_utf8_lossy(&asked.stderr));
    }

    /// Takes the uplink to the host down for a while.
    pub fn link_down(&self, time: Duration) {
        self.diary.say(format_args!("{TAP} is down for {time:?}"));
        self.network.ip(&format!("link set {TAP} down"));
        thread::sleep(time);
        self.network.ip(&format!("link set {TAP} up"));
    }

    /// Kills the daemon, or ends it as for an upgrade, and starts it again, in the midst of transfers to and from the emulated computer.
    /// All others are booted anew; they ended before, or find out.
    ///
    /// # Errors
    /// What could not be ended or booted.
    pub fn restart(&mut self, random: &mut StdRng) -> Result<(), Error> {
        let (signal, gently) = (*pick(random, &[Signal::SIGKILL, Signal::SIGTERM]), random.random_bool(0.5));
        let emulated: Vec<usize> =
            self.present().into_iter().filter(|guest| PLACES[*guest].kind == Kind::Qemu).collect();
        let others: Vec<usize> = self.present().into_iter().filter(|guest| PLACES[*guest].kind != Kind::Qemu).collect();
        let mut under_way: Vec<Transfer> = Vec::new();
        for guest in emulated {
            under_way.push(transfers::begin(self, random, End::Host, End::Guest(guest))?);
            under_way.push(transfers::begin(self, random, End::Guest(guest), End::Host)?);
        }
        if gently {
            others.iter().try_for_each(|guest| self.power_off(*guest))?;
        }
        thread::sleep(Duration::from_millis(random.random_range(0..1500)));
        self.diary.say(format_args!("{signal}; guests that cannot come back ended before: {gently}"));
        let status = self.daemon.end(signal);
        assert!(signal == Signal::SIGKILL || status.success(), "it ended with {status}\n{}", self.daemon.log());
        others.iter().for_each(|guest| drop(self.guests[*guest].take()));
        thread::sleep(Duration::from_millis(random.random_range(0..1000)));
        let policy = policy_text(&self.settings);
        self.daemon = Daemon::start(self.home.path(), &policy, |command| spawn(&self.network, command));
        self.boot(&others)?;
        under_way.into_iter().for_each(|transfer| transfer.end(&self.diary));
        Ok(())
    }

    /// Powers the guests off, and has the daemon end as if nothing had been.
    ///
    /// # Errors
    /// A guest was gone already.
    pub fn stop(mut self) -> Result<(), Error> {
        self.present().into_iter().try_for_each(|guest| self.power_off(guest))?;
        let status = self.daemon.end(Signal::SIGTERM);
        assert!(status.success(), "the daemon ended with {status}\n{}", self.daemon.log());
        Ok(())
    }
}

/// One of some.
pub fn pick<'a, T>(random: &mut StdRng, some: &'a [T]) -> &'a T {
    &some[random.random_range(0..some.len())]
}

/// A child in the host's network.
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
    for (guest, Place { name, link, .. }) in PLACES.iter().enumerate() {
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
