//! Several hosts, and the fabric between them.

use crate::support::{parse, run};
use fairlane_sim::Scenario;

fn plan(fabric: &str, traffic: &str) -> Scenario {
    let text = format!(
        "seconds = 1\n[fabric]\n{fabric}\n\
         [[host]]\nname = \"a\"\nlink = {{ rate = \"100Mbit/s\" }}\nvif = [{{ name = \"x\", count = 3 }}]\n\
         [[host]]\nname = \"b\"\ncount = 2\nlink = {{ rate = \"100Mbit/s\" }}\nvif = [{{ name = \"y\" }}]\n{traffic}"
    );
    parse(&text).expect("the plan is right")
}

fn rate(bytes: &[u64], seconds: f64) -> f64 {
    bytes.iter().sum::<u64>() as f64 * 8e-6 / seconds
}

#[test]
fn hosts_reach_each_other() {
    let scenario = plan(
        "delay = \"1ms\"",
        "[[traffic]]\nkind = \"requests\"\nfrom = \"a/x-1\"\nto = \"b-2/y\"\ninterval = \"7ms\"",
    );
    let outcome = run(&scenario);
    let trips = &outcome.tallies[0].trips;
    assert!(
        trips.len() > 120 && trips.min() >= 2_000_000 && trips.max() < 3_500_000,
        "{} {}",
        trips.min(),
        trips.max()
    );
}

#[test]
fn a_small_capacity_is_shared_and_loses_the_rest() {
    let scenario = plan(
        "capacity = \"30Mbit/s\"\nbuffer = \"32KiB\"",
        "[[traffic]]\nkind = \"constant\"\nrate = \"20Mbit/s\"\nfrom = \"x\"\nto = \"y\"",
    );
    let outcome = run(&scenario);
    assert!((rate(&outcome.flows[0], outcome.seconds) - 30.0).abs() < 0.5, "{:?}", outcome.flows);
    assert!(outcome.drops()["fabric"] > 1000, "{:?}", outcome.drops());
}

#[test]
fn an_incast_is_answered_by_all() {
    let scenario = plan(
        "buffer = \"1MiB\"",
        "[[traffic]]\nkind = \"incast\"\nbytes = \"30KiB\"\ninterval = \"50ms\"\nfrom = \"a/x\"\nto = \"b-1/y\"",
    );
    let outcome = run(&scenario);
    let tally = &outcome.tallies[0];
    // 90 KiB at 100 Mbit/s take 7.4 ms.
    assert!(tally.late == 0 && tally.trips.len() >= 17, "{} {}", tally.late, tally.trips.len());
    assert!(tally.trips.min() > 7_000_000 && tally.trips.max() < 20_000_000, "{}", tally.trips.max());
}

#[test]
fn a_round_of_an_incast_is_one_whenever_its_senders_have_their_cpus() {
    let text = "[[guest]]\nvif = \"a/x-1\"\nruns = \"1ms\"\nwaits = \"12ms\"\nphase = \"1ms\"\n\
        [[traffic]]\nkind = \"incast\"\nbytes = \"3KiB\"\ninterval = \"50ms\"\nfrom = \"a/x\"\nto = \"b-1/y\"";
    let outcome = run(&plan("buffer = \"1MiB\"", text));
    let tally = &outcome.tallies[0];
    assert!(tally.late == 0 && (17..=20).contains(&tally.trips.len()), "{} {}", tally.late, tally.trips.len());
    // The first sender waits up to 12 ms, and so does its handshake; the others are done before it begins.
    assert!(tally.trips.max() > 9_000_000 && tally.trips.max() < 40_000_000, "{}", tally.trips.max());
}
