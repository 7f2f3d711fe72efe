//! A link without a rate, on which nothing but the worker's time is shared: an honest frontend keeps its ring full, alone and beside a
//! deed in turn.
//!
//! What it has carried is compared by the time that the worker ran, which is what there is to share, whatever else this computer does.

use crate::daemon::{Daemon, vif, vif_text};
use crate::frontend::*;
use crate::hostile::attack::{Attack, ethernet};
use crate::hostile::deeds::{DEEDS, Deed};
use crate::hostile::{NOBODY, attacker, mac};
use crate::{KEPT, median};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The deeds that take most of a worker's time, of those that need nobody to send to them: who sends has a share as well.
const DEAREST: [&str; 5] = [
    "kicks without end",
    "flood of memory tables",
    "storm of logged pages",
    "cheap and dear frames",
    "smallest frames",
];

/// How long is measured, alone and beside a deed, and how often in turn.
const WINDOW: Duration = Duration::from_millis(100);
const TURNS: usize = 5;

/// The honest ones: who sends and who takes.
const NEIGHBOUR: &str = "sender";
const TAKER: &str = "receiver";
const SENDS: [u8; 6] = [0x52, 0x54, 0, 0x84, 0, 1];
const TAKES: [u8; 6] = [0x52, 0x54, 0, 0x84, 0, 2];

/// Entries of their rings, as many as a frontend's memory has place for: more than a worker passes while their owners sleep.
const ENTRIES: u16 = 1024;

pub fn no_deed_takes_more_than_its_part() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let hostile =
        (0..DEAREST.len()).map(attacker).chain([NOBODY.to_owned()]).map(|name| vif_text(&name, "open", mac(&name)));
    let honest = [(NEIGHBOUR, SENDS), (TAKER, TAKES)].map(|(name, mac)| vif_text(name, "open", mac));
    let vifs: String = honest.into_iter().chain(hostile).collect();
    let policy = format!("control = \"DIR/control.sock\"\n[[link]]\nname = \"open\"\n{vifs}");
    let daemon = Daemon::start(home.path(), &policy, |mut command| command.spawn());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (name, queue) in [(TAKER, 0), (NEIGHBOUR, 1)] {
            let (over, home) = (&over, home.path());
            scope.spawn(move || keep_full(&mut frontend(home, name), queue, over));
        }
        let kept = DEAREST.iter().enumerate().map(|(number, name)| {
            let deed = DEEDS.iter().find(|deed| deed.name == *name).expect("a deed of this name");
            let mut kept = beside(&daemon, home.path(), deed, &attacker(number));
            kept.sort_by(f64::total_cmp);
            eprintln!("{name:<28} {:>6.3} {:>6.3} of what it has alone", median(&kept), kept[0]);
            (name, median(&kept))
        });
        let kept: Vec<_> = kept.collect();
        over.store(true, Ordering::Relaxed);
        // Half is the attacker's, if it takes so much.
        let harm: Vec<_> = kept.into_iter().filter(|(_, kept)| *kept < KEPT / 2.0).collect();
        assert!(harm.is_empty(), "parts of what it has alone: {harm:?}");
    });
}

/// What the neighbour keeps of what it has alone, a turn each.
fn beside(daemon: &Daemon, home: &Path, deed: &'static Deed, attacker: &str) -> Vec<f64> {
    let socket = home.join(format!("{attacker}.sock"));
    let turn = |_| {
        let alone = carried(daemon);
        let attack = Attack::begin(deed, socket.clone(), mac(attacker));
        thread::sleep(WINDOW / 3);
        let beside = carried(daemon);
        attack.end();
        beside / alone
    };
    (0..TURNS).map(turn).collect()
}

/// Frames of the neighbour that are carried in a nanosecond of the worker.
fn carried(daemon: &Daemon) -> f64 {
    let look = || (vif(&daemon.snapshot(), NEIGHBOUR).sent_frames, worker_time(daemon.pid()));
    let (before, began) = look();
    thread::sleep(WINDOW);
    let (after, ended) = look();
    (after - before) as f64 / (ended - began) as f64
}

/// How long the only worker of a process ran, in nanoseconds.
fn worker_time(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let read = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let tasks = tasks.map(|task| task.expect("a thread").path());
    let mut workers = tasks.filter(|task| read(task, "comm").trim() == "fairlane-worker");
    let worker = workers.next().expect("it has a worker");
    let run = read(&worker, "schedstat");
    run.split(' ').next().and_then(|time| time.parse().ok()).expect("the first number is the time that it ran")
}

/// A frontend all of whose entries are the same: a buffer to be written to, and a frame from the one to the other.
fn frontend(home: &Path, name: &str) -> Frontend {
    let mut frontend = Frontend::connect(&home.join(format!("{name}.sock")), ENTRIES);
    let frame = ethernet(SENDS, TAKES, 1514);
    frontend.write(BUFFERS, &[&NO_HEADER[..], &frame].concat());
    for index in 0..ENTRIES {
        frontend.descriptor(0, index, BUFFERS + (1 << 20), 2048, WRITE, 0);
        frontend.descriptor(1, index, BUFFERS, (HEADER + frame.len()) as u32, 0, 0);
        (0..2).for_each(|queue| frontend.push(queue, index));
    }
    frontend.set_up(RICH, 2);
    frontend
}

/// Gives back all that was used of a ring, again and again.
fn keep_full(frontend: &mut Frontend, queue: u32, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        frontend.set_available(queue, frontend.used_index(queue).wrapping_add(ENTRIES));
        frontend.kick(queue);
        thread::sleep(Duration::from_micros(300));
    }
}
