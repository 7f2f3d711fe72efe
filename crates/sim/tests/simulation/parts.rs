//! What each guest gets of a link, in either direction, and of a worker, by all of the engine: what policy divides among those that want
//! it.

use crate::due::{Demand, divide};
use crate::support::{run, scenario, traffic};
use fairlane_core::time::Nanos;
use fairlane_sim::scenario::{Place, Scenario, Source, Work};
use proptest::prelude::*;

/// How far a guest may be from what it is due, as a part of the whole.
const TOLERANCE: f64 = 0.015;

/// The link's rate, Mbit/s.
const LINK: f64 = 100.0;

/// A guest's policy and what is sent, Mbit/s, in frames of so many bytes.
#[derive(Clone, Debug)]
struct Guest {
    weight: u32,
    least: Option<u32>,
    most: Option<u32>,
    wants: u64,
    is_even: bool,
    frame: u32,
}

impl Guest {
    /// Its keys in a policy, for one direction.
    fn keys(&self, direction: &str) -> String {
        let rate = |key: &str, rate: Option<u32>| {
            rate.map_or(String::new(), |rate| format!("{direction}{key} = \"{rate}Mbit/s\"\n"))
        };
        let least = self.least.map(|least| least.min(self.most.unwrap_or(least)));
        format!("{direction}weight = {}\n", self.weight) + &rate("min_rate", least) + &rate("max_rate", self.most)
    }

    fn source(&self) -> Source {
        let rate = self.wants * 1_000_000;
        if self.is_even { Source::Constant { rate } } else { Source::Poisson { rate } }
    }

    fn demand(&self) -> Demand {
        let most = self.most.map_or(self.wants as f64, |most| f64::from(most).min(self.wants as f64));
        Demand { weight: self.weight.into(), least: self.least.unwrap_or(0).into(), most }
    }
}

fn guests(wants: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Guest>> {
    let guest = (1u32..10, prop::option::of(1u32..15), prop::option::of(2u32..80), wants, any::<bool>(), 300u32..1514);
    let guest = guest.prop_map(|(weight, least, most, wants, is_even, frame)| Guest {
        weight,
        least,
        most,
        wants,
        is_even,
        frame,
    });
    prop::collection::vec(guest, 1..6)
}

/// Two seconds, after one, of guests with these keys and sources.
fn measured(scenario: &mut Scenario) -> Vec<f64> {
    (scenario.seconds, scenario.settle) = (3.0, Nanos::from_millis(1000));
    let outcome = run(scenario);
    outcome.flows.iter().map(|flows| flows.iter().sum::<u64>() as f64 * 8e-6 / outcome.seconds).collect()
}

fn check(found: &[f64], due: &[f64], whole: f64) -> Result<(), TestCaseError> {
    let near = found.iter().zip(due).all(|(found, due)| (found - due).abs() < TOLERANCE * whole);
    prop_assert!(near, "{found:.2?}, not {due:.2?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn guests_get_what_they_are_due_of_the_link(guests in guests(1..150), receives: bool) {
        let keys: Vec<String> = guests.iter().map(|guest| guest.keys(if receives { "rx_" } else { "" })).collect();
        let mut scenario = scenario(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        if receives {
            scenario.hosts[0].link.rx_rate = Some((LINK * 1e6) as u64);
        }
        for (index, guest) in guests.iter().enumerate() {
            let (from, to) = (Place::Guest(index), Place::Outside);
            let (from, to) = if receives { (to, from) } else { (from, to) };
            let mut traffic = traffic(guest.source(), from, to);
            traffic.frame = guest.frame;
            scenario.traffic.push(traffic);
        }
        let due = divide(&guests.iter().map(Guest::demand).collect::<Vec<_>>(), LINK);
        check(&measured(&mut scenario), &due, LINK)?;
    }

    /// A worker that needs 10 us for a frame, so some 1,200 Mbit/s, and senders whose rings it empties again and again.
    #[test]
    fn guests_get_what_they_are_due_of_the_worker(guests in guests(20..1500)) {
        let keys: Vec<String> = guests.iter().map(|guest| format!("weight = {}", guest.weight)).collect();
        let mut scenario = scenario(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        let host = &mut scenario.hosts[0];
        (host.link.rate, host.card) = (None, 100_000_000_000);
        host.costs.work = Work { frame: 10_000.0, byte: 0.0 };
        for (index, guest) in guests.iter().enumerate() {
            scenario.traffic.push(traffic(guest.source(), Place::Guest(index), Place::Outside));
        }
        let found = measured(&mut scenario);
        let demands: Vec<Demand> = guests.iter().map(|guest| Demand::of(guest.weight, guest.wants as f64)).collect();
        let whole = found.iter().sum();
        check(&found, &divide(&demands, whole), whole)?;
    }
}
