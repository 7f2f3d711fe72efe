//! A link without a rate, on which nothing but the worker's time is shared: an honest frontend keeps its ring full, alone and beside a
//! deed in turn.
//!
//! What it has carried is compared by the time that the worker ran, which is what there is to share, whatever else this computer does.

use crate::daemon::{Daemon, vif, vif_text};
use crate::frontend::*;
use crate::hostile::attack::{Attack, ethernet};
use crate::hostile::deeds::DEEDS;
use crate::hostile::{NOBODY, attacker, mac};
use crate::median;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The deeds that take most of a worker's time, of those that need nobody to send to them: who sends has a share as well.
const DEAREST: [&str; 4] =
    ["flood of memory tables", "storm of logged pages", "cheap and dear frames", "smallest frames"];

/// How long is measured, alone and beside a deed, and how often in turn.
const WINDOW: Duration = Duration::from_millis(100);
const TURNS: usize = 3;

/// What it keeps of its half at least. On a link with a rate, where the worker has time to spare, that is more: here it also pays for what
/// the worker does for nobody, such as to wake, and for caches that an attacker has used.
const KEPT: f64 = 0.8;

/// The honest one.
const NEIGHBOUR: &str = "sender";
const SENDS: [u8; 6] = [0x52, 0x54, 0, 0x84, 0, 1];

/// The other vifs. All frames are for nobody that is known, and so for all of these, of which one at most is connected: they take the
/// worker's time, and wait for no receiver.
const OTHERS: usize = 100;

/// Entries of rings, as many as a frontend's memory has place for: more than a worker passes while their owners sleep.
const ENTRIES: u16 = 1024;

pub fn no_deed_takes_more_than_its_part() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let others: String = (0..OTHERS).map(attacker).map(|name| vif_text(&name, "open", mac(&name))).collect();
    let vifs = vif_text(NEIGHBOUR, "open", SENDS) + &others;
    let policy = format!("control = \"DIR/control.sock\"\n[[link]]\nname = \"open\"\n{vifs}");
    let daemon = Daemon::start(home.path(), &policy, |mut command| command.spawn());
    let socket = |vif: &str| home.path().join(format!("{vif}.sock"));
    let _neighbour = Full::keep(honest(&socket(NEIGHBOUR)));

    let mut harm = Vec::new();
    let mut judge = |name: &str, measure: &dyn Fn() -> Vec<f64>| {
        // Half is the attacker's, if it takes so much. Again where it seems to take more: a computer that gave its CPUs to others at
        // the wrong moment looks the same.
        for _ in 0..3 {
            let mut kept = measure();
            kept.sort_by(f64::total_cmp);
            eprintln!("{name:<28} {:>6.3} {:>6.3} of what it has alone", median(&kept), kept[0]);
            if median(&kept) >= KEPT / 2.0 {
                return;
            }
        }
        harm.push(name.to_owned());
    };
    for (number, name) in DEAREST.into_iter().enumerate() {
        let deed = DEEDS.iter().find(|deed| deed.name == name).expect("a deed of this name");
        let vif = attacker(number);
        let begin = || Attack::begin(deed, socket(&vif), mac(&vif));
        judge(name, &|| kept_beside(&daemon, begin, |attack| drop(attack.end())));
    }
    let vif = attacker(DEAREST.len());
    judge("dear frames without end", &|| kept_beside(&daemon, || Full::keep(dear(&socket(&vif), mac(&vif))), drop));
    assert!(harm.is_empty(), "less than {KEPT} of half of what it has alone is left beside {harm:?}");
}

/// What the neighbour keeps of what it has alone, a turn each.
fn kept_beside<A>(daemon: &Daemon, begin: impl Fn() -> A, end: impl Fn(A)) -> Vec<f64> {
    let turn = |_| {
        let alone = carried(daemon);
        let attack = begin();
        thread::sleep(WINDOW / 2);
        let beside = carried(daemon);
        end(attack);
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

/// A frontend that sends full frames.
fn honest(socket: &Path) -> Frontend {
    let mut frontend = Frontend::connect(socket, ENTRIES);
    let frame = [&NO_HEADER[..], &ethernet(SENDS, mac(NOBODY), 1514)].concat();
    frontend.write(BUFFERS, &frame);
    for index in 0..ENTRIES {
        frontend.descriptor(1, index, BUFFERS, frame.len() as u32, 0, 0);
        frontend.push(1, index);
    }
    frontend.set_up(RICH, 2);
    frontend
}

/// One all of whose frames are of as many pieces as there may be.
fn dear(socket: &Path, from: [u8; 6]) -> Frontend {
    const TABLE: u64 = BUFFERS + (4 << 20);
    const PIECES: u16 = 1000;
    let mut frontend = Frontend::connect(socket, ENTRIES);
    frontend.write(BUFFERS, &[&NO_HEADER[..], &ethernet(from, mac(NOBODY), 1514)].concat());
    // Header and head in one piece, as that must hold what is looked at; the rest byte by byte.
    let piece = |number: u16| match number {
        0 => descriptor(GUEST + BUFFERS, 60, NEXT, 1),
        _ => {
            let flags = if number + 1 == PIECES { 0 } else { NEXT };
            descriptor(GUEST + BUFFERS + 60 + u64::from(number), 1, flags, number + 1)
        }
    };
    frontend.write(TABLE, &(0..PIECES).flat_map(piece).collect::<Vec<u8>>());
    for index in 0..ENTRIES {
        frontend.descriptor(1, index, TABLE, u32::from(PIECES) * 16, INDIRECT, 0);
        frontend.push(1, index);
    }
    frontend.set_up(RICH, 2);
    frontend
}

/// A frontend whose transmit ring is filled with the same again and again, until this is dropped.
struct Full {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Full {
    fn keep(mut frontend: Frontend) -> Full {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                frontend.set_available(1, frontend.used_index(1).wrapping_add(ENTRIES));
                frontend.kick(1);
                thread::sleep(Duration::from_micros(300));
            }
        });
        Full { over, thread: Some(thread) }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
