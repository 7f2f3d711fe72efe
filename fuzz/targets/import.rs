//! An export of any bytes, or a right one that was changed: it is taken over whole or not at all, and a neighbour's flows stay.
#![no_main]

use fairlane_core::PortId;
use fairlane_core::ack::{Block, Config, EarlyAck, Flow, FlowView, Memory, Mode};
use fairlane_fuzz::{Conversation, STEP, check, edit};
use libfuzzer_sys::fuzz_target;

const GUEST: PortId = PortId(1);
const NEIGHBOUR: PortId = PortId(2);

// The first two bytes say how many steps and how many bytes of changes make the export; without changes the rest is one itself.
fuzz_target!(|input: &[u8]| {
    let Some((&[steps, edits], rest)) = input.split_first_chunk() else { return };
    let (before, rest) = rest.split_at(rest.len().min(usize::from(steps) % 16 * STEP));
    let (edits, rest) = rest.split_at(rest.len().min(usize::from(edits) % 16 * 4));
    let mut memory = Places::default();
    let mut conversation = Conversation::default();
    let export = {
        let mut source = memory.early();
        conversation.open(&mut source, GUEST);
        converse(&mut source, &mut conversation, before, true);
        source.export(GUEST)
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
    Conversation::default().open(&mut early, NEIGHBOUR);
    let neighbours =
        |early: &EarlyAck<'_>| -> Vec<FlowView> { early.flows().filter(|flow| flow.guest == NEIGHBOUR).collect() };
    let there = neighbours(&early);
    let taken = early.import(GUEST, &export, conversation.now);
    assert_eq!(early.known(GUEST), taken.unwrap_or(0));
    assert!(taken.is_ok() || early.retained(GUEST) == 0);
    check(&early, GUEST);
    converse(&mut early, &mut conversation, after, false);
    let flows = early.known(GUEST) as usize + there.len();
    assert_eq!(early.flows().count(), flows);
    if taken.is_ok() {
        // What goes on from here, goes on there as it would have here.
        let onward = early.export(GUEST);
        early.detach(GUEST);
        early.attach(GUEST, Mode::Always);
        let count = u32::from_le_bytes(onward[6..10].try_into().unwrap());
        assert_eq!(early.import(GUEST, &onward, conversation.now), Ok(count));
        check(&early, GUEST);
    }
    early.detach(GUEST);
    assert_eq!((early.flows().count(), early.retained(GUEST)), (there.len(), 0));
    assert!(neighbours(&early) == there);
});

/// Takes steps of the guest. They are too few for a flow of the neighbour's to grow old.
fn converse(early: &mut EarlyAck<'_>, conversation: &mut Conversation, steps: &[u8], whole: bool) {
    for step in steps.as_chunks().0 {
        conversation.step(early, GUEST, step, whole);
        check(early, GUEST);
    }
}

/// Memory of an early ack.
#[derive(Default)]
struct Places {
    flows: Vec<Flow>,
    blocks: Vec<Block>,
}

impl Places {
    /// An early ack with nothing in it.
    fn early(&mut self) -> EarlyAck<'_> {
        self.flows.resize(6, Flow::default());
        self.blocks.resize(8, Block::FREE);
        let memory = Memory { flows: &mut self.flows, blocks: &mut self.blocks };
        let config = Config { flow_bytes: 6_000, guest_bytes: 9_000, seed: 1, ..Config::default() };
        let mut early = EarlyAck::new(memory, config);
        early.attach(GUEST, Mode::Always);
        early.attach(NEIGHBOUR, Mode::Always);
        early
    }
}
