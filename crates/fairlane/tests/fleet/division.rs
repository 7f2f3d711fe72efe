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
    assert_eq!(stage.guaranteed(), [12, 0, 0]);
    let second = guest(1);
    wait_for("two hosts to divide", || stage.guaranteed() == [6, 6, 0]);

    drop(first);
    let third = guest(2);
    until_met(stage, "moves to another host");
    wait_for("the other two to divide", || stage.guaranteed() == [0, 6, 6]);

    // A new policy does not say otherwise, and what is divided is no policy.
    stage.write("other", |_| "weight = 200\nrx_weight = 50".to_owned());
    let (status, said) = stage.run("apply", &["other", "--settle", "0s"]);
    assert_eq!(status, Some(0), "{said}");
    wait_for("the hosts to divide again", || stage.guaranteed() == [0, 6, 6]);
    assert!(!stage.hosts[1].kept().contains("min_rate"), "{}", stage.hosts[1].kept());
    let (_, said) = stage.run("show", &[]);
    let words: Vec<&str> = said.lines().last().unwrap_or_default().split_whitespace().collect();
    assert_eq!(words, ["red", "12Mbit/s", "12.0Mbit/s", "3"], "{said}");
    [second, third]
}

pub(crate) fn a_guarantee_that_is_taken_away_is_that_of_policies_again(stage: &Stage, guests: [Flood; 2]) {
    let [second, third] = guests;
    drop(second);
    until_met(stage, "is on one host only");
    assert_eq!(stage.guaranteed(), [0, 0, 12]);
    drop(third);
    assert_eq!(stage.run("tenant", &["red", "--remove"]), (Some(0), String::new()));
    wait_for("the policies' own guarantees", || stage.guaranteed() == [0, 0, 0]);
    let (status, said) = stage.run("tenant", &["red", "min_rate=12"]);
    let wrong = "min_rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s)";
    assert_eq!((status, said.contains(wrong)), (Some(2), true), "{said}");
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
