//! A guest that QEMU moves from one host to another while bytes are sent to it: two backends, their uplinks joined by a
//! bridge, and the sender beside them.

use crate::backend::{Backend, wait_for};
use crate::daemon::write_policy;
use crate::namespace::Namespace;
use crate::transfer::HUNG;
use fairlane_lab::{Command, Error, Guest, GuestSpec, Kind, Monitor, Nic, Outcome, Tools};
use fairlane_load::ServeSpec;
use fairlane_load::digest::{Reader, Sender};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LINK: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
uplink = { tap = "TAP" }
"#;

const VIF: &str = r#"[[vif]]
name = "web"
socket = "DIR/web.sock"
mac = "02:00:00:00:09:02"
early_ack = "always"
"#;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];
const PORT: u16 = 7000;

/// Bytes that are sent at once, one after the other: as fast as the guest takes them.
const CHUNK: usize = 64 << 10;

/// Bytes that are sent first of all.
const FIRST: usize = 1000;

/// Bytes a second that QEMU may take to copy the guest's memory, and bytes that are almost all copied.
const QUICKLY: u64 = 128 << 20;
const SLOWLY: u64 = 8 << 20;
const ALMOST: u64 = 16 << 20;

/// A host: a backend whose uplink leads to the bridge.
struct Host {
    backend: Backend,
    place: PathBuf,
}

impl Host {
    fn new(network: &Namespace, place: PathBuf, tap: &str) -> Host {
        std::fs::create_dir(&place).unwrap();
        network.ip(&format!("tuntap add dev {tap} mode tap"));
        network.ip(&format!("link set {tap} master br0 up"));
        write_policy(&place, &(LINK.replace("TAP", tap) + VIF));
        Host { backend: Backend::start(network, &place), place }
    }

    fn guest(&self) -> GuestSpec {
        let name = self.place.file_name().unwrap().to_string_lossy();
        let nic = Nic {
            backend: fairlane_lab::Backend::VhostUser(self.place.join("web.sock")),
            mac: MAC,
            address: GUEST,
            prefix: 24,
            queues: 1,
        };
        GuestSpec {
            name: format!("{name}-{}", std::process::id()),
            kind: Kind::Qemu,
            cpus: 1,
            memory_mib: 96,
            tools: Tools::default(),
            nic: Some(nic),
            monitor: Some(self.place.join("monitor.sock")),
            log: self.place.join("console"),
        }
    }

    fn monitor(&self) -> Result<Monitor, Error> {
        Monitor::connect(&self.guest().name, &self.place.join("monitor.sock"))
    }

    /// ACKs sent for the guest.
    fn early_acks(&self) -> u64 {
        self.backend.vif()["early_ack"]["early_acks"].as_u64().unwrap()
    }

    /// Waits until bytes are acknowledged for the guest here.
    fn accelerates(&self) {
        let is = |flow: &Value| flow["state"] == "active" && flow["early_acks"].as_u64() > Some(0);
        wait_for("an active flow", || self.backend.flows().iter().any(is));
    }
}

/// Sends to the guest: some bytes first, more from `goes` on, no more from `ends` on. Answers how many, if all arrived.
fn send(goes: &AtomicBool, ends: &AtomicBool) -> std::io::Result<usize> {
    let mut random = StdRng::seed_from_u64(1);
    let mut bytes = vec![0; CHUNK];
    random.fill_bytes(&mut bytes);
    let mut sender = Sender::connect((GUEST, PORT).into(), Reader::Late, HUNG)?;
    sender.send(&bytes[..FIRST])?;
    while !goes.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    let mut sent = FIRST;
    while !ends.load(Ordering::Relaxed) {
        random.fill_bytes(&mut bytes);
        sender.send(&bytes)?;
        sent += CHUNK;
    }
    sender.finish().map(|()| sent)
}

/// Everything that was sent arrives, and the flow is accelerated on the new host as it was on the old.
///
/// Much of it is sent when almost all of the guest's memory has been copied, into buffers that the guest has lent before, and lies
/// unread there when it is paused: what the backend wrote and did not log would be wrong on the new host.
pub fn a_guest_is_moved_by_qemu_in_mid_transfer() -> Result<(), Error> {
    let directory = tempfile::tempdir().unwrap();
    let network = Namespace::new().unwrap();
    network.ip("link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0");
    network.ip("addr add 10.9.0.1/24 dev br0");
    network.ip("link set br0 up");
    let [old, new] =
        [("old", "up0"), ("new", "up1")].map(|(name, tap)| Host::new(&network, directory.path().join(name), tap));
    let guest = Guest::boot(&old.guest())?;
    let serving = guest.agent().start_job(Command::DigestServe(ServeSpec { port: PORT, seconds: 600.0 }))?;
    serving.started()?;
    let moved = Guest::receive(&new.guest())?;
    let (mut source, mut target) = (old.monitor()?, new.monitor()?);
    let way = format!("unix:{}", directory.path().join("way.sock").display());
    target.execute("migrate-incoming", json!({ "uri": way }))?;
    let [goes, ends] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (go, end) = (goes.clone(), ends.clone());
    let sending = network.spawn(move || send(&go, &end));
    old.accelerates();
    // QEMU 7.2 loses what an emulated processor writes behind a look at the log of its pages (seen: the guest's clock is older at the
    // new host; 9.0 has "physmem: Fix migration dirty bitmap coherency with TCG memory access"). So the guest is paused whenever
    // QEMU looks.
    source.execute("stop", json!({}))?;
    // It is not to be content with what is left to copy before.
    source.execute("migrate-set-parameters", json!({ "downtime-limit": 1 }))?;
    source.execute("migrate", json!({ "uri": way }))?;
    wait_for("the copy to begin", || remaining(&mut source) < u64::MAX);
    source.execute("cont", json!({}))?;
    wait_for("almost all of the memory to be copied", || remaining(&mut source) < ALMOST);
    source.execute("migrate-set-parameters", json!({ "max-bandwidth": SLOWLY }))?;
    let before = old.early_acks();
    goes.store(true, Ordering::Relaxed);
    wait_for("bytes on their way into the guest", || old.early_acks() > before);
    source.execute("stop", json!({}))?;
    let paused = Instant::now();

    let owed = old.backend.owed();
    let exported = old.backend.ctl("flows export web DIR/flows");
    // Each reads and writes at its own place alone.
    std::fs::copy(old.place.join("flows"), new.place.join("flows")).unwrap();
    assert_eq!(new.backend.ctl("flows import web DIR/flows"), "1 flow taken over\n");
    assert_eq!(new.backend.owed(), owed);
    source.execute("migrate-set-parameters", json!({ "max-bandwidth": QUICKLY }))?;
    source.await_completion()?;
    target.execute("cont", json!({}))?;
    let away = paused.elapsed().as_secs_f64() * 1e3;
    drop((source, guest));
    write_policy(&old.place, &LINK.replace("TAP", "up0"));
    old.backend.ctl("reload DIR/policy.toml");
    assert_eq!(old.backend.flows(), Vec::<Value>::new());

    new.accelerates();
    let Outcome::Hello { .. } = moved.agent().run(Command::Hello)? else { panic!("hello") };
    ends.store(true, Ordering::Relaxed);
    let sent = sending.join().unwrap().unwrap();
    let early = new.backend.vif()["early_ack"].take();
    let exported = exported.trim();
    eprintln!("{sent} bytes; paused for {away:.0} ms with {owed} bytes owed, {exported}; {early}");
    assert_eq!(early["resets"], 0, "{early}");
    moved.stop()
}

/// Bytes of the guest's memory that are still to be copied; all that can be before it began.
fn remaining(source: &mut Monitor) -> u64 {
    let migration = source.execute("query-migrate", json!({})).unwrap();
    migration["ram"]["remaining"].as_u64().unwrap_or(u64::MAX)
}
