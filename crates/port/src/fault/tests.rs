use super::*;
use crate::memory::{self, Owned};
use proptest::prelude::*;

const ALL: Budget = Budget { bytes: u64::MAX, frames: BURST as u32 };

fn frames(count: u16) -> Vec<Vec<u8>> {
    (0..count).map(|number| number.to_le_bytes().repeat(40)).collect()
}

/// Moves the frames through a port with these faults in both directions; returns what arrived at each side, and what
/// was done.
fn run(seed: u64, faults: Faults, count: u16) -> ([Vec<Owned>; 2], (Done, Done)) {
    let (inner, peer) = memory::pair(usize::MAX);
    let mut port = Faulty::new(inner, seed, faults, faults);
    let mut burst = Burst::new();
    let mut out = [Vec::new(), Vec::new()];
    let mut now = Nanos(0);
    let frames = frames(count);
    frames.iter().for_each(|frame| peer.send(frame, Offload::default()));
    let mut next = 0;
    // Long enough for every stall to end and every held frame to continue.
    while now.0 < 1_000_000_000 {
        let batch = port.offer(&mut burst, ALL, now);
        let taken = batch.len();
        for frame in batch.frames() {
            let mut bytes = Vec::new();
            frame.read(&mut bytes);
            out[0].push((bytes, frame.offload()));
        }
        port.consume(taken);
        let mut filler = burst.fill();
        let sent = &frames[next..frames.len().min(next + 5)];
        for frame in sent {
            filler.push(frame, Offload::default());
        }
        let put = port.put(&filler.done(), 0..sent.len(), now);
        next += put.accepted + usize::from(matches!(put.refusal, Some(Refusal::Never(_))));
        port.flush(now);
        now += Nanos(1_000_000);
    }
    assert_eq!(next, frames.len());
    while let Some(frame) = peer.receive() {
        out[1].push(frame);
    }
    (out, port.done())
}

fn faults() -> impl Strategy<Value = Faults> {
    let rate = || prop_oneof![Just(0.0), 0.0..0.3f64];
    (rate(), rate(), rate(), rate(), 0..20u64, 0.0..0.02f64, 0..5_000_000u64).prop_map(
        |(drop, duplicate, corrupt, reorder, reorder_by, stall, stall_for)| Faults {
            drop,
            duplicate,
            corrupt,
            withdraw: 0.0,
            reorder,
            reorder_by,
            stall,
            stall_for: Nanos(stall_for),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The same seed does the same to the same frames, and the counts match what arrived.
    #[test]
    fn a_seed_replays_and_the_counts_are_right(seed: u64, faults in faults(), count in 0..400u16) {
        let (out, done) = run(seed, faults, count);
        prop_assert_eq!(&(out.clone(), done), &run(seed, faults, count));
        for (out, done) in out.iter().zip([done.0, done.1]) {
            prop_assert_eq!(done.frames, u64::from(count));
            prop_assert_eq!(out.len() as u64, done.frames - done.dropped + done.duplicated);
            let whole = frames(count);
            let damaged = out.iter().filter(|(bytes, _)| !whole.contains(bytes)).count() as u64;
            prop_assert!(damaged >= done.corrupted && damaged <= done.corrupted * 2);
            if done.reordered == 0 && done.corrupted == 0 {
                prop_assert!(out.windows(2).all(|pair| number(&pair[0]) <= number(&pair[1])));
            }
        }
    }

    /// A held frame is passed by at most `by` others.
    #[test]
    fn reordering_is_bounded(seed: u64, by in 1..20u64) {
        let faults = Faults { reorder: 0.1, reorder_by: by, ..Faults::default() };
        let (out, _) = run(seed, faults, 300);
        for out in out {
            for (place, frame) in out.iter().enumerate() {
                let before = out[..place].iter().filter(|other| number(other) > number(frame)).count();
                prop_assert!(before as u64 <= by);
            }
        }
    }
}

proptest! {
    /// The bodies of some frames cannot be read, by whoever has the frames in between, nor by the port's peer; all else passes.
    #[test]
    fn withdrawn_bodies_cannot_be_read(seed: u64, withdraw in 0.0..1.0f64, lens in prop::collection::vec(14..600usize, 0..64)) {
        let frames: Vec<Vec<u8>> = lens.iter().zip(1..).map(|(len, number)| vec![number; *len]).collect();
        let faults = Faults { withdraw, ..Faults::default() };
        let (inner, peer) = memory::pair(usize::MAX);
        let mut port = Faulty::new(inner, seed, faults, faults);
        let (mut burst, mut unread) = (Burst::new(), 0);
        frames.iter().for_each(|frame| peer.send(frame, Offload::default()));
        for frames in frames.chunks(BURST) {
            let batch = port.offer(&mut burst, ALL, Nanos(0));
            prop_assert_eq!(batch.len(), frames.len());
            for (index, frame) in frames.iter().enumerate() {
                prop_assert_eq!(batch.head(index), &frame[..frame.len().min(HEAD)]);
                let mut bytes = Vec::new();
                if batch.read(index, &mut bytes) {
                    prop_assert_eq!(&bytes, frame);
                } else {
                    unread += 1;
                    prop_assert!(bytes.is_empty() && frame.len() > HEAD);
                }
            }
            port.consume(frames.len());
        }
        prop_assert_eq!(port.done().0.withdrawn, unread);

        for frame in &frames {
            let mut filler = burst.fill();
            filler.push(frame, Offload::default());
            prop_assert_eq!(port.put(&filler.done(), 0..1, Nanos(0)), Put { accepted: 1, refusal: None });
            port.flush(Nanos(0));
        }
        let received: Vec<Vec<u8>> = std::iter::from_fn(|| peer.receive()).map(|(bytes, _)| bytes).collect();
        prop_assert!(received.iter().all(|frame| frames.contains(frame)));
        prop_assert_eq!(received.len() as u64 + port.done().1.withdrawn, frames.len() as u64);
    }
}

fn number(frame: &Owned) -> u16 {
    u16::from_le_bytes([frame.0[0], frame.0[1]])
}

#[test]
fn without_faults_nothing_changes() {
    let (out, done) = run(1, Faults::default(), 300);
    let whole: Vec<Owned> = frames(300).into_iter().map(|bytes| (bytes, Offload::default())).collect();
    assert_eq!(out, [whole.clone(), whole]);
    assert_eq!(done.0, Done { frames: 300, ..Done::default() });
}

#[test]
fn a_stalled_port_reports_when_it_continues() {
    let (inner, peer) = memory::pair(100);
    let faults = Faults { stall: 1.0, stall_for: Nanos(500), ..Faults::default() };
    let mut port = Faulty::new(inner, 1, Faults::default(), faults);
    let mut burst = Burst::new();
    let frames = frames(2);
    let mut filler = burst.fill();
    frames.iter().for_each(|frame| assert!(filler.push(frame, Offload::default())));
    let batch = filler.done();
    assert_eq!(port.put(&batch, 0..2, Nanos(100)), Put { accepted: 1, refusal: Some(Refusal::Full) });
    assert_eq!(port.room(Nanos(100)), Room::At(Nanos(600)));
    assert_eq!(port.next_event(), Nanos(600));
    port.flush(Nanos(599));
    assert!(peer.receive().is_none());
    port.flush(Nanos(600));
    assert!(peer.receive().is_some());
}
