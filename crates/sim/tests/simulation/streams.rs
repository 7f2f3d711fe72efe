//! What guests' TCP streams get of a link, by all of the engine.

use crate::support::{run, scenario, traffic};
use fairlane_core::time::Nanos;
use fairlane_sim::scenario::{Congestion, Place, Scenario, Source, Traffic};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The link's rate in each direction.
const LINK: u64 = 100_000_000;

/// The least part of a direction that streams get: 0.02 to 0.04 are the other one's acknowledgements, of 66 bytes for each two frames of
/// 1,514.
const LEFT: f64 = 0.9;

/// The streams of a guest: its weight, whether it sends, how many they are, and their path.
#[derive(Clone, Debug)]
struct Streams {
    weight: u32,
    sends: bool,
    count: usize,
    rtt: Nanos,
    congestion: Congestion,
}

fn streams() -> impl Strategy<Value = Streams> {
    let congestion = prop::sample::select(vec![Congestion::Cubic, Congestion::Bbr]);
    (1u32..10, any::<bool>(), 1usize..4, 1u64..200, congestion).prop_map(|(weight, sends, count, rtt, congestion)| {
        Streams { weight: weight * 100, sends, count, rtt: Nanos::from_micros(100 * rtt), congestion }
    })
}

/// Six seconds of a host with such guests, of which the last four count.
fn host(guests: &[Streams]) -> Scenario {
    let keys: Vec<String> = guests.iter().map(|guest| format!("weight = {}", guest.weight)).collect();
    let mut scenario = scenario(&keys);
    (scenario.hosts[0].link.rx_rate, scenario.hosts[0].card) = (Some(LINK), 10 * LINK);
    (scenario.seconds, scenario.settle) = (6.0, Nanos::from_millis(2000));
    let all = guests.iter().enumerate().map(|(index, streams)| {
        let (guest, source) = (Place::Guest(index), Source::Stream { window: 4 << 20, bytes: None });
        let (from, to) = if streams.sends { (guest, Place::Outside) } else { (Place::Outside, guest) };
        let flows = vec![(from, to); streams.count];
        Traffic { flows, rtt: streams.rtt, congestion: streams.congestion, ..traffic(source, from, to) }
    });
    scenario.traffic = all.collect();
    scenario
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(32) })]

    /// Streams of one guest all go one way: else their acknowledgements wait behind its own data.
    #[test]
    fn streams_fill_the_link_and_get_what_their_guests_are_due(guests in prop::collection::vec(streams(), 1..6)) {
        let outcome = run(&host(&guests));
        for sends in [true, false] {
            let flows = guests.iter().zip(&outcome.flows).filter(|(guest, _)| guest.sends == sends);
            let found = flows.map(|(guest, flows)| (f64::from(guest.weight), flows.iter().sum::<u64>() as f64));
            let found: Vec<(f64, f64)> = found.collect();
            let (weights, bytes) = found.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let part = bytes * 8.0 / outcome.seconds / LINK as f64;
            prop_assert!(found.is_empty() || part > LEFT, "{part} of the link");
            for (weight, found) in found {
                let off = found / bytes - weight / weights;
                prop_assert!(off.abs() < 0.01, "weight {weight} of {weights}: {off} off");
            }
        }
    }
}

/// Several BBR streams, which do not heed losses, still keep the queue short, as answers that come together are no bandwidth.
#[test]
fn streams_that_measure_their_bandwidth_keep_the_receive_queue_short() {
    let rtt = Nanos::from_millis(6);
    let streams = Streams { weight: 100, sends: false, count: 2, rtt, congestion: Congestion::Bbr };
    let outcome = run(&host(&[streams]));
    assert!(outcome.drops().is_empty(), "{:?}", outcome.drops());
    let longest = Nanos(outcome.tallies[0].waits.max());
    assert!(longest < rtt + rtt + rtt, "{longest:?}");
}
