//! Many transfers between two simple TCP ends, through a backend that is killed between steps, and with a guest that
//! migrates.

use crate::fixture::memory;
use crate::model::{Case, Model, case};
use fairlane_core::ack::{EarlyAck, Memory};
use proptest::test_runner::{Config as ProptestConfig, RngSeed, TestRunner};
use std::cell::Cell;

/// Runs a case to its end. Returns its steps, early ACKs and retransmissions. `breaks` are step numbers after which the
/// backend is killed (even) or the guest migrates (odd).
fn play(case: Case, mut breaks: Vec<usize>) -> [u64; 3] {
    let (config, mode) = (case.config(), case.mode());
    let (mut flows, mut blocks) = memory(2, case.blocks);
    breaks.sort_unstable();
    breaks.push(400_000);
    let mut moved = None;
    let mut model = Model::new(case);
    for until in breaks {
        let memory = Memory { flows: &mut flows, blocks: &mut blocks };
        let mut early = match moved.take() {
            Some(export) => {
                let mut early = EarlyAck::new(memory, config, mode);
                let export: Vec<u8> = export;
                early.import(&export, model.now).expect("an export can be imported");
                early
            }
            None => EarlyAck::resume(memory, config, mode, model.now),
        };
        model.check(&early);
        if model.run(&mut early, until) {
            return [model.steps as u64, model.early_acks, model.retransmissions];
        }
        if until % 2 == 1 {
            moved = Some(early.export());
        } else {
            // It sent ACKs, and ended before it published the guest's frames.
            model.unpublish();
        }
    }
    panic!("no end after {} steps, at {:?}", model.steps, model.now);
}

#[test]
fn a_million_steps() {
    let total = Cell::new([0; 3]);
    let config = ProptestConfig {
        cases: 700,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(5),
        ..ProptestConfig::default()
    };
    let breaks = proptest::collection::vec(10usize..1500, 0..4);
    let result = TestRunner::new(config).run(&(case(), breaks), |(case, breaks)| {
        let (so_far, more) = (total.get(), play(case, breaks));
        total.set(std::array::from_fn(|at| so_far[at] + more[at]));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let [steps, early, again] = total.get();
    assert!(steps >= 1_000_000, "{steps} steps");
    assert!(early >= 30_000, "{early} early ACKs");
    assert!(again >= 3_000, "{again} retransmissions");
    println!("{steps} steps, {early} early ACKs, {again} retransmissions");
}
