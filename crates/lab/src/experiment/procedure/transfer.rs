//! The throughput of TCP transfers of several sizes to a guest.

use fairlane_agent::{Command, Outcome};
use fairlane_load::{ServeSpec, transfer};
use fairlane_report::{Axis, Figure, Series};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits, node_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure};
use crate::machine::set_initial_window;
use crate::{Node, Topology};

/// Seconds from the background's start until it is steady.
const SETTLE: f64 = 1.0;
/// Extra seconds for the last transfer of a size, which starts within its time but may end after it.
const LAST: f64 = 4.0;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfer {
    /// The sender.
    #[serde(deserialize_with = "super::node")]
    from: Node,
    /// The guest that receives.
    guest: usize,
    /// Bytes of a transfer; the sizes are measured one after the other.
    sizes: Vec<u64>,
    /// The most transfers of a size.
    count: usize,
    /// Seconds for each size; no transfer of it starts later.
    seconds: f64,
    /// The longest pause before each transfer, in seconds. Its length is random, so that a transfer may start at any moment of the
    /// guest's time slices.
    #[serde(default)]
    pause: f64,
    /// Whether the transfers of a size share one connection.
    #[serde(default)]
    kept: bool,
    /// The initial congestion window in segments; Linux's 10 (RFC 6928) if not given. Kernels of 2010 had 3 (RFC 3390).
    #[serde(default = "ten")]
    initial_window: u32,
}

fn ten() -> u32 {
    10
}

/// A size with a decimal unit, as the papers write it.
fn words(bytes: u64) -> String {
    match bytes {
        1_000_000.. if bytes.is_multiple_of(1_000_000) => format!("{}MB", bytes / 1_000_000),
        1000.. if bytes.is_multiple_of(1000) => format!("{}KB", bytes / 1000),
        _ => format!("{bytes}B"),
    }
}

impl Procedure for Transfer {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> = guest_fault("guest", self.guest, topology).into_iter().collect();
        faults.extend(node_fault("from", self.from, topology));
        limits(&mut faults, "count", self.count as f64, 1.0, 1e6);
        limits(&mut faults, "seconds", self.seconds, 0.1, 3600.0);
        limits(&mut faults, "pause", self.pause, 0.0, transfer::LONGEST_PAUSE);
        limits(&mut faults, "initial_window", self.initial_window.into(), 1.0, 1000.0);
        if self.sizes.is_empty() || self.sizes.iter().any(|size| !(1..=1 << 30).contains(size)) {
            faults.push(("sizes", "sizes must be one or more, each 1 byte to 1 GiB, such as [100_000]".to_owned()));
        }
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        // On one kept connection no transfer has a handshake, so these would add nothing.
        let of_handshakes = if self.kept { &[][..] } else { &["data-rate", "connect"] };
        let names = [&["rate", "sender-rate", "receiver-rate"], of_handshakes].concat();
        let of_size = |size: &u64| names.iter().map(|what| format!("{what}/{}", words(*size))).collect::<Vec<_>>();
        self.sizes.iter().flat_map(of_size).collect()
    }

    fn seconds(&self) -> f64 {
        SETTLE + self.sizes.len() as f64 * (self.seconds + LAST)
    }

    fn shorten(&mut self) {
        (self.count, self.seconds) = (self.count.min(20), self.seconds.min(1.0));
    }

    fn scale(&mut self, _: f64) {}

    fn plan(&self, _: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        let guest = Node::Guest(self.guest);
        plan.serve(guest, Command::TransferServe(ServeSpec { port, seconds: self.seconds() }));
        let to = (at(guest), port).into();
        for (index, size) in self.sizes.iter().enumerate() {
            let start = SETTLE + index as f64 * (self.seconds + LAST);
            let spec = transfer::Spec {
                to,
                size: *size,
                count: self.count,
                seconds: self.seconds,
                pause: self.pause,
                kept: self.kept,
            };
            plan.start(self.from, start, Command::TransferSend(spec));
        }
        plan.start(self.from, 0.0, set_initial_window(self.from, self.initial_window));
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        for (size, account) in self.sizes.iter().zip(accounts.iter().skip(1)) {
            let Outcome::Transfers(transfers) = &account.outcome else { continue };
            let mut rate = |what: &str, seconds: fn(&transfer::Transfer) -> f64| {
                let rate = |transfer: &transfer::Transfer| *size as f64 / 1e6 / seconds(transfer);
                let name = format!("{what}/{}", words(*size));
                let points = transfers.iter().map(|transfer| [transfer.t, rate(transfer)]);
                record.series(Series::new(&name, "MB/s", Axis::time()).points(points));
                record.add(&name, Statistic::Median, "MB/s", transfers.iter().map(rate));
            };
            rate("rate", |transfer| transfer.seconds);
            // As seen by the sender: until all data is acknowledged.
            rate("sender-rate", |transfer| transfer.acknowledged);
            // "Throughput may be higher than link rate due to buffering at VMM layer" (seed 003): the receiver's view leaves it out.
            rate("receiver-rate", |transfer| transfer.received);
            if self.kept {
                continue;
            }
            // The sender's view without the handshake: early ack cannot answer a SYN for a guest, and throughput benchmarks do not
            // time the handshake.
            rate("data-rate", |transfer| transfer.acknowledged - transfer.connect);
            let connects = transfers.iter().map(|transfer| transfer.connect * 1e3);
            record.add(&format!("connect/{}", words(*size)), Statistic::Median, "ms", connects);
        }
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let figure = |size: &u64| {
            let size = words(*size);
            // Cases may have different sizes.
            let measured = cases.iter().filter(|case| !case.record.points(&format!("rate/{size}")).is_empty());
            let names = measured.map(|case| format!("{}rate/{size}", case.prefix));
            Figure::cdf(&format!("Throughput of transfers of {size}")).series(names).x("throughput")
        };
        self.sizes.iter().map(figure).collect()
    }
}
