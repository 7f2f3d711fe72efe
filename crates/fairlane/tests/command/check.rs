//! `fairlane check`

use crate::place::{Place, assert_done, assert_refused};

const WRONG: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
rate = "100Mbps"
[[vif]]
name = "web"
socket = "DIR/web.sock"
wieght = 30
early_ack = "on"
"#;

const WRONG_LINES: &str = r#"policy.toml:4: rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as "100Mbit/s" or "none", not "100Mbps"
policy.toml:8: unknown key `wieght` in [[vif]], did you mean `weight`? (its keys are name, link, socket, connect, owner, group, mode, xen, queues, weight, min_rate, max_rate, burst, mac, addresses, early_ack)
policy.toml:9: early_ack must be true, false, "stalled" (the same as true) or "always", not "on"
"#;

#[test]
fn a_good_policy_is_summed_up() {
    let place = Place::with_policy();
    let expected = "\
policy.toml: ok

link  scheduler       rate       min_rates  vifs  uplink
near  fair       100Mbit/s  20Mbit/s (20%)     1  wire to far
far   fair            none            none     0  none
";
    assert_done(&place.run("check policy.toml"), expected);
}

#[test]
fn every_problem_has_its_line() {
    let place = Place::new();
    place.write("policy.toml", WRONG);
    assert_refused(&place.run("check policy.toml"), 2, WRONG_LINES);
}

#[test]
fn a_key_by_its_old_name_is_read_with_a_warning() {
    let place = Place::new();
    place.write("policy.toml", "[[link]]\nname = \"lan\"\ndelay = \"20ms\"\n");
    let ran = place.run("check policy.toml");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), "warning: policy.toml:3: delay is called idle_timeout now\n"));
}

#[test]
fn findings_as_json() {
    let place = Place::with_policy();
    let ran = place.run("check --json policy.toml");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(found["ok"], true);
    assert_eq!(found["links"][0]["min_rates"], 20_000_000);

    place.write("policy.toml", WRONG);
    let ran = place.run("check --json policy.toml");
    assert_eq!((ran.code, ran.err.as_str()), (Some(2), WRONG_LINES));
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&found["ok"], &found["problems"][1]["line"]), (&false.into(), &8.into()));
    assert_eq!(found["problems"][1]["file"], "policy.toml");
}

#[test]
fn a_file_that_cannot_be_read_is_no_policy() {
    let place = Place::new();
    let gone = "cannot read policy gone.toml: No such file or directory (os error 2)\n";
    assert_refused(&place.run("check gone.toml"), 2, gone);
    std::fs::write(place.path("binary.toml"), [0xff, 0xfe]).unwrap();
    let binary = "cannot read policy binary.toml: stream did not contain valid UTF-8\n";
    assert_refused(&place.run("check binary.toml"), 2, binary);
}

#[test]
fn the_example_is_right() {
    let place = Place::new();
    let ran = place.run(&format!("check {}/../../examples/policy.toml", env!("CARGO_MANIFEST_DIR")));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}
