//! The two round robins on a full link: guests get what their weights and limits give them, whatever waits for the uplink meanwhile.

use crate::due::{Demand, divide};
use crate::support::{run, scenario, traffic};
use fairlane_core::time::Nanos;
use fairlane_sim::scenario::{Place, Source};
use proptest::prelude::*;

/// The link's rate.
const LINK: f64 = 100e6;

/// A guest: its weight, its `max_rate` and what it offers, in Mbit/s; a flood if absent.
fn guest() -> impl Strategy<Value = (u32, Option<u64>, Option<u64>)> {
    let rate = || prop::option::of(2u64..60);
    (1u32..30, rate(), rate())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// All frames are of the same size, so that frames count as bytes do. netback's credit expires if others have the link when it
    /// comes, as Linux's does, so its guests have no limits here. A burst lasts longer than the turns of all others.
    #[test]
    fn guests_get_what_they_are_due_from_a_round_robin(
        is_wrr in any::<bool>(),
        guests in prop::collection::vec(guest(), 2..7),
    ) {
        let guests = guests.into_iter().map(|(weight, most, offers)| (weight, most.filter(|_| is_wrr), offers));
        let guests: Vec<_> = guests.collect();
        let keys = guests.iter().map(|(weight, most, _)| {
            let most = most.map_or(String::new(), |most| format!("\nmax_rate = \"{most}Mbit/s\"\nburst = \"192KiB\""));
            format!("weight = {weight}{most}")
        });
        let mut scenario = scenario(&keys.collect::<Vec<_>>());
        // A round has up to 180 frames, 22 ms.
        (scenario.seconds, scenario.settle) = (5.0, Nanos::from_millis(1000));
        let scheduler = if is_wrr { "wrr" } else { "netback" };
        let setting = fairlane_policy::Setting::parse("scheduler", scheduler).unwrap();
        scenario.hosts[0].policy.apply("lan", setting).unwrap();
        scenario.hosts[0].link = scenario.hosts[0].policy.links[0].clone();
        let mut demands = Vec::new();
        for (guest, (weight, most, offers)) in guests.iter().enumerate() {
            let source = offers.map_or(Source::Flood, |rate| Source::Poisson { rate: rate * 1_000_000 });
            scenario.traffic.push(traffic(source, Place::Guest(guest), Place::Outside));
            let wants = [most, offers].into_iter().flatten().map(|mega| *mega as f64 * 1e6).fold(LINK, f64::min);
            demands.push(Demand::of(if is_wrr { *weight } else { 1 }, wants));
        }
        let outcome = run(&scenario);
        for (vif, due) in outcome.hosts[0].vifs.iter().zip(divide(&demands, LINK)) {
            // One that offered more at first than it got then sends more now.
            let lacks = (due - vif.sent_rate) / LINK;
            prop_assert!(lacks < 0.03, "{} sends {:.0} of {due:.0}, by {scheduler}", vif.name, vif.sent_rate);
        }
    }
}
