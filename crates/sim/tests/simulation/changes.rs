//! Changes of a policy while frames pass, and a wire as uplink.

use crate::support::{run, scenario, source, traffic, with_tenants};
use fairlane_core::time::Nanos;
use fairlane_policy::{Setting, Uplink};
use fairlane_sim::Scenario;
use fairlane_sim::scenario::{Change, Cpu, Place, Source};
use proptest::prelude::*;

/// Milliseconds of a step.
const STEP: u64 = 100;

/// Three guests flood a link of 100 Mbit/s.
fn floods() -> Scenario {
    let mut scenario = scenario(&["", "", ""]);
    for guest in 0..3 {
        scenario.traffic.push(traffic(Source::Flood, Place::Guest(guest), Place::Outside));
    }
    scenario
}

fn change(at: u64, target: &str, key: &str, value: &str) -> Change {
    let setting = Setting::parse(key, value).expect("a setting");
    Change { at: Nanos::from_millis(at), host: 0, target: target.to_owned(), setting }
}

/// Anything that can be set, of one of three vifs, two tenants or the link.
fn any_change() -> impl Strategy<Value = Change> {
    let vif = prop::sample::select(&["v0", "v1", "v2"][..]);
    let owner = prop::sample::select(&["v0", "v1", "v2", "t0", "t1"][..]);
    let of_owner = prop::sample::select(
        &[
            ("weight", "7"),
            ("weight", "300"),
            ("max_rate", "20Mbit/s"),
            ("max_rate", "none"),
            ("burst", "20KiB"),
            ("min_rate", "15Mbit/s"),
            ("min_rate", "none"),
            ("max_frames", "900"),
            ("max_frames", "none"),
            ("rx_weight", "9"),
            ("rx_max_rate", "9Mbit/s"),
            ("rx_max_rate", "none"),
            ("rx_min_rate", "5Mbit/s"),
        ][..],
    );
    let of_vif = prop::sample::select(
        &[
            ("tenant", "t0"),
            ("tenant", "t1"),
            ("tenant", "none"),
            ("rx_queue", "64KiB"),
            ("rx_queue", "1MiB"),
            ("rx_timeout", "20ms"),
        ][..],
    );
    let of_link = prop::sample::select(
        &[
            ("rate", "40Mbit/s"),
            ("rate", "none"),
            ("rx_rate", "30Mbit/s"),
            ("rx_rate", "none"),
            ("scheduler", "wrr"),
            ("scheduler", "netback"),
            ("scheduler", "fair"),
            ("idle_timeout", "1ms"),
            ("isolate", "true"),
            ("isolate", "false"),
            ("rx_pool", "128KiB"),
        ][..],
    );
    let what = prop_oneof![(owner, of_owner), (vif, of_vif), (Just("lan"), of_link)];
    (1u64..500, what).prop_map(|(at, (target, (key, value)))| change(at, target, key, value))
}

#[test]
fn what_is_due_is_not_stated_across_a_change() {
    let due = |changes: Vec<Change>| run(&Scenario { changes, ..floods() }).hosts[0].vifs[0].due;
    let settle = floods().settle.0 / 1_000_000;
    assert!(due(vec![change(settle, "v0", "weight", "300")]).is_some_and(|due| due > 0.5));
    assert_eq!(due(vec![change(settle + 1, "v0", "weight", "300")]), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever changes meanwhile, each frame is accounted for, and once the settings are what they were at first, all have what
    /// they had: half for the tenant of two, and half for the third guest.
    #[test]
    fn nothing_is_left_of_changes(
        mut changes in prop::collection::vec(any_change(), 1..30),
        others in prop::collection::vec((source(1_000_000..60_000_000), 0usize..3, 0usize..3), 0..4),
    ) {
        let none = |_| String::new();
        let mut scenario = scenario(&with_tenants((0..3).map(none), &[Some(0), Some(0), None], (0..2).map(none)));
        for guest in 0..3 {
            scenario.traffic.push(traffic(Source::Flood, Place::Guest(guest), Place::Outside));
        }
        for (source, from, to) in others {
            let from = if from == to { Place::Outside } else { Place::Guest(from) };
            let mut other = traffic(source, from, Place::Guest(to));
            other.time.1 = Nanos::from_millis(500);
            scenario.traffic.push(other);
        }
        changes.sort_by_key(|change| change.at);
        for (key, value) in [("scheduler", "fair"), ("rate", "100Mbit/s"), ("isolate", "false"), ("rx_rate", "none")] {
            changes.push(change(500, "lan", key, value));
        }
        for target in ["v0", "v1", "v2", "t0", "t1"] {
            let limits = ["min_rate", "rx_min_rate", "max_rate", "max_frames"];
            changes.extend(limits.map(|key| change(500, target, key, "none")));
            changes.push(change(500, target, "weight", "100"));
        }
        for (target, tenant) in [("v0", "t0"), ("v1", "t0"), ("v2", "none")] {
            changes.push(change(500, target, "tenant", tenant));
        }
        scenario.changes = changes;
        (scenario.settle, scenario.seconds) = (Nanos::from_millis(700), 1.2);
        let vifs = run(&scenario).hosts.remove(0).vifs;
        for (vif, due) in vifs.iter().zip([0.25, 0.25, 0.5]) {
            prop_assert!((vif.share - due).abs() < 0.01, "{} has {} of {due}", vif.name, vif.share);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// In each step guests get what their weights give them then. A frame is 0.0012 of a step, and what waits in front of the card
    /// when a step begins is the former weights'.
    #[test]
    fn shares_follow_weights_as_they_change(steps in prop::collection::vec([1u32..50, 1..50, 1..50], 9)) {
        let mut scenario = floods();
        for (step, weights) in (1..).zip(&steps) {
            for (guest, weight) in weights.iter().enumerate() {
                scenario.changes.push(change(step * STEP, &format!("v{guest}"), "weight", &weight.to_string()));
            }
        }
        let outcome = run(&scenario);
        prop_assert!(outcome.refused.is_empty(), "{:?}", outcome.refused);
        for (step, weights) in (1..).zip(&steps) {
            let bytes: Vec<f64> = outcome.tallies.iter().map(|tally| tally.intervals[step] as f64).collect();
            let (all, sum) = (bytes.iter().sum::<f64>(), f64::from(weights.iter().sum::<u32>()));
            for (bytes, weight) in bytes.iter().zip(weights) {
                let (share, due) = (bytes / all, f64::from(*weight) / sum);
                prop_assert!((share - due).abs() < 0.04, "step {step}: {share} of {due}");
            }
        }
    }
}

#[test]
fn limits_and_schedulers_change_and_what_does_not_fit_is_refused() {
    let mut scenario = floods();
    scenario.changes = vec![
        change(300, "v0", "max_rate", "10Mbit/s"),
        change(500, "lan", "rate", "50Mbit/s"),
        change(700, "lan", "scheduler", "wrr"),
        change(800, "v1", "min_rate", "60Mbit/s"),
    ];
    let outcome = run(&scenario);
    let [refused] = &outcome.refused[..] else { panic!("{:?}", outcome.refused) };
    assert!(
        refused.starts_with("host refused a change of `v1` at 0.8 s: ") && refused.contains("min_rate"),
        "{refused}"
    );
    let rate = |guest: usize, interval: usize| outcome.tallies[guest].intervals[interval] as f64 * 8e-5;
    for (interval, rates) in [(2, [33.3; 3]), (4, [10.0, 45.0, 45.0]), (6, [10.0, 20.0, 20.0]), (9, [10.0, 20.0, 20.0])]
    {
        for (guest, due) in rates.into_iter().enumerate() {
            let rate = rate(guest, interval);
            assert!((rate / due - 1.0).abs() < 0.05, "interval {interval}: guest {guest} has {rate} of {due} Mbit/s");
        }
    }
}

#[test]
fn early_ack_is_turned_on_and_off() {
    let mut scenario = scenario(&[""]);
    let stream = Source::Stream { window: 1 << 20, bytes: None };
    scenario.traffic.push(traffic(stream, Place::Outside, Place::Guest(0)));
    scenario.changes = vec![change(200, "v0", "early_ack", "always"), change(600, "v0", "early_ack", "false")];
    let outcome = run(&scenario);
    assert!(outcome.refused.is_empty(), "{:?}", outcome.refused);
    assert!(outcome.tallies[0].settled.1 > 1000, "{:?}", outcome.tallies[0].settled);
}

/// Three guests wait for their CPUs: one gets early ack, one loses it, one never has it.
#[test]
fn early_ack_acts_once_it_is_on_and_until_it_is_off() {
    let mut scenario = scenario(&["", "early_ack = true", ""]);
    (scenario.seconds, scenario.hosts[0].link.rate) = (20.0, None);
    let [runs, waits] = [30, 60].map(Nanos::from_millis);
    let source = Source::Transfer { bytes: 100_000, pause: Nanos::from_millis(200), anew: false, window: 6 << 20 };
    for (guest, plan) in scenario.guests.iter_mut().enumerate() {
        plan.cpu = Cpu::turns(&[runs, waits], Nanos(0)).expect("it runs");
        scenario.traffic.push(traffic(source, Place::Outside, Place::Guest(guest)));
    }
    scenario.changes = vec![change(1, "v0", "early_ack", "true"), change(1, "v1", "early_ack", "false")];
    // It makes frames of its own.
    let outcome = fairlane_sim::run(&scenario).expect("it can be simulated");
    let [on, off, never] = [0, 1, 2].map(|guest: usize| outcome.tallies[guest].trips.mean());
    assert!(on < 0.5 * never && (off / never - 1.0).abs() < 0.2, "{on} {off} {never}");
}

/// A wire without backpressure drops what finds its queue full, and one with it drops nothing.
#[test]
fn a_wire_drops_or_lets_wait() {
    for (waits, expected) in [(true, 0), (false, 1)] {
        let mut scenario = floods();
        let host = &mut scenario.hosts[0];
        host.card = 100_000_000;
        let (to, delay) = ("far".to_owned(), Nanos(0));
        host.link.uplink = Uplink::Wire { to, delay, queue: 32 << 10, backpressure: waits };
        let drops = run(&scenario).drops();
        assert_eq!(u64::from(drops.get("uplink_full").is_some_and(|drops| *drops > 0)), expected, "{drops:?}");
    }
}
