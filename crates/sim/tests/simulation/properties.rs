//! Of any scenario: no frame is unaccounted for, and guests that want more than there is share it by weight.

use crate::support::{run, scenario, source, traffic};
use fairlane_core::time::Nanos;
use fairlane_sim::scenario::{Cpu, Place, Source};
use proptest::prelude::*;

fn any_source() -> impl Strategy<Value = Source> {
    prop_oneof![
        4 => source(1_000_000..80_000_000),
        1 => (1u64..50).prop_map(|interval| Source::Requests { interval: Nanos::from_millis(interval) }),
        1 => (1u64..100_000, 1u64..50, any::<bool>()).prop_map(|(bytes, pause, anew)| Source::Transfer {
            bytes,
            pause: Nanos::from_millis(pause),
            anew,
            window: 1 << 20
        }),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![Just(Place::Outside), (0usize..4).prop_map(Place::Guest)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_frame_is_accounted_for(
        flows in prop::collection::vec((any_source(), place(), place(), 60u32..2000), 1..6),
        turns in prop::option::of((1u64..30, 1u64..60)),
        loss in prop_oneof![Just(0.0), 0.0..0.3],
        seed: u64,
    ) {
        let mut scenario = scenario(&["", "weight = 300\nrx_max_rate = \"20Mbit/s\"", "max_rate = \"5Mbit/s\"", ""]);
        (scenario.seed, scenario.seconds) = (seed, 0.3);
        if let Some((runs, waits)) = turns {
            let turns = [Nanos::from_millis(runs), Nanos::from_millis(waits)];
            scenario.guests[3].cpu = Cpu::turns(&turns, Nanos(0)).unwrap();
        }
        for (source, from, to, frame) in flows {
            if from != to {
                let mut traffic = traffic(source, from, to);
                (traffic.frame, traffic.loss) = (frame, loss);
                scenario.traffic.push(traffic);
            }
        }
        run(&scenario);
    }

    #[test]
    fn who_wants_more_gets_its_weights_share(weights in prop::collection::vec(1u32..20, 2..5), frame in 500u32..1514) {
        let keys: Vec<String> = weights.iter().map(|weight| format!("weight = {}", 50 * weight)).collect();
        let mut scenario = scenario(&keys);
        for guest in 0..weights.len() {
            let mut flood = traffic(Source::Flood, Place::Guest(guest), Place::Outside);
            flood.frame = frame;
            scenario.traffic.push(flood);
        }
        for vif in &run(&scenario).hosts[0].vifs {
            let due = vif.due.expect("it sends");
            prop_assert!((vif.share - due).abs() < 0.01, "{}: {} of {due}", vif.name, vif.share);
        }
    }
}
