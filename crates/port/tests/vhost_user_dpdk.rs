//! A guest of DPDK's virtio-user, with split and with packed rings: each frame that it receives it sends back.

mod frontend;

use fairlane_core::packet::Offload;
use fairlane_core::time::Nanos;
use fairlane_port::{Control, Refusal};
use frontend::*;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Entries of the rings, and frames of a test: some rounds of the rings.
const SIZE: u16 = 256;
const FRAMES: u16 = 5000;

/// The most frames on their way: fewer than the rings hold.
const WINDOW: u16 = 128;

/// testpmd with one port, which sends back what it receives.
struct Testpmd(Child);

impl Testpmd {
    /// None if it is not installed.
    fn start(home: &Path, socket: &Path, rings: &str) -> Option<Testpmd> {
        let device = format!("net_virtio_user0,path={},queues=1,queue_size={SIZE},{rings}", socket.display());
        let words = "--no-huge -m 128 --no-pci --no-telemetry --single-file-segments --file-prefix=guest";
        let forward = "--forward-mode=io --port-topology=loop --auto-start --total-num-mbufs=4096 --no-flush-rx";
        let log = std::fs::File::create(home.join("testpmd.log")).unwrap();
        let child = Command::new("dpdk-testpmd")
            .args(words.split(' '))
            .args(["--vdev", &device, "--"])
            .args(forward.split(' '))
            // The directory for DPDK's locks, which would otherwise be in /var/run.
            .env("RUNTIME_DIRECTORY", home)
            // It runs until its standard input ends.
            .stdin(Stdio::piped())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn();
        match child {
            Ok(child) => Some(Testpmd(child)),
            Err(error) => {
                // Past the test harness, which shows only what failed.
                let _ = writeln!(std::io::stderr(), "SKIPPED: this test needs dpdk-testpmd (dpdk-dev): {error}");
                None
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A frame with a number.
fn numbered(number: u16) -> Vec<u8> {
    let mut frame = frame(number as u8, 60 + usize::from(number) * 7 % 1400);
    frame[12..16].copy_from_slice(&[8, 0, (number >> 8) as u8, number as u8]);
    frame
}

/// Every frame comes back once, whole and in order.
fn come_back(rings: &str) {
    let (dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let Some(_testpmd) = Testpmd::start(dir.path(), &path, rings) else { return };
    let deadline = Instant::now() + Duration::from_secs(60);
    let check = |backend: &Backend, sent: u16, back: u16| {
        let log = || std::fs::read_to_string(dir.path().join("testpmd.log")).unwrap_or_default();
        let status = backend.port.status();
        assert!(Instant::now() < deadline, "{rings}: {sent} were sent, {back} came back, {status:?}: {}", log());
    };
    // The driver sets its rings up several times before it forwards: what is sent until then is lost.
    let first = frame(0, 60);
    while !backend.take().iter().any(|(got, _)| *got == first) {
        check(&backend, 0, 0);
        while backend.handle(Nanos::from_millis(20)) > 0 {}
        backend.put(&first, Offload::default());
    }
    let (mut sent, mut back) = (0, 0);
    while back < FRAMES {
        check(&backend, sent, back);
        backend.settle();
        while sent < FRAMES && sent - back < WINDOW {
            match backend.put(&numbered(sent), Offload::default()).refusal {
                None => sent += 1,
                Some(Refusal::Full) => break,
                refusal => panic!("{refusal:?}"),
            }
        }
        for (got, _) in backend.take().into_iter().filter(|(got, _)| *got != first) {
            assert_eq!(got, numbered(back), "frame {back}");
            back += 1;
        }
    }
}

#[test]
fn frames_come_back_from_split_rings() {
    come_back("packed_vq=0");
}

#[test]
fn frames_come_back_from_packed_rings() {
    come_back("packed_vq=1,in_order=0,mrg_rxbuf=1");
    come_back("packed_vq=1,in_order=0,mrg_rxbuf=0");
}

#[test]
fn frames_come_back_from_packed_rings_in_order() {
    come_back("packed_vq=1,in_order=1,mrg_rxbuf=1");
    come_back("packed_vq=1,in_order=1,mrg_rxbuf=0,vectorized=1");
}
