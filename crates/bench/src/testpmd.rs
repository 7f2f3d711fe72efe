//! DPDK's testpmd, as the guests and as a peer.
//!
//! The guests are virtio-user frontends of one process on core 1. They also measure every backend in the same way: frames that a
//! frontend sent have been taken by the backend, except for at most a ring's length, and frames that it received were delivered.

use crate::machine::{self, Missing, REAL_TIME};
use crate::process::Process;
use crate::telemetry::Telemetry;
use anyhow::{Context, Result, ensure};
use fairlane_core::packet::Mac;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The core of backends and the core of guests.
pub(crate) const BACKEND: usize = 0;
const GUESTS: usize = 1;

/// How long to wait until a program is ready and frames move.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Frames after which guests are known to move them: more than all rings hold.
const MOVING: u64 = 100_000;

/// Finds testpmd.
///
/// # Errors
/// [`Missing`].
pub(crate) fn find() -> Result<PathBuf, Missing> {
    machine::find("dpdk-testpmd", "dpdk-dev")
}

/// The MAC address of a guest, counted from 0.
pub(crate) fn mac(guest: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, guest as u8 + 1]
}

/// The sockets of some guests in a directory.
pub(crate) fn sockets(home: &Path, guests: usize) -> Vec<PathBuf> {
    (0..guests).map(|guest| home.join(format!("vhost{guest}"))).collect()
}

/// The sockets with the MAC addresses of their guests.
pub(crate) fn addressed(sockets: &[PathBuf]) -> Vec<(PathBuf, [u8; 6])> {
    sockets.iter().cloned().enumerate().map(|(guest, socket)| (socket, mac(guest))).collect()
}

/// What the guests do.
#[derive(Clone, Copy)]
pub(crate) enum Traffic {
    /// Every guest sends, and receives nothing.
    Send,
    /// The two guests send to each other.
    Exchange,
}

/// Starts guests that connect to the sockets.
///
/// # Errors
/// The program cannot be started.
pub(crate) fn guests(home: &Path, sockets: &[PathBuf], traffic: Traffic, real_time: bool) -> Result<Guests> {
    let mut devices = Vec::new();
    let mut options = vec!["--single-file-segments".to_owned(), "--".to_owned()];
    for (guest, socket) in sockets.iter().enumerate() {
        let (path, mac) = (socket.display(), Mac(mac(guest)));
        devices.push(format!("net_virtio_user{guest},path={path},queues=1,queue_size=1024,mac={mac}"));
        if let Traffic::Exchange = traffic {
            // The guest's forwarding partner generates frames without end, and discards those that the guest received.
            devices.push(format!("net_null{guest}"));
        }
    }
    match traffic {
        Traffic::Send => options.push("--forward-mode=txonly".to_owned()),
        Traffic::Exchange => {
            options.push("--forward-mode=mac".to_owned());
            options.extend((0..2).map(|guest| format!("--eth-peer={},{}", 2 * guest, Mac(mac(1 - guest)))));
        }
    }
    let words = words("guests", GUESTS, devices, options)?;
    let process = start(home, &words, real_time)?;
    Guests::of(process, home, sockets.len(), traffic, real_time)
}

/// Starts DPDK's vhost backend, and waits for its sockets.
///
/// # Errors
/// It does not start.
pub(crate) fn backend(home: &Path, sockets: &[PathBuf], mode: &str, real_time: bool) -> Result<Process> {
    let mut process = start(home, &backend_words(sockets, mode)?, real_time)?;
    process.ready("its sockets were there", STARTUP_TIMEOUT, || sockets.iter().all(|socket| socket.exists()))?;
    set_pollers(&process, real_time)?;
    Ok(process)
}

/// The words that start DPDK's vhost backend in a forwarding mode of testpmd.
///
/// # Errors
/// [`Missing`].
pub(crate) fn backend_words(sockets: &[PathBuf], mode: &str) -> Result<Vec<String>> {
    let device = |(port, socket): (usize, &PathBuf)| format!("net_vhost{port},iface={}", socket.display());
    let devices = sockets.iter().enumerate().map(device).collect();
    let options = vec!["--no-telemetry".to_owned(), "--".to_owned(), format!("--forward-mode={mode}")];
    words("backend", BACKEND, devices, options)
}

fn words(prefix: &str, core: usize, devices: Vec<String>, options: Vec<String>) -> Result<Vec<String>> {
    let mut words = vec![find()?.display().to_string(), "--lcores".to_owned(), format!("0@{core},1@{core}")];
    words.extend(["--no-huge", "-m", "256", "--no-pci"].map(str::to_owned));
    words.push(format!("--file-prefix={prefix}"));
    for device in devices {
        words.extend(["--vdev".to_owned(), device]);
    }
    words.extend(options);
    // The mbufs must fit into the memory. Without a period for statistics, the program would end with its input.
    words.extend(["--auto-start", "--total-num-mbufs=32768", "--stats-period", "3600"].map(str::to_owned));
    Ok(words)
}

fn start(home: &Path, words: &[String], real_time: bool) -> Result<Process> {
    let first = if real_time { &REAL_TIME[..] } else { &[] };
    let words: Vec<&str> = first.iter().copied().chain(words.iter().map(String::as_str)).collect();
    Process::start(&words, &environment(home))
}

/// The directory for DPDK's locks and telemetry, which would otherwise be in /var/run.
pub(crate) fn environment(home: &Path) -> [(&str, &OsStr); 1] {
    [("RUNTIME_DIRECTORY", home.as_os_str())]
}

/// Lowers the threads that forward, so that those that handle messages and telemetry need not wait for them.
fn set_pollers(process: &Process, real_time: bool) -> Result<()> {
    if real_time {
        // The names of DPDK 22.11, and since 23.11.
        let threads = ["rte-worker", "dpdk-worker"].map(|prefix| process.threads(prefix)).concat();
        ensure!(!threads.is_empty(), "testpmd has no thread that forwards");
        threads.iter().try_for_each(|thread| machine::make_poller(thread))?;
    }
    Ok(())
}

/// Running guests.
pub(crate) struct Guests {
    process: Process,
    telemetry: Telemetry,
    count: usize,
    traffic: Traffic,
}

impl Guests {
    fn of(mut process: Process, home: &Path, count: usize, traffic: Traffic, real_time: bool) -> Result<Guests> {
        let path = home.join("dpdk/guests/dpdk_telemetry.v2");
        let mut telemetry = None;
        process.ready("its telemetry answered", STARTUP_TIMEOUT, || {
            telemetry = Telemetry::connect(&path).ok();
            telemetry.is_some()
        })?;
        set_pollers(&process, real_time)?;
        let telemetry = telemetry.context("testpmd has telemetry")?;
        Ok(Guests { process, telemetry, count, traffic })
    }

    /// Waits until frames move.
    ///
    /// # Errors
    /// None do, or the program ended.
    pub(crate) fn moving(&mut self) -> Result<()> {
        let Guests { process, telemetry, count, traffic } = self;
        let before = frames(telemetry, *count, *traffic)?;
        process.ready("frames moved", STARTUP_TIMEOUT, || {
            frames(telemetry, *count, *traffic).is_ok_and(|frames| frames > before + MOVING)
        })
    }

    /// Frames of all guests together since they were started, and when.
    ///
    /// # Errors
    /// The program ended.
    pub(crate) fn frames(&self) -> Result<(u64, Instant)> {
        Ok((frames(&self.telemetry, self.count, self.traffic)?, Instant::now()))
    }

    /// Stops all guests.
    ///
    /// # Errors
    /// The program ended.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        self.process.suspend()
    }

    /// Lets all guests continue.
    ///
    /// # Errors
    /// The program ended.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.process.resume()
    }
}

/// Frames that all guests sent, or received.
fn frames(telemetry: &Telemetry, count: usize, traffic: Traffic) -> Result<u64> {
    // The guests' forwarding partners are ports as well.
    let (counter, step) = match traffic {
        Traffic::Send => ("opackets", 1),
        Traffic::Exchange => ("ipackets", 2),
    };
    (0..count).map(|guest| telemetry.counter(guest * step, counter)).sum()
}
