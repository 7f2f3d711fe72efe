//! What each guest gets of a worker that has to divide its time between what guests send and what they receive from outside, by all of
//! the engine.

use crate::due::{Demand, divide_among};
use crate::support::{run, scenario, traffic, with_tenants};
use fairlane_core::time::Nanos;
use fairlane_sim::scenario::{Place, Scenario, Source, Work};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Nanoseconds that the worker needs for a frame.
const FRAME: f64 = 2_000.0;

/// Frames of the longest round: of services, of the uplink, and as many again of receive queues.
const ROUND: f64 = 2.0 * (8.0 + 32.0) * 32.0;

/// Bytes of a frame.
const BYTES: u32 = 200;

/// What a guest sends or receives: its weight, and how much of the worker it wants, in per cent.
#[derive(Clone, Debug)]
struct Flow {
    weight: u32,
    wants: u32,
    is_even: bool,
}

impl Flow {
    fn source(&self) -> Source {
        let rate = (f64::from(self.wants) / 100.0 * 1e9 / FRAME * f64::from(BYTES) * 8.0) as u64;
        if self.is_even { Source::Constant { rate } } else { Source::Poisson { rate } }
    }
}

/// Flows of a direction that want so much at most.
fn flows(wants: u32) -> impl Strategy<Value = Vec<Flow>> {
    let flow = (1u32..10, 1..wants, any::<bool>());
    prop::collection::vec(flow.prop_map(|(weight, wants, is_even)| Flow { weight: weight * 100, wants, is_even }), 0..6)
}

/// Weights of the two tenants, in both directions.
const TENANTS: [u32; 2] = [300, 700];

/// A host on which guests, some of which are a tenant's, send and receive so much, through rings of so many slots.
fn host(sent: &[Flow], received: &[Flow], whose: &[Option<usize>], rings: &[usize]) -> Scenario {
    let weight = |flows: &[Flow], guest: usize| flows.get(guest).map_or(100, |flow| flow.weight);
    let own = |guest| format!("weight = {}\nrx_weight = {}", weight(sent, guest), weight(received, guest));
    let tenants = TENANTS.iter().map(|weight| format!("weight = {weight}"));
    let mut scenario = scenario(&with_tenants((0..sent.len().max(received.len())).map(own), whose, tenants));
    let host = &mut scenario.hosts[0];
    (host.link.rate, host.card) = (None, 100_000_000_000);
    host.costs.work = Work { frame: FRAME, byte: 0.0 };
    scenario.guests.iter_mut().zip(rings).for_each(|(guest, ring)| guest.ring = *ring);
    let out = sent.iter().enumerate();
    let out = out.map(|(index, flow)| traffic(flow.source(), Place::Guest(index), Place::Outside));
    let into = received.iter().enumerate();
    let into = into.map(|(index, flow)| traffic(flow.source(), Place::Outside, Place::Guest(index)));
    scenario.traffic = out.chain(into).collect();
    scenario.traffic.iter_mut().for_each(|traffic| traffic.frame = BYTES);
    (scenario.seconds, scenario.settle) = (0.8, Nanos::from_millis(300));
    scenario
}

fn rings() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop::sample::select(vec![256usize, 512, 1024]), 6)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(32) })]

    #[test]
    fn guests_get_what_they_are_due_of_a_worker_in_both_directions(
        sent in flows(150),
        received in flows(60),
        whose in prop::collection::vec(prop::option::of(0usize..2), 6),
        rings in rings(),
    ) {
        prop_assume!(!sent.is_empty() || !received.is_empty());
        let outcome = run(&host(&sent, &received, &whose, &rings));
        let part = |frames: u64| frames as f64 * FRAME / 1e9 / outcome.seconds;
        let found = outcome.flows.iter().map(|flows| part(flows.iter().sum::<u64>() / u64::from(BYTES)));
        let found: Vec<f64> = found.collect();
        let wants = outcome.tallies.iter().map(|tally| part(tally.settled.0));
        let flows = sent.iter().chain(&received).zip(wants);
        let demands: Vec<Demand> = flows.map(|(flow, wants)| Demand::of(flow.weight, wants)).collect();
        // What a tenant's guests send and what they receive are two groups.
        let groups = [&whose[..sent.len()], &whose[..received.len()]].map(|whose| whose.iter().copied());
        let [senders, receivers] = groups;
        let groups: Vec<_> = senders.chain(receivers.map(|tenant| tenant.map(|tenant| tenant + TENANTS.len()))).collect();
        let tenants: Vec<_> = [TENANTS; 2].concat().into_iter().map(|weight| Demand::of(weight, f64::INFINITY)).collect();
        let due = divide_among(&demands, &tenants, &groups, found.iter().sum());
        // A card whose ring overflows loses frames whoever they are for.
        let is_lost = outcome.drops().contains_key("ring_full");
        let tolerance = if is_lost { 0.1 } else { 0.015 };
        let near = found.iter().zip(&due).all(|(found, due)| (found - due).abs() < tolerance);
        prop_assert!(near, "{found:.3?}, not {due:.3?}, {:?}", outcome.drops());
    }

    #[test]
    fn a_guest_within_its_share_of_a_worker_loses_nothing_and_waits_for_two_rounds_at_most(
        sent in flows(150),
        received in flows(60),
        rings in rings(),
    ) {
        let own = sent.len().max(received.len());
        let mut all = [sent, received];
        for flows in &mut all {
            flows.resize(own, Flow { weight: 100, wants: 0, is_even: true });
            // It is due a fiftieth at least.
            flows.push(Flow { weight: 300, wants: 1, is_even: true });
        }
        let outcome = run(&host(&all[0], &all[1], &[], &rings));
        prop_assert!(outcome.hosts[0].vifs[own].drops.is_empty(), "{:?}", outcome.hosts[0].vifs[own].drops);
        for flow in [own, 2 * own + 1] {
            let tally = &outcome.tallies[flow];
            let longest = tally.waits.max() as f64;
            prop_assert!(longest < 2.0 * ROUND * FRAME, "{longest} ns");
            prop_assert!(tally.arrived > 0 && tally.refused_by_guest == 0);
        }
    }
}
