//! An early ack file whose flows and copies were changed while no process had it open, or with arbitrary bytes: it is resumed or
//! refused, served, and resumed again, and a neighbour's file is unchanged.
#![no_main]

use fairlane_core::ack::{Block, Flow, FlowView, Mode};
use fairlane_core::time::Nanos;
use fairlane_fuzz::{Conversation, STEP, check, edit};
use fairlane_port::persistent::PersistentState;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Bytes at the start of each part of the file that an input can change: title, flows and blocks.
const PARTS: [usize; 3] = [40, 8 * size_of::<Flow>(), 40 * size_of::<Block>()];

struct Bench {
    _directory: tempfile::TempDir,
    path: PathBuf,
    /// Where the parts begin.
    starts: [u64; 3],
    /// The initial contents of a file.
    fresh: [Vec<u8>; 3],
    neighbour: PersistentState,
    theirs: Vec<FlowView>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new().expect("there is room for two files"));
}

// Two bytes are the number of steps that come first, and the number of bytes of changes that follow them. The rest are steps again.
fuzz_target!(|input: &[u8]| {
    let Some((&[steps, edits], rest)) = input.split_first_chunk() else { return };
    let (before, rest) = rest.split_at(rest.len().min(usize::from(steps) % 12 * STEP));
    let (edits, after) = rest.split_at(rest.len().min(usize::from(edits) % 32 * 5));
    BENCH.with_borrow_mut(|bench| {
        let mut conversation = Conversation::default();
        {
            let mut kept = bench.open(conversation.now).expect("the file is as a process left it");
            kept.with(|early| conversation.open(early));
            converse(&mut kept, &mut conversation, before, true);
        }
        bench.damage(edits);
        for steps in after.chunks(8 * STEP) {
            let Ok(mut kept) = bench.open(conversation.now) else { break };
            kept.look(check);
            converse(&mut kept, &mut conversation, steps, false);
        }
        bench.renew();
        let theirs: Vec<FlowView> = bench.neighbour.look(|early| early.flows().collect());
        assert!(theirs == bench.theirs);
    });
});

fn converse(kept: &mut PersistentState, conversation: &mut Conversation, steps: &[u8], whole: bool) {
    for step in steps.as_chunks().0 {
        kept.with(|early| {
            conversation.step(early, step, whole);
            check(early);
        });
    }
}

impl Bench {
    fn new() -> io::Result<Bench> {
        // Files in memory if possible, because each input opens its file several times.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        let path = directory.path().join("web");
        let mut neighbour = PersistentState::open(&directory.path().join("neighbour"), Mode::Always, Nanos(0))?;
        neighbour.with(|early| Conversation::default().open(early));
        let theirs = neighbour.look(|early| early.flows().collect());
        drop(PersistentState::open(&path, Mode::Always, Nanos(0))?);
        let file = File::open(&path)?;
        let mut title = [0; 24];
        file.read_exact_at(&mut title, 0)?;
        let flows = u32::from_le_bytes(title[16..20].try_into().expect("four bytes"));
        let starts = [0, 4096, 4096 + u64::from(flows) * size_of::<Flow>() as u64];
        let mut fresh = PARTS.map(|len| vec![0; len]);
        for (bytes, start) in fresh.iter_mut().zip(starts) {
            file.read_exact_at(bytes, start)?;
        }
        Ok(Bench { _directory: directory, path, starts, fresh, neighbour, theirs })
    }

    fn open(&self, now: Nanos) -> io::Result<PersistentState> {
        PersistentState::open(&self.path, Mode::Always, now)
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).expect("the file exists")
    }

    /// Changes bytes of the parts. Each five bytes of `edits` are the part and an edit as in [`edit`].
    fn damage(&self, edits: &[u8]) {
        let file = self.file();
        for change in edits.chunks_exact(5) {
            let part = usize::from(change[0]) % PARTS.len();
            let mut bytes = vec![0; PARTS[part]];
            file.read_exact_at(&mut bytes, self.starts[part]).expect("the file is that long");
            edit(&mut bytes, &change[1..]);
            file.write_all_at(&bytes, self.starts[part]).expect("there is room");
        }
    }

    /// Restores the initial contents. Creates the file again if more than the parts may have changed.
    fn renew(&self) {
        let mut title = vec![0; PARTS[0]];
        self.file().read_exact_at(&mut title, 0).expect("the file is that long");
        if title != self.fresh[0] {
            std::fs::remove_file(&self.path).expect("the file belongs to this process");
            drop(self.open(Nanos(0)).expect("there is room"));
        }
        let file = self.file();
        for (bytes, start) in self.fresh.iter().zip(self.starts) {
            file.write_all_at(bytes, start).expect("there is room");
        }
    }
}
