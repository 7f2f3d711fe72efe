//! An arbitrary plan of the simulator: every mistake is reported with its line, and what a small plan sends arrives, is dropped, or is
//! still on its way at the end.
#![no_main]

use fairlane_core::time::Nanos;
use fairlane_fuzz::{named, text};
use fairlane_sim::Scenario;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

/// The words of the inputs ([`text`]).
const WORDS: [&str; 103] = [
    "seconds = 0.002\n",
    "seed = 7\n",
    "settle = \"1ms\"\n",
    "interval = \"100us\"\n",
    "\n[fabric]\n",
    "\n[[host]]\nname = \"host\"\n",
    "\n[[host]]\nname = \"other\"\n",
    "\n[[host.vif]]\nname = \"web\"\n",
    "\n[[host.vif]]\nname = \"mail\"\n",
    "\n[[host.tenant]]\nname = \"red\"\n",
    "\n[[guest]]\nvif = \"web\"\n",
    "\n[[guest]]\nvif = \"mail\"\n",
    "\n[[traffic]]\nfrom = \"web\"\nto = \"outside\"\n",
    "\n[[traffic]]\nfrom = \"outside\"\nto = \"web\"\n",
    "\n[[traffic]]\nfrom = \"web\"\nto = \"mail\"\n",
    "\n[[traffic]]\nfrom = \"mail\"\nto = \"other/web\"\n",
    "\n[[guarantee]]\ntenant = \"red\"\nmin_rate = \"20Mbit/s\"\n",
    "\n[[change]]\nat = \"1ms\"\nof = \"web\"\n",
    "\n[[change]]\nat = \"500us\"\nof = \"lan\"\n",
    "set = { weight = 3, max_rate = \"none\", early_ack = true }\n",
    "set = { rate = \"20Mbit/s\", scheduler = \"wrr\" }\n",
    "kind = \"constant\"\nrate = \"100Mbit/s\"\n",
    "kind = \"poisson\"\nrate = \"2Gbit/s\"\n",
    "kind = \"on-off\"\nrate = \"900Mbit/s\"\non = \"30us\"\noff = \"70us\"\n",
    "kind = \"flood\"\n",
    "kind = \"requests\"\ninterval = \"20us\"\n",
    "kind = \"stream\"\n",
    "kind = \"transfer\"\nbytes = \"20KiB\"\npause = \"100us\"\n",
    "kind = \"incast\"\nbytes = \"10KiB\"\ninterval = \"500us\"\n",
    "link = { rate = \"1Gbit/s\" }\n",
    "link = { rx_rate = \"300Mbit/s\", isolate = true }\n",
    "link = { rate = \"500Mbit/s\", scheduler = \"wrr\" }\n",
    "link = { scheduler = \"netback\" }\n",
    "card = \"100Mbit/s\"\n",
    "costs = { frame_ns = 5000, byte_ns = 2, wake = \"10us\" }\n",
    "tenant = \"red\"\n",
    "weight = 30\n",
    "min_rate = \"10Mbit/s\"\n",
    "max_rate = \"50Mbit/s\"\n",
    "rx_max_rate = \"50Mbit/s\"\n",
    "max_frames = 2000\n",
    "rx_queue = { bytes = \"64KiB\" }\n",
    "early_ack = true\n",
    "early_ack = \"always\"\n",
    "policy = \"none.toml\"\n",
    "count = 2\n",
    "count = 3\n",
    "runs = \"30us\"\nwaits = \"60us\"\n",
    "trace = [\"3us\", \"10us\", \"1us\", \"0us\"]\n",
    "trace = \"none.txt\"\n",
    "phase = \"5us\"\n",
    "ring = 2\n",
    "ring = 16\n",
    "wake = \"1us\"\n",
    "delay = \"100us\"\n",
    "capacity = \"200Mbit/s\"\n",
    "buffer = \"3KiB\"\n",
    "frame = 60\n",
    "frame = 9000\n",
    "frame = 65550\n",
    "start = \"300us\"\n",
    "stop = \"1500us\"\n",
    "rtt = \"50us\"\n",
    "loss = 0.1\n",
    "streams = 3\n",
    "window = \"8KiB\"\n",
    "congestion = \"reno\"\n",
    "persistent = true\n",
    "name",
    "seconds",
    "kind",
    "rate",
    "bytes",
    "interval",
    "runs",
    "trace",
    "phase",
    "guarantee",
    "traffic",
    "host",
    "vif",
    "tenant",
    "[[",
    "]]\n",
    "[",
    "]",
    "{ ",
    " }",
    " = ",
    ", ",
    "\"",
    "\n",
    "#",
    "true",
    "Gbit/s",
    "KiB",
    "ms",
    "us",
    "0",
    "1",
    "9",
    "work = { frame_ns = 9000, byte_ns = 3 }\n",
    "rx_work = { frame_ns = 700 }\n",
];

fuzz_target!(|input: &[u8]| {
    let text = text(input, &WORDS);
    match Scenario::parse(Path::new("plan.toml"), &text) {
        Ok(scenario) => {
            if is_small(&scenario) {
                run(&scenario);
            }
        }
        Err(problems) => named(&text, &problems),
    }
});

/// Whether it takes some milliseconds to simulate.
fn is_small(scenario: &Scenario) -> bool {
    let flows: usize = scenario.traffic.iter().map(|traffic| traffic.flows.len()).sum();
    scenario.end() <= Nanos::from_millis(2)
        && scenario.guests.len() <= 16
        && flows <= 16
        && scenario.hosts.iter().all(|host| host.card <= 10_000_000_000)
}

/// Simulates: each frame is accounted for, unless early ack makes some and holds others back.
fn run(scenario: &Scenario) {
    let outcome = fairlane_sim::run(scenario).expect("a small scenario has the memory that it needs");
    if scenario.has_early_ack() {
        return;
    }
    let dropped: u64 = outcome.drops().values().sum();
    let (made, arrived, waiting) = (outcome.made(), outcome.arrived(), outcome.waiting);
    assert_eq!(made, arrived + dropped + waiting, "arrived {arrived}, waiting {waiting}, {:?}", outcome.drops());
}
