//! A tenant's guarantee on all hosts together: where its guests send, there it is.

use crate::guests::{Flood, wait_for};
use crate::stage::Stage;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What the fleet guarantees to the tenant, in Mbit/s. A host's link has 20.
const GUARANTEE: u64 = 12;

/// Time over which rates are taken.
const WHILE: Duration = Duration::from_millis(500);

/// Leaves the tenant's guests of two hosts sending.
pub(crate) fn a_guarantee_of_all_hosts_goes_where_the_demand_is(stage: &Stage) -> [Flood; 2] {
    let guest = |host: usize| Flood::start(&stage.hosts[host].socket("app"), 2);
    let first = guest(0);
    assert_eq!(stage.run("tenant", &["red", "min_rate=12Mbit/s"]), (Some(0), String::new()));
    until_met(stage, "begins");
    wait_for("one host to have all", || stage.guaranteed() == [12, 0, 0]);
    let second = guest(1);
    wait_for("two hosts to divide", || stage.guaranteed() == [6, 6, 0]);
    links_of_a_host_have_parts_of_their_own(stage);

    drop(first);
    let third = guest(2);
    until_met(stage, "moves to another host");
    wait_for("the other two to divide", || stage.guaranteed() == [0, 6, 6]);
    // Of a host with one link it is simply the tenant's guarantee.
    let red = &stage.hosts[2].daemon.snapshot().tenants[0];
    assert_eq!((red.min_rate.div_ceil(1_000_000), red.min_rate_on.len()), (6, 0));

    drop(second);
    until_met(stage, "is on one host of two only");
    let second = guest(1);
    wait_for("two hosts to divide again", || stage.guaranteed() == [0, 6, 6]);

    // A new policy does not say otherwise, and what is divided is no policy.
    stage.write("other", |_| "weight = 200\nrx_weight = 50".to_owned());
    let (status, said) = stage.run("apply", &["other", "--settle", "0s"]);
    assert_eq!(status, Some(0), "{said}");
    wait_for("the hosts to divide again", || stage.guaranteed() == [0, 6, 6]);
    assert!(!stage.hosts[1].kept().contains("min_rate"), "{}", stage.hosts[1].kept());
    assert_eq!(stage.in_force(), ["red", "12Mbit/s", "12.0Mbit/s", "3"]);
    [second, third]
}

pub(crate) fn a_guarantee_that_is_taken_away_is_that_of_policies_again(stage: &Stage, guests: [Flood; 2]) {
    let [second, third] = guests;
    drop(second);
    until_met(stage, "is on a host only that was away and listens first");
    wait_for("that host to have all", || stage.guaranteed() == [0, 0, 12]);
    drop(third);
    assert_eq!(stage.run("tenant", &["red", "--remove"]), (Some(0), String::new()));
    wait_for("the policies' own guarantees", || stage.guaranteed() == [0, 0, 0]);
    let (status, said) = stage.run("tenant", &["red", "min_rate=12"]);
    let wrong = "min_rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s)";
    assert_eq!((status, said.contains(wrong)), (Some(2), true), "{said}");
}

/// On a host with two links the tenant has guests on both, then on one again.
fn links_of_a_host_have_parts_of_their_own(stage: &Stage) {
    let host = &stage.hosts[1];
    let socket = host.socket("edge");
    let edge = format!("vif edge link=far tenant=red socket={}", socket.display());
    let ctl = |command: &str, what: &str| {
        let output = host.daemon.ctl(&[&[command], what.split(' ').collect::<Vec<_>>().as_slice()].concat());
        assert!(output.status.success(), "{output:?}");
    };
    ctl("add", &edge);
    let guest = Flood::start(&socket, 3);
    wait_for("three links to divide", || (stage.guaranteed(), host.guaranteed_on("far")) == (vec![4, 4, 0], 4));
    wait_for("the hosts to say so", || stage.in_force() == ["red", "12Mbit/s", "12.0Mbit/s", "3"]);
    drop(guest);
    wait_for("one link to need nothing", || (stage.guaranteed(), host.guaranteed_on("far")) == (vec![6, 6, 0], 0));
    ctl("remove", "vif edge");
}

/// Waits until the tenant sends what is guaranteed to it, and prints how long that took.
fn until_met(stage: &Stage, what: &str) {
    let start = Instant::now();
    wait_for("the tenant's guarantee to be met", || {
        let (before, at) = (stage.sent_by_tenant(), Instant::now());
        sleep(WHILE);
        let rate = (stage.sent_by_tenant() - before) as f64 * 8e-6 / at.elapsed().as_secs_f64();
        rate > 0.95 * GUARANTEE as f64
    });
    println!("the demand {what}: the guarantee is met after {:.1} s", start.elapsed().as_secs_f64());
}
