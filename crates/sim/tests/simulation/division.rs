//! Tenants' guarantees: on one host, and on all hosts together.

use crate::support::{parse, run};
use fairlane_sim::Scenario;

/// Hosts of 20 Mbit/s, on which a neighbour of the tenant's guest has a hundred times its weight and floods.
fn plan(hosts: usize, tenant: &str, rest: &str) -> Scenario {
    let text = format!(
        "seconds = 7\nsettle = \"1s\"\n[[host]]\nname = \"h\"\ncount = {hosts}\nlink = {{ rate = \"20Mbit/s\" }}\n\
         tenant = [{{ name = \"red\", weight = 1{tenant} }}]\n\
         vif = [{{ name = \"web\" }}, {{ name = \"app\", tenant = \"red\" }}]\n\
         [[traffic]]\nkind = \"flood\"\nfrom = \"web\"\nto = \"outside\"\n{rest}"
    );
    parse(&text).expect("the plan is right")
}

#[test]
fn a_tenants_guarantee_is_met_while_its_guest_waits_for_the_uplink() {
    let flood = "[[traffic]]\nname = \"app\"\nkind = \"flood\"\nfrom = \"app\"\nto = \"outside\"";
    let outcome = run(&plan(1, ", min_rate = \"12Mbit/s\"", flood));
    let rate = outcome.hosts[0].vifs[1].sent_rate;
    assert!((11.9e6..12.5e6).contains(&rate), "{rate}");
}

#[test]
fn a_guarantee_of_all_hosts_goes_where_the_demand_is() {
    let flood = |host: u32, when: &str| {
        format!("[[traffic]]\nkind = \"flood\"\nfrom = \"h-{host}/app\"\nto = \"outside\"\n{when}\n")
    };
    let guarantee = "[[guarantee]]\ntenant = \"red\"\nmin_rate = \"12Mbit/s\"\n".to_owned();
    let moves = flood(1, "stop = \"3s\"") + &flood(2, "start = \"3s\"") + &flood(3, "start = \"3s\"");
    let outcome = run(&plan(3, "", &(guarantee + &moves)));
    let seconds = &outcome.guarantees[0];
    assert_eq!(seconds.len(), 7);
    // In the third second from the start and from the change, and later.
    for second in [&seconds[2..3], &seconds[5..]].concat() {
        assert!(second.wanted && (10.8e6..12.8e6).contains(&second.sent), "{seconds:?}");
        assert!((11_999_990..=12_000_000).contains(&second.in_force), "{seconds:?}");
    }
}
