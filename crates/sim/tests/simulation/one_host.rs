//! One host: shares, waits, losses.

use crate::support::{run, scenario, traffic};
use fairlane_core::time::Nanos;
use fairlane_sim::Outcome;
use fairlane_sim::scenario::{Cpu, Place, Scenario, Source, Work};

/// Mbit/s that arrived of a traffic.
fn rate(outcome: &Outcome, traffic: usize) -> f64 {
    outcome.flows[traffic].iter().sum::<u64>() as f64 * 8e-6 / outcome.seconds
}

#[test]
fn floods_share_the_link_by_weight() {
    let mut scenario = scenario(&["weight = 300", "", "min_rate = \"30Mbit/s\"\nweight = 1"]);
    scenario.traffic = (0..3).map(|guest| traffic(Source::Flood, Place::Guest(guest), Place::Outside)).collect();
    let outcome = run(&scenario);
    let rates: Vec<f64> = (0..3).map(|index| rate(&outcome, index)).collect();
    assert!((rates.iter().sum::<f64>() - 100.0).abs() < 0.5, "{rates:?}");
    assert!((rates[0] / rates[1] - 3.0).abs() < 0.03 && (rates[2] - 30.0).abs() < 0.3, "{rates:?}");
    assert!(outcome.drops().is_empty(), "{:?}", outcome.drops());
    let dues: Vec<f64> = outcome.hosts[0].vifs.iter().map(|vif| vif.due.unwrap()).collect();
    assert!((dues[0] - 300.0 / 401.0).abs() < 1e-9, "{dues:?}");
}

#[test]
fn a_worker_without_time_to_spare_is_shared_by_weight() {
    let mut scenario = scenario(&["", "", "weight = 50"]);
    let host = &mut scenario.hosts[0];
    (host.link.rate, host.card) = (None, 100_000_000_000);
    host.costs.work = Work { frame: 2_000.0, byte: 0.0 };
    // Some 6,000 Mbit/s; the second guest's ring is emptied again and again.
    let rates = [9_000_000_000, 2_600_000_000, 4_000_000_000];
    let source = |guest: usize| traffic(Source::Constant { rate: rates[guest] }, Place::Guest(guest), Place::Outside);
    scenario.traffic = (0..3).map(source).collect();
    let outcome = run(&scenario);
    let rates: Vec<f64> = (0..3).map(|index| rate(&outcome, index)).collect();
    let due = rates.iter().sum::<f64>() / 5.0;
    for (index, weight) in [2.0, 2.0, 1.0].into_iter().enumerate() {
        assert!((rates[index] / (due * weight) - 1.0).abs() < 0.01, "{rates:?}");
        let waits = &outcome.tallies[index].waits;
        assert!(
            waits.max() < 20_000_000,
            "a guest's rings and queue hold as much as it sends in 13 ms: {}",
            waits.max()
        );
    }
}

#[test]
fn a_stalled_guest_holds_up_no_neighbour() {
    let mut scenario = scenario(&["", ""]);
    scenario.hosts[0].link.rate = None;
    let millis = Nanos::from_millis;
    scenario.guests[0].cpu = Cpu::turns(&[millis(30), millis(60)], Nanos(0)).unwrap();
    let interval = Nanos::from_micros(5300);
    scenario.traffic = vec![
        traffic(Source::Constant { rate: 40_000_000 }, Place::Outside, Place::Guest(0)),
        traffic(Source::Requests { interval }, Place::Outside, Place::Guest(1)),
        traffic(Source::Constant { rate: 40_000_000 }, Place::Guest(1), Place::Guest(0)),
    ];
    let outcome = run(&scenario);
    let trips = &outcome.tallies[1].trips;
    assert!(trips.len() > 140 && trips.max() < 1_000_000, "{} {}", trips.len(), trips.max());
    let waits = &outcome.tallies[0].waits;
    assert!(waits.max() > 55_000_000 && waits.max() < 70_000_000, "{}", waits.max());
    assert!((rate(&outcome, 0) - 40.0).abs() < 3.0, "{}", rate(&outcome, 0));
}

#[test]
fn a_guests_own_work_limits_what_it_takes_and_sends() {
    let mut scenario = scenario(&["", ""]);
    (scenario.hosts[0].link.rate, scenario.hosts[0].card) = (None, 10_000_000_000);
    let work = Work { frame: 2_000.0, byte: 40.0 };
    scenario.guests[0].rx_work = work;
    let stream = Source::Stream { window: 1 << 20, bytes: None };
    scenario.traffic = vec![
        traffic(Source::Constant { rate: 300_000_000 }, Place::Outside, Place::Guest(0)),
        traffic(stream, Place::Outside, Place::Guest(1)),
    ];
    let outcome = run(&scenario);
    // A frame takes 62.56 us, with 1,514 bytes.
    let most = 1514.0 * 8.0 / 62.56;
    assert!((rate(&outcome, 0) - most).abs() < 0.01 * most, "{}", rate(&outcome, 0));
    assert!(rate(&outcome, 1) > 1_000.0, "its neighbour is as fast as before: {}", rate(&outcome, 1));
    // A stream has a window in place of losses.
    scenario.traffic[0].source = stream;
    let outcome = run(&scenario);
    assert!((rate(&outcome, 0) - most).abs() < 0.02 * most, "{}", rate(&outcome, 0));
    // And what it sends.
    (scenario.guests[0].work, scenario.guests[0].rx_work) = (work, Work::default());
    scenario.traffic.remove(0);
    let even = Source::Constant { rate: 300_000_000 };
    for source in [Source::Flood, stream, even, Source::Poisson { rate: 300_000_000 }] {
        scenario.traffic.push(traffic(source, Place::Guest(0), Place::Outside));
        let outcome = run(&scenario);
        assert!((rate(&outcome, 1) - most).abs() < 0.02 * most, "{source:?}: {}", rate(&outcome, 1));
        scenario.traffic.pop();
    }
}

#[test]
fn a_guests_work_on_answers_delays_what_it_sends() {
    let mut scenario = scenario(&[""]);
    scenario.guests[0].work = Work { frame: 200_000.0, byte: 0.0 };
    let even = traffic(Source::Constant { rate: 1_000_000_000 }, Place::Guest(0), Place::Outside);
    let asks = traffic(Source::Requests { interval: Nanos::from_micros(400) }, Place::Outside, Place::Guest(0));
    scenario.traffic = vec![even];
    let alone = rate(&run(&scenario), 0);
    scenario.traffic.push(asks);
    let asked = rate(&run(&scenario), 0);
    // Of 5,000 frames a second that it has time for, 2,500 are answers.
    assert!((asked / alone - 0.5).abs() < 0.05, "{asked} of {alone} Mbit/s");
}

#[test]
fn a_stream_fills_the_link_and_survives_losses() {
    let mut scenario = scenario(&["", ""]);
    let stream = Source::Stream { window: 1 << 20, bytes: None };
    scenario.traffic =
        vec![traffic(stream, Place::Guest(0), Place::Outside), traffic(stream, Place::Outside, Place::Guest(1))];
    scenario.traffic[1].loss = 0.001;
    scenario.traffic[1].rtt = Nanos::from_millis(10);
    let outcome = run(&scenario);
    assert!(rate(&outcome, 0) > 90.0, "{}", rate(&outcome, 0));
    // Mathis et al., 1997: segment / round trip * sqrt(3 / 2 / loss), roughly.
    let expected = 1514.0 * 8.0 / 0.010 / 1e6 * (1.5f64 / 0.001).sqrt();
    assert!(rate(&outcome, 1) > expected / 2.0 && rate(&outcome, 1) < expected * 3.0, "{}", rate(&outcome, 1));
    assert!(outcome.tallies[1].retransmitted >= 1);
}

#[test]
fn the_same_seed_gives_the_same() {
    let mut scenario = scenario(&["", ""]);
    let poisson = Source::Poisson { rate: 60_000_000 };
    scenario.traffic = (0..2).map(|guest| traffic(poisson, Place::Guest(guest), Place::Outside)).collect();
    let of = |scenario: &Scenario| {
        let outcome = run(scenario);
        (outcome.events, outcome.flows.clone(), outcome.tallies[0].waits.value_at_quantile(0.99))
    };
    let first = of(&scenario);
    assert_eq!(first, of(&scenario));
    scenario.seed = 2;
    assert_ne!(first, of(&scenario));
}

/// Nine guests are flooded from outside with the smallest frames, and one of ten times their weight sends such frames, of which its
/// ring holds no more than a round of the worker takes.
#[test]
fn a_ring_that_a_round_empties_costs_its_guest_no_part_of_the_worker() {
    let keys: Vec<String> = (0..10).map(|guest| format!("weight = {}", if guest == 0 { 1000 } else { 100 })).collect();
    let mut scenario = scenario(&keys);
    let host = &mut scenario.hosts[0];
    (host.link.rate, host.card) = (None, 100_000_000_000);
    host.costs.work = Work { frame: 200.0, byte: 0.0 };
    scenario.traffic.push(traffic(Source::Flood, Place::Guest(0), Place::Outside));
    let flood = Source::Constant { rate: 600_000_000 };
    scenario.traffic.extend((1..10).map(|guest| traffic(flood, Place::Outside, Place::Guest(guest))));
    scenario.traffic.iter_mut().for_each(|traffic| traffic.frame = 64);
    (scenario.seconds, scenario.settle) = (0.7, Nanos::from_millis(500));
    let bytes: Vec<u64> = run(&scenario).flows.iter().map(|flows| flows.iter().sum()).collect();
    let part = bytes[0] as f64 / bytes.iter().sum::<u64>() as f64;
    assert!((part - 10.0 / 19.0).abs() < 0.01, "{part}");
}

/// A guest that has its CPU for a third of the time does a third of the work, however much waits for it.
#[test]
fn a_guest_that_waits_for_its_cpu_does_not_work_meanwhile() {
    let mut scenario = scenario(&[""]);
    (scenario.hosts[0].link.rate, scenario.seconds) = (None, 3.0);
    let millis = Nanos::from_millis;
    // Longer than a turn: 6 Mbit/s if it always ran.
    scenario.guests[0].ring = 16;
    scenario.guests[0].work = Work { frame: 2_000_000.0, byte: 0.0 };
    scenario.guests[0].cpu = Cpu::turns(&[millis(1), millis(2)], Nanos(0)).unwrap();
    scenario.traffic = vec![traffic(Source::Flood, Place::Guest(0), Place::Outside)];
    let outcome = run(&scenario);
    // The ring is filled at once, and its frames are worked on for 96 ms.
    assert!((1.8..2.2).contains(&rate(&outcome, 0)), "{}", rate(&outcome, 0));
}
