//! Scenarios for tests.

use fairlane_core::time::Nanos;
use fairlane_policy::Policy;
use fairlane_sim::scenario::{Costs, Cpu, Fabric, Guest, Host, Place, Scenario, Source, Traffic};

/// A second of one host with a link of 100 Mbit/s; `vifs` has the keys of each vif beside its name.
pub(crate) fn scenario(vifs: &[&str]) -> Scenario {
    let mut text =
        "link = [{ name = \"lan\", rate = \"100Mbit/s\", uplink = { tap = \"sim\" } }]\n".to_owned();
    for (index, keys) in vifs.iter().enumerate() {
        text += &format!("[[vif]]\nname = \"v{index}\"\nsocket = \"/sim/v{index}\"\n{keys}\n");
    }
    let policy = Policy::parse("test", &text).expect("the policy is right");
    let link = policy.links[0].clone();
    let guest = |vif: &fairlane_policy::Vif| Guest {
        host: 0,
        vif: vif.name.clone(),
        cpu: Cpu::Always,
        ring: 256,
        wake: Nanos::from_micros(20),
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
    }
}

/// One flow of full frames.
pub(crate) fn traffic(source: Source, from: Place, to: Place) -> Traffic {
    Traffic {
        name: format!("{from:?} to {to:?}"),
        source,
        frame: 1514,
        time: (Nanos(0), Nanos::NEVER),
        rtt: Nanos(0),
        loss: 0.0,
        flows: vec![(from, to)],
    }
}
