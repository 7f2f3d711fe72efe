//! A link without a rate, on which only the worker's time is shared: an honest frontend keeps its ring full, alternately alone and
//! during an attack.
//!
//! Its frames are counted per time that the worker ran, so other work of this machine does not matter.

use crate::daemon::{Daemon, vif, vif_text};
use crate::frontend::*;
use crate::hostile::attack::{Attack, ethernet};
use crate::hostile::cases::CASES;
use crate::hostile::{NOBODY, attacker, mac};
use crate::median;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The attacks that take most of a worker's time, without those that need a sender, which would have a share as well.
const EXPENSIVE: [&str; 4] =
    ["flood of memory tables", "storm of logged pages", "cheap and expensive frames", "smallest frames"];

/// Length of a measurement, alone and during an attack, and number of repetitions.
const WINDOW: Duration = Duration::from_millis(100);
const TURNS: usize = 3;

/// Smallest fraction of its half that the neighbour must keep. It is lower than on a link with a rate, where the worker has time to spare:
/// here the neighbour also pays for work that the worker does for nobody, such as waking up, and for caches that the attacker has used.
const MIN_KEPT: f64 = 0.8;

/// The vif and MAC address of the honest frontend.
const NEIGHBOUR: &str = "sender";
const NEIGHBOUR_MAC: [u8; 6] = [0x52, 0x54, 0, 0x84, 0, 1];

/// The number of other vifs. All frames have an unknown destination and are flooded to all of these, of which at most one is connected:
/// so frames take the worker's time, but wait for no receiver.
const OTHERS: usize = 100;

/// Ring size, the largest that fits into a frontend's memory: more frames than a worker forwards while the frontends sleep.
const ENTRIES: u16 = 1024;

pub(crate) fn no_attack_takes_more_than_its_share() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let others: String = (0..OTHERS).map(attacker).map(|name| vif_text(&name, "open", mac(&name))).collect();
    let vifs = vif_text(NEIGHBOUR, "open", NEIGHBOUR_MAC) + &others;
    let policy = format!("control = \"DIR/control.sock\"\n[[link]]\nname = \"open\"\n{vifs}");
    let daemon = Daemon::start(home.path(), &policy, |mut command| command.spawn());
    let socket = |vif: &str| home.path().join(format!("{vif}.sock"));
    let _neighbour = FullRing::keep(honest(&socket(NEIGHBOUR)));

    let mut harm = Vec::new();
    let mut judge = |name: &str, measure: &dyn Fn() -> Vec<f64>| {
        // Half is the attacker's, if it uses that much. If it seems to use more, the measurement is repeated: other work of this machine at
        // the wrong moment looks the same.
        for _ in 0..3 {
            let mut kept = measure();
            kept.sort_by(f64::total_cmp);
            eprintln!("{name:<28} {:>6.3} {:>6.3} of its frames alone", median(&kept), kept[0]);
            if median(&kept) >= MIN_KEPT / 2.0 {
                return;
            }
        }
        harm.push(name.to_owned());
    };
    for (number, name) in EXPENSIVE.into_iter().enumerate() {
        let case = CASES.iter().find(|case| case.name == name).expect("an attack of this name");
        let vif = attacker(number);
        let start = || Attack::start(case, socket(&vif), mac(&vif));
        judge(name, &|| kept_during(&daemon, start, |attack| drop(attack.end())));
    }
    let vif = attacker(EXPENSIVE.len());
    judge("endless expensive frames", &|| {
        kept_during(&daemon, || FullRing::keep(expensive(&socket(&vif), mac(&vif))), drop)
    });
    assert!(harm.is_empty(), "the neighbour keeps less than {MIN_KEPT} of half of its frames alone, during {harm:?}");
}

/// The neighbour's frames during an attack, as fractions of its frames alone, one per repetition.
fn kept_during<A>(daemon: &Daemon, start: impl Fn() -> A, end: impl Fn(A)) -> Vec<f64> {
    let turn = |_| {
        let alone = carried(daemon);
        let attack = start();
        thread::sleep(WINDOW / 2);
        let during = carried(daemon);
        end(attack);
        during / alone
    };
    (0..TURNS).map(turn).collect()
}

/// Frames of the neighbour that are forwarded per nanosecond of worker time.
fn carried(daemon: &Daemon) -> f64 {
    let read = || (vif(&daemon.snapshot(), NEIGHBOUR).sent_frames, worker_time(daemon.pid()));
    let (before, began) = read();
    thread::sleep(WINDOW);
    let (after, ended) = read();
    (after - before) as f64 / (ended - began) as f64
}

/// How long the only worker thread of a process ran, in nanoseconds.
fn worker_time(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the daemon runs");
    let read = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let tasks = tasks.map(|task| task.expect("a thread").path());
    let mut workers = tasks.filter(|task| read(task, "comm").trim() == "fairlane-worker");
    let worker = workers.next().expect("it has a worker");
    let run = read(&worker, "schedstat");
    run.split(' ').next().and_then(|time| time.parse().ok()).expect("the first number is the run time")
}

/// A frontend that sends full-sized frames.
fn honest(socket: &Path) -> Frontend {
    let mut frontend = Frontend::connect(socket, ENTRIES);
    let frame = [&NO_HEADER[..], &ethernet(NEIGHBOUR_MAC, mac(NOBODY), 1514)].concat();
    frontend.write(BUFFERS, &frame);
    for index in 0..ENTRIES {
        frontend.descriptor(1, index, BUFFERS, frame.len() as u32, 0, 0);
        frontend.push(1, index);
    }
    frontend.set_up(RICH, 2);
    frontend
}

/// A frontend whose frames have the largest number of segments.
fn expensive(socket: &Path, from: [u8; 6]) -> Frontend {
    const TABLE: u64 = BUFFERS + (4 << 20);
    const SEGMENTS: u16 = 1000;
    let mut frontend = Frontend::connect(socket, ENTRIES);
    frontend.write(BUFFERS, &[&NO_HEADER[..], &ethernet(from, mac(NOBODY), 1514)].concat());
    // The virtio header and the frame headers share one segment, as the backend requires; the rest has one byte per segment.
    let segment = |number: u16| match number {
        0 => descriptor(GUEST + BUFFERS, 60, NEXT, 1),
        _ => {
            let flags = if number + 1 == SEGMENTS { 0 } else { NEXT };
            descriptor(GUEST + BUFFERS + 60 + u64::from(number), 1, flags, number + 1)
        }
    };
    frontend.write(TABLE, &(0..SEGMENTS).flat_map(segment).collect::<Vec<u8>>());
    for index in 0..ENTRIES {
        frontend.descriptor(1, index, TABLE, u32::from(SEGMENTS) * 16, INDIRECT, 0);
        frontend.push(1, index);
    }
    frontend.set_up(RICH, 2);
    frontend
}

/// A frontend whose transmit ring is kept full with the same frames, until this is dropped.
struct FullRing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FullRing {
    fn keep(mut frontend: Frontend) -> FullRing {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                frontend.set_available(1, frontend.used_index(1).wrapping_add(ENTRIES));
                frontend.kick(1);
                thread::sleep(Duration::from_micros(300));
            }
        });
        FullRing { stop, thread: Some(thread) }
    }
}

impl Drop for FullRing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
