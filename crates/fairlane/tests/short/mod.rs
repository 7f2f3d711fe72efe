//! An experiment of a few seconds.

/// Some round trips in a namespace.
pub(crate) const SHORT: &str = r#"
name = "short"
source = "this test"
figure = "Round trips to a guest."
machines = ["native"]

[topology]
guests = [{ cpus = [0] }]

[procedure]
kind = "ping"
from = "external"
guest = 1
count = 10
interval = 0.1

[repeats]
count = 2
"#;
