//! Requests of a server, by the size of what it answers: connections a second, bandwidth, and what the processors of the
//! server's side do meanwhile.
//!
//! Each request has a connection of its own: netperf's TCP_CRR, or HTTP/1.0. The server closes first, so that the client's ports
//! are free again.

use std::net::Ipv4Addr;

use fairlane_agent::{Command, Outcome};
use fairlane_load::processors::{self, Use};
use fairlane_load::traffic::client::{self, Account as Answered, Close};
use fairlane_load::traffic::server::{self, Acceptors};
use fairlane_load::traffic::{Pattern, Sizes};
use fairlane_report::{Axis, Figure, Series};
use serde::Deserialize;

use super::super::case::{Fault, node_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure, limits};
use crate::{Error, Machine, Node, Topology};

/// Seconds from the background's start until it is steady.
const SETTLE: f64 = 1.0;
/// Seconds between the requests of two sizes.
const PAUSE: f64 = 0.5;
/// Seconds that the server goes on after the last request: on a busy computer clients are told late to begin.
const LAST: f64 = 4.0;
/// Seconds after which a request has failed.
const TIMEOUT: f64 = 5.0;
/// Bytes of a TCP_CRR's request: the source's.
const REQUEST: u32 = 32;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    pattern: Word,
    /// Who asks.
    #[serde(deserialize_with = "super::node")]
    client: Node,
    /// Who answers; where it is the client as well, over loopback.
    #[serde(deserialize_with = "super::node")]
    server: Node,
    /// Who accepts connections: one thread of the server's for all, or each (SO_REUSEPORT). It has a thread a CPU.
    acceptors: Acceptors,
    /// Connections at once.
    connections: usize,
    /// Bytes of an answer, each size in its turn.
    sizes: Vec<u32>,
    /// Seconds for each size.
    seconds: f64,
}

/// The patterns.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// A request of 32 bytes.
    Crr,
    /// An HTTP request; the answer's headers come on top of its size.
    Http,
}

/// The CPUs that a node's programs run on; the external machine's are not told.
fn cpus(node: Node, topology: &Topology) -> usize {
    match node {
        Node::External => 1,
        Node::Host => topology.host_cpus.len(),
        Node::Guest(number) => topology.guests[number - 1].cpus.len(),
    }
}

impl Requests {
    fn to(&self, at: Addresses) -> Ipv4Addr {
        if self.client == self.server { Ipv4Addr::LOCALHOST } else { at(self.server) }
    }

    fn spec(&self, topology: &Topology, at: Addresses, port: u16, size: u32) -> client::Spec {
        let to = self.to(at);
        let pattern = match self.pattern {
            Word::Crr => Pattern::Crr(Sizes { request: REQUEST, response: size }),
            Word::Http => Pattern::Http { host: to.to_string(), path: format!("/?s={size}"), keep_alive: false },
        };
        client::Spec {
            to: (to, port).into(),
            pattern,
            threads: cpus(self.client, topology).min(self.connections),
            connections: self.connections,
            rate: None,
            seconds: self.seconds,
            interval: self.seconds,
            timeout: TIMEOUT,
            close: Close::Graceful,
            sources: Vec::new(),
        }
    }

    /// Whose processors are looked at: the server's, and where the server is a guest those of its host.
    fn watched(&self) -> Vec<(&'static str, Node)> {
        let host = matches!(self.server, Node::Guest(_)).then_some(("host", Node::Host));
        [("server", self.server)].into_iter().chain(host).collect()
    }

    /// The time in which requests are made, in seconds.
    fn working(&self) -> f64 {
        self.sizes.len() as f64 * (self.seconds + PAUSE) - PAUSE
    }

    fn answered<'a>(&self, accounts: &'a [Account]) -> impl Iterator<Item = &'a Answered> {
        accounts.iter().filter_map(|account| match &account.outcome {
            Outcome::Requests(answered) => Some(answered),
            _ => None,
        })
    }
}

/// How busy the busiest processor is, as a part of its time; and what part of all soft interrupts' time is its own.
fn busiest(uses: &[Use]) -> (f64, f64) {
    let part = |used: &Use| used.busy as f64 / used.total as f64;
    let Some(first) = uses.iter().max_by(|a, b| part(a).total_cmp(&part(b))) else { return (f64::NAN, f64::NAN) };
    let interrupts: u64 = uses.iter().map(|used| used.interrupts).sum();
    (part(first), first.interrupts as f64 / interrupts as f64)
}

impl Procedure for Requests {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> = node_fault("client", self.client, topology).into_iter().collect();
        faults.extend(node_fault("server", self.server, topology));
        limits(&mut faults, "connections", self.connections as f64, 1.0, 10_000.0);
        limits(&mut faults, "seconds", self.seconds, 0.1, 3600.0);
        let least = if self.pattern == Word::Crr { 1 } else { 0 };
        if self.sizes.is_empty() || self.sizes.iter().any(|size| !(least..=1 << 30).contains(size)) {
            let message = format!("sizes must be one or more, each {least} bytes to 1 GiB, such as [1024]");
            faults.push(("sizes", message));
        }
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        let of_size = |size: &u32| ["rate", "bandwidth", "latency"].map(|name| format!("{name}/{size}"));
        let of_node = |(whose, _): (&str, Node)| ["busiest", "interrupts"].map(|name| format!("{name}/{whose}"));
        let watched = self.watched().into_iter().flat_map(of_node);
        self.sizes.iter().flat_map(of_size).chain(watched).chain(["failed".to_owned()]).collect()
    }

    fn seconds(&self) -> f64 {
        SETTLE + self.working() + LAST
    }

    fn shorten(&mut self) {
        self.seconds = self.seconds.min(1.0);
    }

    fn scale(&mut self, _: f64) {}

    fn plan(&self, topology: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        let serve = server::Spec {
            at: (Ipv4Addr::UNSPECIFIED, port).into(),
            threads: cpus(self.server, topology),
            acceptors: self.acceptors,
            seconds: Some(self.seconds()),
            interval: self.seconds(),
            patience: TIMEOUT,
        };
        plan.serve(self.server, Command::RequestServe(serve));
        for (index, size) in self.sizes.iter().enumerate() {
            let start = SETTLE + index as f64 * (self.seconds + PAUSE);
            plan.start(self.client, start, Command::RequestSend(self.spec(topology, at, port, *size)));
        }
        for (_, node) in self.watched() {
            plan.start(node, SETTLE, Command::Processors(processors::Spec { seconds: self.working() }));
        }
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        for (size, answered) in self.sizes.iter().zip(self.answered(accounts)) {
            let rate = answered.requests as f64 / answered.seconds;
            let bandwidth = answered.received as f64 * 8.0 / answered.seconds;
            record.add(&format!("rate/{size}"), Statistic::OfRepeats, "1/s", [rate]);
            record.add(&format!("bandwidth/{size}"), Statistic::OfRepeats, "bit/s", [bandwidth]);
            record.add(&format!("latency/{size}"), Statistic::OfRepeats, "ms", [answered.median * 1e3]);
            for (name, unit, value) in [("rate", "1/s", rate), ("bandwidth", "bit/s", bandwidth)] {
                record.series(
                    Series::new(name, unit, Axis::new("size of an answer", "bytes")).point((*size).into(), value),
                );
            }
        }
        let failed: u64 = self.answered(accounts).map(|answered| answered.failed).sum();
        record.add("failed", Statistic::OfRepeats, "", [failed as f64]);
        let looked = accounts.iter().filter_map(|account| match &account.outcome {
            Outcome::Processors(uses) => Some(busiest(uses)),
            _ => None,
        });
        for ((whose, _), (busy, interrupts)) in self.watched().into_iter().zip(looked) {
            record.add(&format!("busiest/{whose}"), Statistic::OfRepeats, "", [busy]);
            record.add(&format!("interrupts/{whose}"), Statistic::OfRepeats, "", [interrupts]);
        }
    }

    /// A client that gave up has no rate.
    fn observe(&self, _: &Topology, _: &dyn Machine, accounts: &[Account], _: &mut Record) -> Result<(), Error> {
        match self.answered(accounts).find_map(|answered| answered.stopped.clone()) {
            Some(reason) => Err(Error::Failed { guest: self.client.to_string(), reason }),
            None => Ok(()),
        }
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let titles = [("rate", "Connections a second"), ("bandwidth", "Bandwidth of the answers")];
        let figure = |(name, title): (&str, &str)| {
            let names = cases.iter().map(|case| format!("{}{name}", case.prefix));
            // One size is no line.
            let figure = if self.sizes.len() > 1 { Figure::means(title) } else { Figure::bars(title) };
            figure.series(names).y(title)
        };
        titles.into_iter().take(if self.sizes.len() > 1 { 2 } else { 1 }).map(figure).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_is_found() {
        let used = |busy, interrupts| Use { busy, interrupts, total: 100 };
        assert_eq!(busiest(&[used(10, 5), used(80, 15), used(0, 0)]), (0.8, 0.75));
        assert!(busiest(&[]).0.is_nan());
    }
}
