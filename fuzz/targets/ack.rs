//! Any frames from both sides of a connection: early ack may not panic, grow, acknowledge what was not delivered, or go back.
#![no_main]

use fairlane_core::PortId;
use fairlane_core::ack::{Block, Config, EarlyAck, Flow, Memory, Mode};
use fairlane_fuzz::{Conversation, check};
use libfuzzer_sys::fuzz_target;

const GUEST: PortId = PortId(1);
const FLOWS: usize = 4;
const BLOCKS: usize = 6;

fuzz_target!(|input: &[u8]| {
    let (mut flows, mut blocks) = (vec![Flow::default(); FLOWS], vec![Block::FREE; BLOCKS]);
    let memory = Memory { flows: &mut flows, blocks: &mut blocks };
    let config = Config { flow_bytes: 6_000, guest_bytes: 9_000, seed: 1, ..Config::default() };
    let mut early = EarlyAck::new(memory, config);
    let mut conversation = Conversation::default();
    early.attach(GUEST, Mode::Always);
    for step in input.as_chunks().0 {
        match (step[0] & 7, step[11] & 3) {
            (0..=6, _) => conversation.step(&mut early, GUEST, step, true),
            (_, 0) => early.attach(GUEST, Mode::Off),
            (_, 1) => early.attach(GUEST, Mode::Always),
            (_, 2) => early.detach(PortId(9)),
            _ => {
                let export = early.export(GUEST);
                let count = u32::from_le_bytes(export[6..10].try_into().unwrap());
                early.detach(GUEST);
                early.attach(GUEST, Mode::Always);
                assert_eq!(early.import(GUEST, &export, conversation.now), Ok(count));
            }
        }
        check(&early, GUEST);
        assert!(early.retained(GUEST) <= 9_000 && early.flows().count() <= FLOWS);
        assert!(early.flows().all(|flow| flow.owed <= flow.retained && flow.retained <= 6_000));
    }
    early.detach(GUEST);
    assert_eq!((early.flows().count(), early.retained(GUEST)), (0, 0));
});
