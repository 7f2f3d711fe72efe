//! The tracepoint of early ack says of each frame what the counters say of all.

use crate::MS;
use crate::bpftrace::interrupt;
use crate::guest::Behavior;
use crate::stage::Stage;
use crate::transfer;
use fairlane_lab::Error;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Sums of frames by what they are.
const SCRIPT: &str = r#"BEGIN { printf("begun\n"); } usdt::fairlane:early_ack { @[str(arg3, arg4)] = sum(arg2); }"#;

/// bpftrace, killed on drop.
struct Tracer(Child);

impl Drop for Tracer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn the_tracepoint_says_what_early_ack_makes() -> Result<(), Error> {
    let behavior = Behavior { slices: Some((10 * MS, 30 * MS)), loss: 0.03, ..Behavior::default() };
    let stage = Stage::new("\"always\"", behavior);
    let mut command = Command::new("bpftrace");
    command.args(["-f", "json", "-p", &stage.backend.pid().to_string(), "-e", SCRIPT]);
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut tracer = Tracer(started.map_err(|error| Error::Missing(format!("bpftrace is not installed: {error}")))?);
    let mut lines = BufReader::new(tracer.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // Printed once all is attached.
    if !lines.any(|line| line.contains("begun")) {
        return Err(Error::Missing("bpftrace cannot run here".to_owned()));
    }

    let sender =
        stage.spawn_sender(move |to| (0..10).map(|seed| transfer::send(to, 300_000, false, seed)).collect::<Vec<_>>());
    sender.join().unwrap().into_iter().for_each(Result::unwrap);
    stage.until("the flows to end", |stage| stage.backend.flows().is_empty());
    let early = stage.early();
    let printed = interrupt(&tracer.0, lines);
    let printed = printed.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let sums = printed.filter(|printed| printed["type"] == "map").find_map(|map| map["data"]["@"].as_object().cloned());
    let sums = sums.expect("the tracepoint fired");
    for (what, counter) in [("ack", "early_acks"), ("retransmit", "retransmissions")] {
        assert!(early[counter].as_u64() > Some(0) && sums[what] == early[counter], "{what}: {sums:?}, {early}");
    }
    Ok(())
}
