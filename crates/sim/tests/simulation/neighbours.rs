//! What a guest that keeps to its share notices of its neighbours, whatever they do: a wait that its own share and that of its tenant
//! bound, and nothing else.

use crate::due::{Demand, divide_among};
use crate::support::{run, scenario, source, traffic, with_tenants};
use fairlane_core::time::Nanos;
use fairlane_sim::scenario::{Cpu, Place, Source, Work};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The link's rate in each direction.
const LINK: u64 = 100_000_000;

/// Bytes of the scheduler's largest service: a budget of 16 KiB and one frame of the largest size.
const SERVICE: f64 = 81_934.0;

/// The guest and one it talks to, which nobody else does.
const PAIR: [usize; 2] = [0, 1];

/// Weights of the tenants.
const TENANTS: [u32; 2] = [3, 7];

/// A guest that does anything: its weight, when it has its CPU, whether frames cost it more than it has time for, and its traffic.
#[derive(Clone, Debug)]
struct Neighbour {
    weight: u32,
    turns: Option<(u64, u64)>,
    is_slow: bool,
    traffic: Vec<Contact>,
}

/// Frames of so many bytes from a guest to another of the neighbours or outside, or from there to it.
#[derive(Clone, Debug)]
struct Contact {
    source: Source,
    peer: Option<usize>,
    sends: bool,
    frame: u32,
}

fn neighbours() -> impl Strategy<Value = Vec<Neighbour>> {
    let contact = (source(1_000_000..150_000_000), prop::option::of(0usize..4), any::<bool>(), 60u32..1514)
        .prop_map(|(source, peer, sends, frame)| Contact { source, peer, sends, frame });
    let turns = prop::option::of((1u64..40, 1u64..80));
    let neighbour = (1u32..10, turns, any::<bool>(), prop::collection::vec(contact, 1..4))
        .prop_map(|(weight, turns, is_slow, traffic)| Neighbour { weight, turns, is_slow, traffic });
    prop::collection::vec(neighbour, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(48) })]

    #[test]
    fn a_guest_within_its_share_loses_nothing_and_waits_for_a_service_of_its_own_and_of_its_tenant_at_most(
        neighbours in neighbours(),
        weight in 1u32..10,
        whose in prop::collection::vec(prop::option::of(0usize..2), 6),
        part in 0.2..0.8,
        frame in 60u32..1514,
    ) {
        let weights = [weight; 2].into_iter().chain(neighbours.iter().map(|neighbour| neighbour.weight));
        let weights: Vec<u32> = weights.collect();
        let of_weight = |weight: &u32| Demand::of(*weight, f64::INFINITY);
        let demands: Vec<Demand> = weights.iter().map(of_weight).collect();
        let dues = divide_among(&demands, &TENANTS.each_ref().map(of_weight), &whose, LINK as f64);
        let due = f64::min(dues[PAIR[0]], dues[PAIR[1]]);
        let keys = |weight: &u32| format!("weight = {weight}");
        let mut scenario = scenario(&with_tenants(weights.iter().map(keys), &whose, TENANTS.iter().map(keys)));
        (scenario.hosts[0].link.rx_rate, scenario.hosts[0].card) = (Some(LINK), 100 * LINK);
        let [guest, peer] = PAIR.map(Place::Guest);
        let outside = (due * part) as u64;
        let own = [
            (guest, Place::Outside, outside),
            (Place::Outside, guest, outside),
            (guest, peer, 1_000_000),
            (peer, guest, 1_000_000),
        ];
        for (from, to, rate) in own {
            scenario.traffic.push(traffic(Source::Constant { rate }, from, to));
        }
        scenario.traffic.iter_mut().for_each(|own| own.frame = frame);
        for (index, neighbour) in neighbours.iter().enumerate() {
            let place = |index: usize| Place::Guest(index + PAIR.len());
            let itself = &mut scenario.guests[index + PAIR.len()];
            if let Some((runs, waits)) = neighbour.turns {
                let turns = [runs, waits].map(Nanos::from_millis);
                itself.cpu = Cpu::turns(&turns, Nanos(0)).expect("it runs");
            }
            if neighbour.is_slow {
                itself.rx_work = Work { frame: 200_000.0, byte: 0.0 };
            }
            for contact in &neighbour.traffic {
                let peer = contact.peer.filter(|peer| *peer < neighbours.len() && *peer != index);
                let (from, to) = (place(index), peer.map_or(Place::Outside, place));
                let (from, to) = if contact.sends { (from, to) } else { (to, from) };
                let mut traffic = traffic(contact.source, from, to);
                traffic.frame = contact.frame;
                scenario.traffic.push(traffic);
            }
        }
        let outcome = run(&scenario);
        for guest in PAIR {
            prop_assert!(outcome.hosts[0].vifs[guest].drops.is_empty(), "{:?}", outcome.hosts[0].vifs[guest].drops);
        }
        let service = |rate: f64| SERVICE * 8e9 / rate;
        let of_tenant = |tenant| service(dues.iter().zip(&whose).filter(|(_, whose)| **whose == Some(tenant)).map(|(due, _)| due).sum());
        let most = PAIR.map(|guest| service(dues[guest]) + whose[guest].map_or(0.0, of_tenant));
        let most = f64::max(most[0], most[1]);
        for ((from, to, _), tally) in own.iter().zip(&outcome.tallies) {
            let longest = tally.waits.max() as f64;
            prop_assert!(longest < most, "{from:?} to {to:?} waits for {longest} ns, not for {most}");
            prop_assert!(tally.arrived > 0 && tally.refused_by_guest == 0 && tally.lost_in_fabric == 0);
        }
    }
}
