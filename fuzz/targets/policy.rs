//! An arbitrary policy file and arbitrary settings: every mistake is reported with its line, and a valid policy can be run and changed.
#![no_main]

use fairlane_fuzz::{named, text};
use fairlane_policy::{Change, File, Files, Kind, Policy, Setting, ShareSetting, Terms, units};
use libfuzzer_sys::fuzz_target;

/// The words of the inputs ([`text`]).
const WORDS: [&str; 105] = [
    "\n[[link]]\n",
    "\n[[vif]]\n",
    "\n",
    " = ",
    "\"",
    "lan",
    "near",
    "far",
    "web",
    "batch",
    "mail",
    "control",
    "metrics",
    "name = \"lan\"\n",
    "name = \"near\"\n",
    "name = \"web\"\n",
    "name = \"batch\"\n",
    "link = \"lan\"\n",
    "link = \"near\"\n",
    "socket = \"/run/a\"\n",
    "socket = \"/run/b\"\n",
    "xen = \"web/0\"\n",
    "xen = true\n",
    "connect = true\n",
    "connect",
    "queues = 4\n",
    "queues",
    "weight = 200\n",
    "weight",
    "min_rate = \"1Mbit/s\"\n",
    "min_rate",
    "max_rate = \"20Mbit/s\"\n",
    "max_rate",
    "burst = \"64KiB\"\n",
    "burst",
    "mac = \"52:54:00:12:34:56\"\n",
    "mac",
    "addresses = [\"10.0.0.1\", \"fd00::1\"]\n",
    "addresses",
    "early_ack = true\n",
    "early_ack = \"always\"\n",
    "early_ack",
    "rate = \"100Mbit/s\"\n",
    "rate = \"none\"\n",
    "rate",
    "scheduler = \"fair\"\n",
    "scheduler = \"wrr\"\n",
    "scheduler = \"netback\"\n",
    "scheduler",
    "prioritize = false\n",
    "prioritize",
    "refill = \"50ms\"\n",
    "refill",
    "idle_timeout = \"1s\"\n",
    "idle_timeout",
    "isolate = true\n",
    "isolate",
    "cpu = 1\n",
    "cpu",
    "uplink = { tap = \"fl0\" }\n",
    "uplink = { card = \"eth0\" }\n",
    "uplink = { wire = \"far\", delay = \"1ms\" }\n",
    "uplink",
    "tap",
    "card",
    "wire",
    "queue",
    "backpressure",
    "control = \"/run/c\"\n",
    "metrics = \"127.0.0.1:9477\"\n",
    "{ ",
    " }",
    "[",
    "]",
    ", ",
    "#",
    "true",
    "false",
    "0",
    "none",
    "bit/s",
    "KiB",
    "ms",
    ".",
    "\0web\0min_rate\0",
    "\0web\0max_rate\0",
    "\0web\0burst\0",
    "\0web\0weight\0",
    "\0lan\0rate\0",
    "\0lan\0scheduler\0",
    "\0lan\0refill\0",
    "10Mbit/s",
    "2Gbit/s",
    "64KiB",
    "wrr",
    "50ms",
    "packed = true\n",
    "sockets = { owner = \"qemu\", group = 7, mode = \"0660\" }\n",
    "observe = { socket = \"/run/o\" }\n",
    "[remove]\nvif = [\"web\"]\n",
    "\0other\0socket\0/run/d",
    "\0other\0uplink.wire\0lan",
    "metrics_token = \"/t\"\n",
    "min_rate_on.lan = ",
    "\0red\0min_rate_on.lan\0",
];

// Zeros separate the parts of an input: two policies, then any number of triples of target, key and value.
fuzz_target!(|input: &[u8]| {
    let text = text(input, &WORDS);
    let mut parts = text.split('\0');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let newer = read(second);
    let Some(mut policy) = read(first) else { return };
    assert_eq!(policy.changes(&policy), Ok(vec![]));
    if let Some(newer) = newer {
        saves(&policy, &newer, first);
        match policy.changes(&newer) {
            Ok(changes) => assert!(changes.is_empty() || policy != newer),
            Err(fixed) => assert!(!fixed.is_empty()),
        }
    }
    while let (Some(target), Some(key), Some(value)) = (parts.next(), parts.next(), parts.next()) {
        set(&mut policy, target, key, value);
        add_and_remove_card(&mut policy, target, key, value);
        add_and_remove(&mut policy, target, key, value);
    }
});

/// Parses a policy; every mistake names one of its lines.
fn read(text: &str) -> Option<Policy> {
    match Policy::parse("policy.toml", text) {
        Ok(policy) => Some(policy),
        Err(problems) => {
            named(text, &problems);
            None
        }
    }
}

/// Applies a setting: only that setting changes, or nothing.
fn set(policy: &mut Policy, target: &str, key: &str, value: &str) {
    let Ok(setting) = Setting::parse(key, value) else { return };
    if let Setting::Share(_, ShareSetting::Burst(bytes)) = setting {
        assert_eq!(units::parse_size(&units::format_size(bytes)), Ok(bytes));
    }
    let before = policy.clone();
    match policy.apply(target, setting) {
        Ok(()) => {
            let changes = before.changes(policy).expect("settings need no restart");
            // A tenant may have vifs on several links, and a link's first and last tenant change the scheduler.
            let about_tenants = |change: &&Change| matches!(change, Change::Tenant { .. } | Change::Member { .. });
            assert!(changes.iter().filter(|change| !about_tenants(change)).count() <= 1);
        }
        Err(error) => assert!(!error.to_string().is_empty() && *policy == before),
    }
}

/// Adds a Xen card with arbitrary rates and weight, and removes it: the rest of the policy is unchanged.
fn add_and_remove_card(policy: &mut Policy, guest: &str, weight: &str, min_rate: &str) {
    let before = policy.clone();
    let terms = Terms { weight: Some(weight.to_owned()), min_rate: Some(min_rate.to_owned()) };
    policy.add_found_card(guest, 0, &terms);
    before.changes(policy).expect("no card needs a restart");
    policy.remove_found_card(guest, 0);
    assert!(*policy == before);
}

/// Adds a part with one key, and removes it: the rest of the policy is unchanged.
fn add_and_remove(policy: &mut Policy, name: &str, key: &str, value: &str) {
    let before = policy.clone();
    for kind in Kind::ALL {
        if policy.add(kind, name, &[(key.to_owned(), value.to_owned())], false).is_ok() {
            policy.remove(kind, name).expect("nothing needs it");
        }
        assert!(*policy == before);
    }
}

/// What is saved of a change leads to the same policy after a restart.
fn saves(policy: &Policy, newer: &Policy, text: &str) {
    let saved = File::new("policy.d/saved.toml", newer.saved(policy));
    let files = Files::new(File::new("policy.toml", text), vec![saved]);
    let loaded = files.load(&Files::default()).expect("the policy file is right");
    let sorted = |policy: &Policy| {
        let mut policy = policy.clone();
        policy.links.sort_by(|a, b| a.name.cmp(&b.name));
        policy.tenants.sort_by(|a, b| a.name.cmp(&b.name));
        policy.vifs.sort_by(|a, b| a.name.cmp(&b.name));
        (policy.links, policy.tenants, policy.vifs)
    };
    // Only the policy file has these.
    let of_file = |policy: &Policy| (policy.control.clone(), policy.observe.clone(), policy.sockets.clone());
    if of_file(policy) == of_file(newer) {
        assert!(loaded.problems.is_empty() && sorted(&loaded.policy) == sorted(newer));
    }
}
