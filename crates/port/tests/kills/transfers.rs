//! Transfers between two ends of TCP, under any network and any guest, through a backend that is killed again and again after random stores.
//!
//! Mostly the backend is this process. Now and then what is to be done next is left to a child that [ends](killed) at some store; what it
//! said and left is taken up. At the end both streams are what was sent, byte by byte; nobody is reset, and there is an end.
//!
//! `FAIRLANE_TRANSFERS=10000` in the environment makes more of it.

use crate::killed;
use crate::model::{Case, Model, Outcome, case};
use crate::shared::shared;
use fairlane_core::ack::{Block, EarlyAck, Flow, Memory};
use fairlane_core::time::Nanos;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use rand::RngExt;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, ptr, thread};

const FLOWS: usize = 2;
const BLOCKS: usize = 64;

/// Steps between two kills at most.
const STEPS: usize = 150;

/// A transfer that takes longer hangs.
const HUNG: Nanos = Nanos::from_millis(600_000);

/// Transfers that are under way at a time.
const THREADS: u32 = 8;

/// What is kept over the end of a process.
#[repr(C, align(4096))]
struct Kept {
    flows: [Flow; FLOWS],
    blocks: [Block; BLOCKS],
}

/// Bytes of an outcome at most.
const LONGEST: usize = 2048;

/// Outcomes of one piece of work at most: of a burst, or as many frames as a ring holds.
const MOST: usize = 64;

/// What a process said before it ended.
#[repr(C)]
struct Told {
    count: AtomicU32,
    outcomes: [(u32, u32, [u8; LONGEST]); MOST],
}

/// Both, for one transfer after the other.
struct Ground {
    kept: *mut Kept,
    told: *mut Told,
}

impl Ground {
    fn new() -> Ground {
        // SAFETY: flows, blocks, and what is told are integers alone.
        unsafe { Ground { kept: shared(), told: shared() } }
    }

    /// The memory that early ack works in, with room for so many blocks.
    fn memory<'m>(&mut self, blocks: usize) -> Memory<'m> {
        // SAFETY: it is mapped for as long as the process lives, and every pattern of bits is a flow or a block. There is one at a time: who
        // asks has dropped what it made of the last, or is a child, whose parent waits for its end.
        let Kept { flows, blocks: all } = unsafe { &mut *self.kept };
        Memory { flows, blocks: &mut all[..blocks] }
    }

    fn range(&self) -> Range<usize> {
        self.kept as usize..self.kept as usize + size_of::<Kept>()
    }

    /// Says what came of some work: it is said when all of it is there.
    fn tell(&self, outcome: Outcome) {
        let (kind, frame) = match outcome {
            Outcome::Ack(frame) => (0, frame),
            Outcome::Passed(frame) => (1, frame),
            Outcome::Dropped => (2, Vec::new()),
            Outcome::Again(frame) => (3, frame),
        };
        // SAFETY: one process at a time works on it; the number is atomic.
        unsafe {
            let count = &(*self.told).count;
            let at = count.load(Ordering::Relaxed);
            let place = &raw mut (*self.told).outcomes[at as usize];
            (*place).0 = kind;
            (*place).1 = frame.len() as u32;
            (&mut (*place).2)[..frame.len()].copy_from_slice(&frame);
            count.store(at + 1, Ordering::Release);
        }
    }

    /// What was said since this was asked last.
    fn heard(&self) -> Vec<Outcome> {
        // SAFETY: as above; who said it has ended.
        let told = unsafe { &*self.told };
        let count = told.count.swap(0, Ordering::Acquire);
        let outcome = |(kind, len, bytes): &(u32, u32, [u8; LONGEST])| {
            let frame = bytes[..*len as usize].to_vec();
            match kind {
                0 => Outcome::Ack(frame),
                1 => Outcome::Passed(frame),
                2 => Outcome::Dropped,
                _ => Outcome::Again(frame),
            }
        };
        told.outcomes[..count as usize].iter().map(outcome).collect()
    }
}

/// What happened in all transfers.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    transfers: u64,
    bytes: u64,
    kills: u64,
    moves: u64,
    steps: u64,
    early_acks: u64,
    retransmissions: u64,
    longest: Nanos,
}

/// Runs one to its end.
fn transfer(case: Case, ground: &mut Ground, count: &mut Count) {
    let (config, mode, blocks, len) = (case.config(), case.mode(), case.blocks, case.len);
    // SAFETY: all zeros is an empty table, and nobody works on it.
    unsafe { ptr::write_bytes(ground.kept, 0, 1) };
    let mut model = Model::new(case);
    let begin = model.now;
    let mut moved = None;
    'lives: loop {
        let memory = ground.memory(blocks);
        let mut early = match moved.take() {
            None => EarlyAck::resume(memory, config, mode, model.now),
            Some(export) => {
                let export: Vec<u8> = export;
                let mut early = EarlyAck::new(memory, config, mode);
                early.import(&export, model.now).expect("an export is read");
                early
            }
        };
        model.check(&early);
        let until = model.steps + model.random.random_range(0..STEPS);
        let ended = model.run(&mut early, until);
        if !ended && model.random.random_ratio(1, 30) {
            moved = Some(early.export());
            count.moves += 1;
            continue;
        }
        let work = loop {
            if ended || model.is_done() {
                break 'lives;
            }
            if let Some(work) = model.step(&early) {
                break work;
            }
            model.observe(&mut early);
            assert!(model.now.since(begin) < HUNG, "it hangs");
        };
        // Of some 10 stores of a segment that is only noted, and hundreds where it is copied.
        let stores = 1 << model.random.random_range(0..9);
        let stores = model.random.random_range(1..=stores);
        let (now, told) = (model.now, &*ground);
        let killed =
            killed::after(ground.range(), stores, || work.perform(&mut early, now, &mut |outcome| told.tell(outcome)));
        drop(early);
        model.done(&work, ground.heard());
        if killed && model.random.random() {
            model.unpublish();
        }
        count.kills += u64::from(killed);
        // The next one may be killed as it begins.
        while model.random.random_ratio(1, 4) {
            let stores = model.random.random_range(1..=20);
            let memory = ground.memory(blocks);
            let killed = killed::after(ground.range(), stores, || {
                EarlyAck::resume(memory, config, mode, now);
            });
            count.kills += u64::from(killed);
        }
    }
    count.transfers += 1;
    count.bytes += len as u64;
    count.steps += model.steps as u64;
    count.early_acks += model.early_acks;
    count.retransmissions += model.retransmissions;
    count.longest = count.longest.max(model.now.since(begin));
}

/// Runs so many, of a seed.
fn transfers(cases: u32, seed: u64) -> Count {
    let state = RefCell::new((Ground::new(), Count::default()));
    let config = Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() };
    let result = TestRunner::new(config).run(&case(), |case| {
        let (ground, count) = &mut *state.borrow_mut();
        transfer(case, ground, count);
        Ok(())
    });
    let (_, count) = state.into_inner();
    println!("{seed}: {count:?}");
    if let Err(error) = result {
        panic!("{error}");
    }
    count
}

#[test]
fn every_transfer_is_whole_through_kills_after_random_stores() {
    let cases: u32 = env::var("FAIRLANE_TRANSFERS").map_or(300, |text| text.parse().expect("a number of transfers"));
    // Each waits for its children most of the time.
    let counts: Vec<Count> = thread::scope(|scope| {
        let started: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || transfers((cases + number) / THREADS, u64::from(number))))
            .collect();
        started.into_iter().map(|thread| thread.join().expect("every transfer is whole")).collect()
    });
    let sum = |of: fn(&Count) -> u64| counts.iter().map(of).sum::<u64>();
    let (transfers, kills, early_acks) =
        (sum(|count| count.transfers), sum(|count| count.kills), sum(|count| count.early_acks));
    println!("{transfers} transfers, {kills} kills, {early_acks} early ACKs");
    assert_eq!(transfers, u64::from(cases));
    assert!(kills > 10 * transfers && early_acks > 20 * transfers);
}
