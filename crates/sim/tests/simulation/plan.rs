//! Plans: the examples are right, and mistakes are reported where they are.

use crate::support::parse;
use fairlane_policy::Setting;
use fairlane_sim::Scenario;
use fairlane_sim::scenario::{Change, Work};
use proptest::prelude::*;
use std::path::Path;

const RIGHT: &str = r#"
seconds = 1
[[host]]
name = "a"
link = { rate = "1Gbit/s" }
[[host.vif]]
name = "web"
count = 2
weight = 200
[[guest]]
vif = "web"
runs = "30ms"
waits = "60ms"
[[traffic]]
kind = "constant"
rate = "1Mbit/s"
from = "web"
to = "outside"
"#;

#[test]
fn examples_are_right() {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/plans");
    let mut names = Vec::new();
    for entry in plans.read_dir().expect("there are examples") {
        let path = entry.expect("it can be read").path();
        let text = std::fs::read_to_string(&path).expect("it can be read");
        names.push(Scenario::parse(&path, &text).unwrap_or_else(|wrong| panic!("{wrong:?}")).name);
    }
    assert!(names.len() >= 2, "{names:?}");
}

#[test]
fn a_plan_is_a_scenario() {
    let text = RIGHT.replace("waits = \"60ms\"", "waits = \"60ms\"\nrx_work = { frame_ns = 700.0 }");
    let scenario = parse(&text).expect("it is right");
    assert_eq!(scenario.guests.len(), 2);
    assert_eq!(scenario.guests[1].rx_work, Work { frame: 700.0, byte: 0.0 });
    assert_eq!(scenario.hosts[0].policy.vifs[1].name, "web-2");
    assert_eq!(scenario.hosts[0].policy.vifs[1].shares.tx.weight, 200);
    assert_eq!(scenario.traffic[0].flows.len(), 2);
}

/// A table's vif is all of its copies, changes come in the order of their times, and `scheduler` before its own keys.
#[test]
fn changes_are_settings_of_vifs_tenants_and_links() {
    let changes = "[[change]]\nat = \"700ms\"\nof = \"lan\"\nset = { prioritize = false, scheduler = \"wrr\" }\n\
                   [[change]]\nat = \"300ms\"\nof = \"web\"\nset = { max_rate = \"none\" }\n\
                   [[change]]\nat = \"300ms\"\nof = \"a/web-2\"\nset = { weight = 9 }\n";
    let scenario = parse(&format!("{RIGHT}{changes}")).expect("it is right");
    let of = |change: &Change| (change.at.0 / 1_000_000, change.target.clone(), change.setting.clone());
    let set = |key, value| Setting::parse(key, value).unwrap();
    let expected = [
        (300, "web-1", set("max_rate", "none")),
        (300, "web-2", set("max_rate", "none")),
        (300, "web-2", set("weight", "9")),
        (700, "lan", set("scheduler", "wrr")),
        (700, "lan", set("prioritize", "false")),
    ];
    let expected = expected.map(|(at, target, setting)| (at, target.to_owned(), setting));
    assert_eq!(scenario.changes.iter().map(of).collect::<Vec<_>>(), expected);
}

#[test]
fn mistakes_name_their_line() {
    for (right, wrong, line, message) in [
        ("seconds = 1\n", "seconds = 0\n", 2, "seconds must be 0.001 to 1000000, not 0"),
        ("seconds = 1\n", "seconds = 1\nsettle = \"2s\"\n", 3, "settle must be before the end"),
        (
            "waits = \"60ms\"",
            "waits = \"60ms\"\nwork = { byte_ns = -1.0 }",
            14,
            "work takes nanoseconds: frame_ns 0 to 1e9",
        ),
        ("seconds = 1\n", "seconds = 1\nsede = 3\n", 3, "unknown field `sede`"),
        ("rate = \"1Gbit/s\"", "rate = \"1Gbit\"", 5, "rate must be a number and a unit"),
        ("rate = \"1Gbit/s\"", "wire = 3", 5, "unknown key `wire`"),
        ("count = 2", "count = 0", 6, "count must be 1 to 1000000, not 0"),
        ("weight = 200", "weight = 0", 6, "weight must be 1 to 10000, not 0"),
        ("weight = 200", "tenant = \"red\"", 6, "no tenant is named `red`"),
        (
            "[[traffic]]",
            "[[guarantee]]\ntenant = \"red\"\nmin_rate = \"1Mbit/s\"\n[[traffic]]",
            15,
            "no tenant is named `red`",
        ),
        (
            "[[traffic]]",
            "[[change]]\nat = \"1s\"\nof = \"web\"\nset = { weight = 2 }\n[[traffic]]",
            15,
            "a change must be before the end",
        ),
        (
            "[[traffic]]",
            "[[change]]\nat = \"0s\"\nof = \"wbe\"\nset = { weight = 2 }\n[[traffic]]",
            16,
            "no vif, tenant or link is named `wbe`",
        ),
        (
            "[[traffic]]",
            "[[change]]\nat = \"0s\"\nof = \"web\"\nset = { weight = 0 }\n[[traffic]]",
            17,
            "weight must be 1 to 10000, not 0",
        ),
        (
            "[[traffic]]",
            "[[change]]\nat = \"0s\"\nof = \"lan\"\nset = { weight = 2 }\n[[traffic]]",
            17,
            "no vif is named `lan`",
        ),
        ("vif = \"web\"", "vif = \"wbe\"", 11, "no vif is named `wbe`, did you mean `web`?"),
        ("waits = \"60ms\"", "", 11, "a guest has runs and waits"),
        ("runs = \"30ms\"", "runs = \"0ms\"", 11, "a guest must run now and then"),
        ("runs = \"30ms\"", "runs = \"30\"", 12, "a duration must be a number and a unit"),
        ("kind = \"constant\"", "kind = \"constnat\"", 15, "no kind is named `constnat`, did you mean `constant`?"),
        ("rate = \"1Mbit/s\"", "", 15, "kind `constant` needs the key rate"),
        ("rate = \"1Mbit/s\"", "rate = \"0Mbit/s\"", 16, "a rate must be more than 0"),
        ("to = \"outside\"", "to = \"outside\"\nbytes = \"1KiB\"", 19, "bytes does not belong to kind `constant`"),
        (
            "to = \"outside\"",
            "to = \"outside\"\ncongestion = \"vegas\"",
            19,
            "unknown variant `vegas`, expected one of `reno`",
        ),
        (
            "to = \"outside\"",
            "to = \"outside\"\ncongestion = \"reno\"",
            19,
            "congestion does not belong to kind `constant`",
        ),
        ("to = \"outside\"", "to = \"outside\"\nframe = 70000", 19, "frame must be 60 to 65550 bytes, not 70000"),
        (
            "kind = \"constant\"\nrate = \"1Mbit/s\"",
            "kind = \"transfer\"\nbytes = \"1KiB\"",
            15,
            "kind `transfer` needs the key pause",
        ),
        (
            "kind = \"constant\"\nrate = \"1Mbit/s\"",
            "kind = \"stream\"\nframe = 100",
            14,
            "frame must be 154 bytes or more",
        ),
        ("to = \"outside\"", "to = \"outside\"\nloss = 1.5", 19, "loss must be at least 0 and less than 1"),
        ("to = \"outside\"", "to = \"web-1\"\nstreams = 0", 17, "streams must be 1 or more"),
        ("link = { rate = \"1Gbit/s\" }", "policy = \"none.toml\"", 5, "a host has a policy file, or link"),
        ("[[host.vif]]\nname = \"web\"", "[[host.vif]]", 6, "a vif needs a name"),
        (
            "name = \"a\"",
            "name = \"a\"\ncount = 1_000_000",
            5,
            "count must be 1 or more, and all hosts of a plan 10000 at most",
        ),
    ] {
        let text = RIGHT.replacen(right, wrong, 1);
        assert_ne!(text, RIGHT, "{right}");
        let problems = parse(&text).err().unwrap_or_else(|| panic!("`{wrong}` is accepted"));
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let expected = format!("plan.toml:{line}: {message}");
        assert!(
            lines.iter().any(|found| found.starts_with(&expected)),
            "`{wrong}` must be reported as {expected}: {lines:?}"
        );
    }
}

#[test]
fn files_beside_a_plan_are_read_and_their_mistakes_reported() {
    let directory = std::env::temp_dir().join(format!("fairlane-plan-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("there is room");
    let path = directory.join("plan.toml");
    let text = "seconds = 1\n[[host]]\nname = \"a\"\npolicy = \"policy.toml\"\n[[guest]]\nvif = \"web\"\ntrace = \"turns\"\n\
                [[traffic]]\nkind = \"flood\"\nfrom = \"web\"\nto = \"outside\"\n";
    let read =
        || Scenario::parse(&path, text).map_err(|wrong| wrong.iter().map(ToString::to_string).collect::<String>());
    assert!(read().unwrap_err().contains("plan.toml:4: cannot read"));
    let policy =
        "link = [{ name = \"lan\", rate = \"1Gbit/s\", uplink = { tap = \"t0\" } }]\n[[vif]]\nname = \"web\"\n";
    std::fs::write(directory.join("policy.toml"), policy).expect("there is room");
    assert!(read().unwrap_err().contains("policy.toml:2: socket is missing"));
    std::fs::write(directory.join("policy.toml"), format!("{policy}socket = \"/run/web\"\n")).expect("there is room");
    std::fs::write(directory.join("turns"), "# runs, waits\n3ms\nten\n").expect("there is room");
    assert!(read().unwrap_err().contains("turns:3: a turn must be a number and a unit"));
    std::fs::write(directory.join("turns"), "3ms\n10ms\n").expect("there is room");
    assert_eq!(read().expect("it is right now").guests.len(), 1);
    std::fs::remove_dir_all(&directory).expect("it is there");
}

proptest! {
    /// A plan with one part replaced by another, or by anything, is read or refused; numbers that are too large panic nowhere.
    #[test]
    fn any_text_is_read_or_refused(from in 0usize..RIGHT.len(), len in 0usize..30, other in "[0-9a-z\"= \\n\\[\\]{}.]{0,20}") {
        if let Some(part) = RIGHT.get(from..RIGHT.len().min(from + len)) {
            let text = RIGHT.replacen(part, &other, 1);
            // A plan of a million guests is right, and takes its time.
            let _ = (!text.contains("count = 2") || text.contains("count = 2\n")).then(|| parse(&text));
        }
        let _ = parse(&RIGHT.replace("60ms", "18446744073s").replace("30ms", "18446744073s"));
    }
}
