//! DPDK's testpmd, as the guests and as a peer.
//!
//! The guests are virtio-user frontends of one process on core 1. They also measure every backend in the same way: frames that a
//! frontend sent have been taken by the backend, except for at most a ring's length, and frames that it received were delivered.

use crate::machine::{self, Missing, REAL_TIME};
use crate::process::Process;
use anyhow::{Result, ensure};
use fairlane_core::packet::Mac;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The core of backends and the core of guests.
pub(crate) const BACKEND: usize = 0;
const GUESTS: usize = 1;

/// How long to wait until a program is ready and frames move.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(20);

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
    let process = start(home, "guests", GUESTS, devices, options, real_time)?;
    Ok(Guests { process, count: sockets.len(), traffic })
}

/// Starts DPDK's vhost backend, and waits for its sockets.
///
/// # Errors
/// It does not start.
pub(crate) fn backend(home: &Path, sockets: &[PathBuf], mode: &str, real_time: bool) -> Result<Process> {
    let device = |(port, socket): (usize, &PathBuf)| format!("net_vhost{port},iface={}", socket.display());
    let devices = sockets.iter().enumerate().map(device).collect();
    let options = vec!["--".to_owned(), format!("--forward-mode={mode}")];
    let mut process = start(home, "backend", BACKEND, devices, options, real_time)?;
    process.ready("its sockets were there", STARTUP_TIMEOUT, || sockets.iter().all(|socket| socket.exists()))?;
    Ok(process)
}

fn start(
    home: &Path,
    prefix: &str,
    core: usize,
    devices: Vec<String>,
    options: Vec<String>,
    real_time: bool,
) -> Result<Process> {
    let mut words: Vec<String> = Vec::new();
    if real_time {
        words.extend(REAL_TIME.map(str::to_owned));
    }
    words.extend([find()?.display().to_string(), "--lcores".to_owned(), format!("0@{core},1@{core}")]);
    words.extend(["--no-huge", "-m", "256", "--no-pci", "--no-telemetry"].map(str::to_owned));
    words.push(format!("--file-prefix={prefix}"));
    for device in devices {
        words.extend(["--vdev".to_owned(), device]);
    }
    words.extend(options);
    // The mbufs must fit into the memory.
    words.extend(["--auto-start", "--total-num-mbufs=32768", "--stats-period", "1"].map(str::to_owned));
    // The directory for DPDK's locks, which would otherwise be in /var/run.
    Process::start(&words, &[("RUNTIME_DIRECTORY", OsStr::new(home))])
}

/// Running guests.
pub(crate) struct Guests {
    process: Process,
    count: usize,
    traffic: Traffic,
}

impl Guests {
    /// Frames per second of all guests together, over some seconds of steady traffic.
    ///
    /// # Errors
    /// Nothing moves, or the program ended.
    pub(crate) fn rate(&mut self, seconds: u32) -> Result<f64> {
        let start = Instant::now();
        while self.period(start + STARTUP_TIMEOUT)? == 0.0 {
            ensure!(start.elapsed() < STARTUP_TIMEOUT, "no frame moved within {} s", STARTUP_TIMEOUT.as_secs());
        }
        // The first period with frames may have begun without frames.
        self.period(Instant::now() + STARTUP_TIMEOUT)?;
        let mut sum = 0.0;
        for _ in 0..seconds {
            sum += self.period(Instant::now() + STARTUP_TIMEOUT)?;
        }
        Ok(sum / f64::from(seconds))
    }

    /// Frames per second in the next period, which lasts about a second by the program's clock.
    fn period(&mut self, deadline: Instant) -> Result<f64> {
        // The guests' forwarding partners are ports as well.
        let (figure, step) = match self.traffic {
            Traffic::Send => ("Tx-pps:", 1),
            Traffic::Exchange => ("Rx-pps:", 2),
        };
        let (mut seen, mut sum) = (0, 0.0);
        while seen < self.count * step {
            let line = self.process.line(deadline)?;
            let rate = line.trim_start().strip_prefix(figure).and_then(|rest| rest.split_whitespace().next());
            if let Some(rate) = rate {
                if seen % step == 0 {
                    sum += rate.parse::<f64>()?;
                }
                seen += 1;
            }
        }
        Ok(sum)
    }
}
