use super::*;
use crate::snapshot::{PortState, Snapshot, State, VifState};
use fairlane_core::time::{Nanos, SECOND};
use proptest::prelude::*;

/// After `step` steps of five seconds: a vif that sent 1,000 bytes more in each, each frame after a wait of 5 us.
fn snapshot(step: u64, vifs: u64) -> Snapshot {
    let mut waiting = Waiting::default();
    (0..step).for_each(|_| waiting.record(Nanos(5_000)));
    let (sent_frames, sent_bytes) = (step, step * (step + 1) / 2 * 1000);
    let vif = |index: u64| VifState {
        name: format!("v{index}"),
        link: "lan".to_owned(),
        weight: 1,
        share: 0.5,
        waiting: waiting.clone(),
        port: PortState { state: State::Up, sent_frames, sent_bytes, ..PortState::default() },
        ..VifState::default()
    };
    let time = step * STEP.as_secs() * SECOND;
    Snapshot { time, vifs: (0..vifs).map(vif).collect(), ..Snapshot::default() }
}

fn after(steps: u64, vifs: u64) -> History {
    let mut history = History::default();
    for step in 1..=steps {
        history.add(&Reading::between(&snapshot(step - 1, vifs), &snapshot(step, vifs)).unwrap());
    }
    history
}

#[test]
fn steps_are_kept_in_order_and_the_oldest_go() {
    let history = after(RECENT as u64 + 3, 1);
    let View { recent, day } = history.view(Kind::Vif, "v0").unwrap();
    assert_eq!((recent.end.len(), day.end.len()), (RECENT, 1));
    // Step `n` sends `n` thousand bytes in five seconds.
    let rates: Vec<f32> = (4..=RECENT as u64 + 3).map(|step| step as f32 * 1600.0).collect();
    assert_eq!(recent.sent_rate, rates);
    assert_eq!((recent.end[0], recent.share[0], recent.due[0]), (20.0, Some(0.5), Some(1.0)));
    let waits = recent.waits[0];
    assert_eq!((waits[1], waits.iter().sum::<f32>()), (0.0, 1.0), "5 us is above 4.1 us and below 16.4 us: {waits:?}");
    assert_eq!(waits[2], 1.0);
}

#[test]
fn a_step_of_the_day_is_the_mean_of_its_steps() {
    let View { day, .. } = after(2 * MERGED as u64, 1).view(Kind::Vif, "v0").unwrap();
    let mean = |from: u64, to: u64| (from + to) as f32 / 2.0 * 1600.0;
    assert_eq!(day.sent_rate, [mean(1, MERGED as u64), mean(MERGED as u64 + 1, 2 * MERGED as u64)]);
    assert_eq!(day.end, [360.0, 720.0]);
    assert_eq!(day.share, [Some(0.5), Some(0.5)]);
    let counted = day.waits[0][2];
    assert!((counted - MERGED as f32).abs() <= 0.06 * MERGED as f32, "{counted}");
}

#[test]
fn a_day_has_an_end_and_memory_a_bound() {
    let mut series = Series::default();
    let sample = Sample::mean([].iter());
    (0..RECENT + MERGED * (DAY + 10)).for_each(|_| series.add(sample));
    assert_eq!((series.recent.len(), series.day.len()), (RECENT, DAY));
    let bytes = size_of::<Sample>() * (series.recent.capacity() + series.day.capacity());
    assert!(bytes <= 20 << 10, "{bytes}");
    let history = after(1, MOST as u64 + 5);
    assert_eq!(history.series.len(), MOST);
}

#[test]
fn what_is_gone_has_no_history() {
    let mut history = after(2, 2);
    assert!(history.view(Kind::Vif, "v1").is_some());
    history.add(&Reading::between(&snapshot(2, 1), &snapshot(3, 1)).unwrap());
    assert_eq!(history.view(Kind::Vif, "v1"), None);
    assert_eq!(history.view(Kind::Link, "v0"), None);
}

proptest! {
    #[test]
    fn counts_are_kept_to_five_in_a_hundred(count in 0..1u32 << 31) {
        let kept = unpack(pack(count as f32));
        prop_assert!((kept - count as f32).abs() <= 0.05 * count as f32 + 0.5, "{count} {kept}");
    }
}
