//! Scenarios for tests.

use fairlane_core::time::Nanos;
use fairlane_policy::Policy;
use fairlane_policy::problem::Problem;
use fairlane_sim::Outcome;
use fairlane_sim::scenario::{Costs, Cpu, Fabric, Guest, Host, Place, Scenario, Source, Traffic, Work};
use proptest::prelude::*;
use std::ops::Range;

/// A second of one host with a link of 100 Mbit/s; `vifs` has the keys of each vif beside its name.
pub(crate) fn scenario(vifs: &[impl AsRef<str>]) -> Scenario {
    let mut text = "link = [{ name = \"lan\", rate = \"100Mbit/s\", uplink = { tap = \"sim\" } }]\n".to_owned();
    for (index, keys) in vifs.iter().enumerate() {
        text += &format!("[[vif]]\nname = \"v{index}\"\nsocket = \"/sim/v{index}\"\n{}\n", keys.as_ref());
    }
    let policy = Policy::parse("test", &text).expect("the policy is right");
    let link = policy.links[0].clone();
    let guest = |vif: &fairlane_policy::Vif| Guest {
        host: 0,
        vif: vif.name.clone(),
        cpu: Cpu::Always,
        ring: 256,
        wake: Nanos::from_micros(20),
        work: Work::default(),
        rx_work: Work::default(),
    };
    Scenario {
        name: "test".to_owned(),
        seed: 1,
        seconds: 1.0,
        settle: Nanos::from_millis(200),
        interval: Nanos::from_millis(100),
        fabric: Fabric::default(),
        guests: policy.vifs.iter().map(guest).collect(),
        hosts: vec![Host { name: "host".to_owned(), policy, link, card: 1_000_000_000, costs: Costs::default() }],
        traffic: Vec::new(),
        guarantees: Vec::new(),
        changes: Vec::new(),
    }
}

/// The keys of vifs, some of which are a tenant's, for [`scenario`]. The tenants follow the last vif.
pub(crate) fn with_tenants(
    vifs: impl Iterator<Item = String>,
    whose: &[Option<usize>],
    tenants: impl Iterator<Item = String>,
) -> Vec<String> {
    let tenant = |vif: usize| whose.get(vif).copied().flatten();
    let key = |vif| tenant(vif).map_or(String::new(), |tenant| format!("\ntenant = \"t{tenant}\"\n"));
    let mut keys: Vec<String> = vifs.enumerate().map(|(vif, keys)| keys + &key(vif)).collect();
    let table = |(index, keys)| format!("\n[[tenant]]\nname = \"t{index}\"\n{keys}\n");
    keys.last_mut().expect("there is a vif").extend(tenants.enumerate().map(table));
    keys
}

/// One flow of full frames.
pub(crate) fn traffic(source: Source, from: Place, to: Place) -> Traffic {
    let name = format!("{from:?} to {to:?}");
    Traffic::new(name, source, 1514, (Nanos(0), Nanos::NEVER), vec![(from, to)])
}

/// A source of frames or of a stream without end, at one of these rates.
pub(crate) fn source(rate: Range<u64>) -> impl Strategy<Value = Source> {
    prop_oneof![
        rate.clone().prop_map(|rate| Source::Constant { rate }),
        rate.clone().prop_map(|rate| Source::Poisson { rate }),
        (rate, 1u64..20, 1u64..20).prop_map(|(rate, on, off)| Source::OnOff {
            rate,
            on: Nanos::from_millis(on),
            off: Nanos::from_millis(off)
        }),
        (10u64..1000).prop_map(|window| Source::Stream { window: window << 10, bytes: None }),
    ]
}

/// Parses a plan.
pub(crate) fn parse(text: &str) -> Result<Scenario, Vec<Problem>> {
    Scenario::parse(std::path::Path::new("plan.toml"), text)
}

/// Runs a scenario, in which every frame must be accounted for.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    let outcome = fairlane_sim::run(scenario).expect("it can be simulated");
    let dropped: u64 = outcome.drops().values().sum();
    let (made, arrived, waiting) = (outcome.made(), outcome.arrived(), outcome.waiting);
    assert_eq!(made, arrived + dropped + waiting, "arrived {arrived}, waiting {waiting}, {:?}", outcome.drops());
    outcome
}
