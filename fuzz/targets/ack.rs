//! Any frames from both sides of a connection: early ack must not panic, exceed its memory, acknowledge undelivered data, or move an ACK
//! backwards.
#![no_main]

use fairlane_core::ack::{Block, Config, EarlyAck, Flow, Memory, Mode};
use fairlane_fuzz::{Conversation, check};
use libfuzzer_sys::fuzz_target;

const FLOWS: usize = 4;
const BLOCKS: usize = 6;

fuzz_target!(|input: &[u8]| {
    let (mut flows, mut blocks) = (vec![Flow::default(); FLOWS], vec![Block::FREE; BLOCKS]);
    let config = Config { flow_bytes: 6_000, guest_bytes: 9_000, seed: 1, ..Config::default() };
    let mut conversation = Conversation::default();
    let mut steps = input.as_chunks().0.iter();
    let mut moved: Option<Vec<u8>> = None;
    loop {
        let mut early = EarlyAck::new(Memory { flows: &mut flows, blocks: &mut blocks }, config, Mode::Always);
        if let Some(export) = moved.take() {
            let count = u32::from_le_bytes(export[6..10].try_into().unwrap());
            assert_eq!(early.import(&export, conversation.now), Ok(count));
            check(&early);
        }
        for step in steps.by_ref() {
            match (step[0] & 7, step[11] & 3) {
                (0..=6, _) => conversation.step(&mut early, step, true),
                (_, 0) => early.set_mode(Mode::Off),
                (_, 1) => early.set_mode(Mode::Always),
                _ => {
                    moved = Some(early.export());
                    break;
                }
            }
            check(&early);
            assert!(early.retained() <= 9_000 && early.flows().count() <= FLOWS);
            assert!(early.flows().all(|flow| flow.owed <= flow.retained && flow.retained <= 6_000));
        }
        if moved.is_none() {
            break;
        }
    }
});
