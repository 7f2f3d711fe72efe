//! An export of arbitrary bytes, or a valid one that was modified: it is imported as a whole or not at all.
#![no_main]

use fairlane_core::ack::{Block, Config, EarlyAck, Flow, Memory, Mode};
use fairlane_fuzz::{Conversation, STEP, check, edit};
use libfuzzer_sys::fuzz_target;

// The first two bytes are the number of steps and the number of bytes of changes that produce the export. Without changes, the rest of
// the input is itself the export.
fuzz_target!(|input: &[u8]| {
    let Some((&[steps, edits], rest)) = input.split_first_chunk() else { return };
    let (before, rest) = rest.split_at(rest.len().min(usize::from(steps) % 16 * STEP));
    let (edits, rest) = rest.split_at(rest.len().min(usize::from(edits) % 16 * 4));
    let (mut memory, mut elsewhere) = (Places::default(), Places::default());
    let mut conversation = Conversation::default();
    let export = {
        let mut source = memory.early();
        conversation.open(&mut source);
        converse(&mut source, &mut conversation, before, true);
        source.export()
    };
    let (export, after) = match edits {
        [] => (rest.to_vec(), &[][..]),
        _ => {
            let mut export = export;
            edit(&mut export, edits);
            (export, rest)
        }
    };

    let mut early = memory.early();
    let taken = early.import(&export, conversation.now);
    assert_eq!(early.known(), taken.unwrap_or(0));
    assert!(taken.is_ok() || early.retained() == 0);
    check(&early);
    converse(&mut early, &mut conversation, after, false);
    if taken.is_ok() {
        // Exported again and imported elsewhere, the flows are the same.
        let onward = early.export();
        let mut early = elsewhere.early();
        let count = u32::from_le_bytes(onward[6..10].try_into().unwrap());
        assert_eq!(early.import(&onward, conversation.now), Ok(count));
        check(&early);
    }
});

/// Takes the guest's steps. They are too few for a neighbour's flow to time out.
fn converse(early: &mut EarlyAck<'_>, conversation: &mut Conversation, steps: &[u8], whole: bool) {
    for step in steps.as_chunks().0 {
        conversation.step(early, step, whole);
        check(early);
    }
}

/// Memory for one `EarlyAck`.
#[derive(Default)]
struct Places {
    flows: Vec<Flow>,
    blocks: Vec<Block>,
}

impl Places {
    /// An `EarlyAck` without flows.
    fn early(&mut self) -> EarlyAck<'_> {
        self.flows.resize(6, Flow::default());
        self.blocks.resize(8, Block::FREE);
        let memory = Memory { flows: &mut self.flows, blocks: &mut self.blocks };
        let config = Config { flow_bytes: 6_000, guest_bytes: 9_000, seed: 1, ..Config::default() };
        EarlyAck::new(memory, config, Mode::Always)
    }
}
