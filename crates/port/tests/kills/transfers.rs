//! Transfers between two TCP ends, over any network and with any guest, through a backend that is killed again and
//! again after random stores.
//!
//! Most of the time the backend is this process. Now and then the next piece of work is left to a child that is
//! [killed] at some store; its memory and the outcomes that it reported are then used. At the end both streams must
//! equal what was sent, byte by byte; no connection is reset, and every transfer ends.
//!
//! `FAIRLANE_TRANSFERS=10000` in the environment runs more of them.

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

/// The most steps between two kills.
const STEPS: usize = 150;

/// A transfer that takes longer hangs.
const HUNG: Nanos = Nanos::from_millis(600_000);

/// Transfers that run at a time.
const THREADS: u32 = 8;

/// The state that survives the end of a process.
#[repr(C, align(4096))]
struct State {
    flows: [Flow; FLOWS],
    blocks: [Block; BLOCKS],
}

/// The most bytes of an outcome.
const LONGEST: usize = 2048;

/// The most outcomes of one piece of work: those of a burst, or as many frames as a ring holds.
const MOST: usize = 64;

/// Outcomes that a process reported before it ended.
#[repr(C)]
struct Reports {
    count: AtomicU32,
    outcomes: [(u32, u32, [u8; LONGEST]); MOST],
}

/// The memory shared with children, used for one transfer after the other.
struct SharedMemory {
    state: *mut State,
    reports: *mut Reports,
}

impl SharedMemory {
    fn new() -> SharedMemory {
        // SAFETY: flows, blocks and reports consist of integers.
        unsafe { SharedMemory { state: shared(), reports: shared() } }
    }

    /// The memory that early ack works in, with this many blocks.
    fn memory<'m>(&mut self, blocks: usize) -> Memory<'m> {
        // SAFETY: it is mapped as long as the process lives, and every bit pattern is a valid flow or block. It is used
        // once at a time: the caller has dropped what used it last, or is a child, whose parent waits for its end.
        let State { flows, blocks: all } = unsafe { &mut *self.state };
        Memory { flows, blocks: &mut all[..blocks] }
    }

    fn range(&self) -> Range<usize> {
        self.state as usize..self.state as usize + size_of::<State>()
    }

    /// Reports an outcome of some work, which counts only when it is complete.
    fn report(&self, outcome: Outcome) {
        let (kind, frame) = match outcome {
            Outcome::Ack(frame) => (0, frame),
            Outcome::Passed(frame) => (1, frame),
            Outcome::Dropped => (2, Vec::new()),
            Outcome::Again(frame) => (3, frame),
        };
        // SAFETY: one process at a time works on it; the count is atomic.
        unsafe {
            let count = &(*self.reports).count;
            let at = count.load(Ordering::Relaxed);
            let place = &raw mut (*self.reports).outcomes[at as usize];
            (*place).0 = kind;
            (*place).1 = frame.len() as u32;
            (&mut (*place).2)[..frame.len()].copy_from_slice(&frame);
            count.store(at + 1, Ordering::Release);
        }
    }

    /// Takes the outcomes reported since the last call.
    fn take_reports(&self) -> Vec<Outcome> {
        // SAFETY: as above; the process that reported them has ended.
        let reports = unsafe { &*self.reports };
        let count = reports.count.swap(0, Ordering::Acquire);
        let outcome = |(kind, len, bytes): &(u32, u32, [u8; LONGEST])| {
            let frame = bytes[..*len as usize].to_vec();
            match kind {
                0 => Outcome::Ack(frame),
                1 => Outcome::Passed(frame),
                2 => Outcome::Dropped,
                _ => Outcome::Again(frame),
            }
        };
        reports.outcomes[..count as usize].iter().map(outcome).collect()
    }
}

/// Totals of all transfers.
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

/// Runs one transfer to its end.
fn transfer(case: Case, shared_memory: &mut SharedMemory, count: &mut Count) {
    let (config, mode, blocks, len) = (case.config(), case.mode(), case.blocks, case.len);
    // SAFETY: all zeros is an empty table, and nothing uses it.
    unsafe { ptr::write_bytes(shared_memory.state, 0, 1) };
    let mut model = Model::new(case);
    let begin = model.now;
    let mut moved = None;
    'lives: loop {
        let memory = shared_memory.memory(blocks);
        let mut early = match moved.take() {
            None => EarlyAck::resume(memory, config, mode, model.now),
            Some(export) => {
                let export: Vec<u8> = export;
                let mut early = EarlyAck::new(memory, config, mode);
                early.import(&export, model.now).expect("an export can be imported");
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
        // A segment that is only noted takes some 10 stores, and one that is copied takes hundreds.
        let stores = 1 << model.random.random_range(0..9);
        let stores = model.random.random_range(1..=stores);
        let (now, reports) = (model.now, &*shared_memory);
        let killed = killed::after(shared_memory.range(), stores, || {
            work.perform(&mut early, now, &mut |outcome| reports.report(outcome))
        });
        drop(early);
        model.done(&work, shared_memory.take_reports());
        if killed && model.random.random() {
            model.unpublish();
        }
        count.kills += u64::from(killed);
        // The next process may be killed while it starts.
        while model.random.random_ratio(1, 4) {
            let stores = model.random.random_range(1..=20);
            let memory = shared_memory.memory(blocks);
            let killed = killed::after(shared_memory.range(), stores, || {
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

/// Runs `cases` transfers from a seed.
fn transfers(cases: u32, seed: u64) -> Count {
    let shared_state = RefCell::new((SharedMemory::new(), Count::default()));
    let config = Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() };
    let result = TestRunner::new(config).run(&case(), |case| {
        let (shared_memory, count) = &mut *shared_state.borrow_mut();
        transfer(case, shared_memory, count);
        Ok(())
    });
    let (_, count) = shared_state.into_inner();
    println!("{seed}: {count:?}");
    if let Err(error) = result {
        panic!("{error}");
    }
    count
}

#[test]
fn every_transfer_is_whole_through_kills_after_random_stores() {
    let cases: u32 = env::var("FAIRLANE_TRANSFERS").map_or(300, |text| text.parse().expect("a number of transfers"));
    // Each thread waits for its children most of the time.
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
