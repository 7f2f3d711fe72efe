//! Requests to a server by the size of the answer: connections per second, bandwidth, and the use of the CPUs on the server's
//! side.
//!
//! Each request has its own connection: as in netperf's TCP_CRR, whose client closes first and keeps a port in TIME_WAIT, or as
//! in HTTP/1.0, whose server closes first.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use fairlane_agent::{Command, Outcome, doctor, proxy};
use fairlane_load::processors::{self, Use};
use fairlane_load::traffic::client::{self, Account as Answered, Close};
use fairlane_load::traffic::server::{self, Acceptors};
use fairlane_load::traffic::{Pattern, Sizes};
use fairlane_report::{Axis, Figure, Metric, ResultFile, Series, stats};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits, node_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::executed::{self, CAPTION, Executed, bars};
use super::{Finished, Procedure};
use crate::machine::CARD;
use crate::{Error, Join, Machine, Node, Topology};

/// Seconds from the background's start until it is steady.
const SETTLE: f64 = 1.0;
/// Seconds between the requests of two sizes.
const PAUSE: f64 = 0.5;
/// Seconds that the server runs longer than the requests: on a busy host the clients get their commands late.
const LAST: f64 = 4.0;
/// Seconds after which a request has failed.
const TIMEOUT: f64 = 5.0;
/// The limit of all listeners' backlogs, and the kernel's default (net/core/net_namespace.c, SOMAXCONN).
const SOMAXCONN: (&str, u32) = ("/proc/sys/net/core/somaxconn", 4096);
/// When the doctor makes its first reading: before the first requests, whose burst fills queues.
const DOCTOR_START: f64 = 0.5 * SETTLE;
/// The fraction of the requests' time after which it makes the second one. That takes a while, and must be done under load.
const DOCTOR_SPAN: f64 = 0.8;
/// The doctor's causes that keys of this procedure can remove: `acceptors`, `backlog`.
const REMOVABLE: [&str; 2] = ["acceptor", "accept-queue"];
/// Seconds between a mark and the counted requests before and after it. An idle machine executes next to nothing.
const EDGE: f64 = 0.5;
/// The longest time of requests on the virtual clock (icount), in seconds: that clock is slow, and idle CPUs execute nothing.
const COUNTED: f64 = 0.2;
/// The unit of instruction counts.
const UNIT: &str = "instructions/connection";
/// The title of their figure.
const BILL: &str = "Instructions a connection";
/// The name of the series of losses by size.
const LOSS: &str = "loss";
/// Bytes of a TCP_CRR request, as in HAProxy's measurements of 2011.
const REQUEST: u32 = 32;
/// The number of addresses from which the external machine makes TCP_CRR requests. Once the 14,116 even ports of an address are in
/// TIME_WAIT, Linux spends more time on the search for a free port than on everything else. With this many addresses the
/// kernel's limit of TIME_WAIT sockets (131,072) keeps each below that.
const SOURCES: u32 = 16;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Requests {
    pattern: Exchange,
    /// The client.
    #[serde(deserialize_with = "super::node")]
    client: Node,
    /// The server; over loopback if it is the same node as the client.
    #[serde(deserialize_with = "super::node")]
    server: Node,
    /// The guest whose HAProxy the requests go through, if any.
    #[serde(default)]
    through: Option<usize>,
    /// Which threads of the server accept connections: one of them, or each (SO_REUSEPORT). The server has a thread per CPU.
    acceptors: Acceptors,
    /// Concurrent connections.
    connections: usize,
    /// Bytes of an answer; the sizes are measured one after the other.
    sizes: Vec<u32>,
    /// How many connections may wait to be accepted (net.core.somaxconn); the kernel's default if not given.
    #[serde(default)]
    backlog: Option<u32>,
    /// Seconds for each size.
    seconds: f64,
    /// Whether instructions are counted, instead of connections a second.
    #[serde(skip)]
    counted: bool,
}

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Exchange {
    /// A request of 32 bytes.
    Crr,
    /// An HTTP request; the answer's headers come on top of its size.
    Http,
}

/// The number of CPUs that a node's programs may use; one for the external machine, whose CPUs the topology does not give.
fn cpus(node: Node, topology: &Topology) -> usize {
    match node {
        Node::External => 1,
        Node::Host => topology.host_cpus.len(),
        Node::Guest(number) => topology.guests[number - 1].cpus.len(),
    }
}

impl Requests {
    /// The address that requests are sent to.
    fn to(&self, at: Addresses, port: u16) -> SocketAddrV4 {
        match self.through {
            Some(guest) => SocketAddrV4::new(at(Node::Guest(guest)), port + 1),
            None if self.client == self.server => SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            None => SocketAddrV4::new(at(self.server), port),
        }
    }

    /// Additional addresses of the external machine that requests come from. None when instructions are counted: requests are few
    /// then, and the ARP exchanges would be counted. None without a bridge: such a host has a route to one address only.
    fn sources(&self, topology: &Topology, at: Addresses) -> Vec<Ipv4Addr> {
        let closes = self.pattern == Exchange::Crr && self.client == Node::External;
        if !closes || self.counted || topology.join != Join::Bridge {
            return Vec::new();
        }
        let own = at(Node::External).to_bits();
        // Guests have the lower addresses.
        (1..=SOURCES).map(|below| Ipv4Addr::from_bits(own - below)).collect()
    }

    fn spec(&self, topology: &Topology, at: Addresses, port: u16, size: u32) -> client::Spec {
        let to = self.to(at, port);
        let pattern = match self.pattern {
            Exchange::Crr => Pattern::Crr(Sizes { request: REQUEST, response: size }),
            Exchange::Http => {
                Pattern::Http { host: to.ip().to_string(), path: format!("/?s={size}"), keep_alive: false }
            }
        };
        client::Spec {
            to: to.into(),
            pattern,
            threads: cpus(self.client, topology).min(self.connections),
            connections: self.connections,
            rate: None,
            seconds: self.seconds,
            interval: self.seconds,
            timeout: TIMEOUT,
            close: Close::Graceful,
            sources: self.sources(topology, at).into_iter().map(IpAddr::V4).collect(),
        }
    }

    /// The nodes whose CPUs are observed: the proxy's or the server's, and the host's if that is a guest.
    fn watched(&self) -> Vec<(&'static str, Node)> {
        let first = self.through.map_or(("server", self.server), |guest| ("proxy", Node::Guest(guest)));
        let host = matches!(first.1, Node::Guest(_)).then_some(("host", Node::Host));
        [first].into_iter().chain(host).collect()
    }

    /// Seconds between the requests of two sizes.
    fn pause(&self) -> f64 {
        if self.counted { 2.0 * EDGE } else { PAUSE }
    }

    /// Sets the limit of listeners' backlogs on the node that requests arrive at.
    fn limit_backlogs(&self, machine: &dyn Machine, backlog: u32) -> Result<(), Error> {
        let [(_, node), ..] = self.watched()[..] else { return Ok(()) };
        machine.agent(node).run(Command::Write { path: SOMAXCONN.0.into(), text: backlog.to_string() }).map(drop)
    }

    /// Whether a proxy's loss follows from this number of cases.
    fn has_loss(&self, cases: usize) -> bool {
        self.through.is_some() && cases > 1 && !self.counted
    }

    /// The time from the first request to the last, in seconds.
    fn busy_seconds(&self) -> f64 {
        self.sizes.len() as f64 * (self.seconds + self.pause()) - self.pause()
    }

    /// Adds the instructions per connection, by component.
    fn bill(
        &self,
        topology: &Topology,
        machine: &dyn Machine,
        accounts: &[Account],
        record: &mut Record,
    ) -> Result<(), Error> {
        let marks = executed::marks(accounts);
        let pairs = marks.iter().zip(marks.iter().skip(1));
        for ((size, answered), (from, to)) in self.sizes.iter().zip(self.answered(accounts)).zip(pairs) {
            if let Some(reason) = &answered.stopped {
                record.note("stopped", format!("answers of {size} bytes: {reason}"));
            }
            if answered.requests == 0 {
                continue;
            }
            let Some(executed) = Executed::between(machine, topology, [*from, *to])? else { continue };
            let connections = answered.requests as f64;
            for (name, share) in executed.shares(connections) {
                record.add(&metric(name, *size), Statistic::OfRepeats, UNIT, [share]);
            }
            let total = executed.total() as f64 / connections;
            record.series(Series::new("instructions", UNIT, by_size()).point((*size).into(), total));
            if self.sizes.len() == 1 {
                record.series(bars("components", UNIT, executed.shares(connections).map(|(_, share)| share)));
            }
        }
        Ok(())
    }

    /// The figure of instructions: by component for one size, in total for several.
    fn bill_figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let names = |series: &str| cases.iter().map(|case| format!("{}{series}", case.prefix)).collect::<Vec<_>>();
        let figure = if self.sizes.len() == 1 {
            Figure::bars(BILL).series(names("components")).categories(executed::names())
        } else {
            Figure::means(BILL).series(names("instructions"))
        };
        vec![figure.y("instructions a connection").caption(CAPTION)]
    }

    fn answered<'a>(&self, accounts: &'a [Account]) -> impl Iterator<Item = &'a Answered> {
        accounts.iter().filter_map(|account| match &account.outcome {
            Outcome::Requests(answered) => Some(answered),
            _ => None,
        })
    }
}

/// The axis of series by size.
fn by_size() -> Axis {
    Axis::new("size of an answer", "bytes")
}

/// The name of a component's metric at a size.
fn metric(share: &str, size: u32) -> String {
    if share == "total" { format!("instructions/{size}") } else { format!("{share}/{size}") }
}

/// The load of the busiest CPU, 0 to 1, and its share of all CPUs' soft interrupt time.
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
        faults.extend(self.through.and_then(|guest| guest_fault("through", guest, topology)));
        if self.through.is_some() && !topology.proxy {
            faults.push(("through", "through needs guests with HAProxy: proxy = true in the topology".to_owned()));
        }
        if self.through.is_some() && self.pattern != Exchange::Http {
            faults.push(("through", "through is an HTTP proxy: pattern must be \"http\"".to_owned()));
        }
        limits(&mut faults, "connections", self.connections as f64, 1.0, 10_000.0);
        if let Some(backlog) = self.backlog {
            limits(&mut faults, "backlog", backlog.into(), 1.0, 65_535.0);
        }
        limits(&mut faults, "seconds", self.seconds, 0.1, 3600.0);
        let least = if self.pattern == Exchange::Crr { 1 } else { 0 };
        if self.sizes.is_empty() || self.sizes.iter().any(|size| !(least..=1 << 30).contains(size)) {
            let message = format!("sizes must be one or more, each {least} bytes to 1 GiB, such as [1024]");
            faults.push(("sizes", message));
        }
        faults
    }

    fn metrics(&self, topology: &Topology) -> Vec<String> {
        let failed = ["failed".to_owned()];
        if self.counted {
            let of_size = |size: &u32| executed::names().map(|name| metric(name, *size)).collect::<Vec<_>>();
            return self.sizes.iter().flat_map(of_size).chain(failed).collect();
        }
        let of_size = |size: &u32| ["rate", "bandwidth", "latency", "longest"].map(|name| format!("{name}/{size}"));
        let of_node = |(whose, _): (&str, Node)| ["busiest", "interrupts"].map(|name| format!("{name}/{whose}"));
        let watched = self.watched().into_iter().flat_map(of_node);
        let causes = REMOVABLE.into_iter().filter(|_| topology.doctor).map(|cause| format!("named/{cause}"));
        self.sizes.iter().flat_map(of_size).chain(watched).chain(causes).chain(failed).collect()
    }

    fn seconds(&self) -> f64 {
        SETTLE + self.busy_seconds() + LAST
    }

    fn shorten(&mut self) {
        self.seconds = self.seconds.min(1.0);
    }

    fn count(&mut self, virtual_clock: bool) -> bool {
        if virtual_clock {
            self.seconds = self.seconds.min(COUNTED);
        }
        self.counted = true;
        true
    }

    fn scale(&mut self, _: f64) {}

    fn prepare(&self, topology: &Topology, machine: &dyn Machine, _: &mut Record) -> Result<(), Error> {
        for source in self.sources(topology, &|node| machine.address(node)) {
            let address = format!("{source}/32");
            // An earlier repeat may have added it.
            machine.agent(Node::External).output(&["ip", "addr", "replace", &address, "dev", CARD])?;
        }
        self.backlog.map_or(Ok(()), |backlog| self.limit_backlogs(machine, backlog))
    }

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
        if let Some(guest) = self.through {
            let node = Node::Guest(guest);
            let to = (at(self.server), port).into();
            let spec = proxy::Spec { port: port + 1, to, threads: cpus(node, topology), seconds: self.seconds() };
            plan.serve(node, Command::Proxy(spec));
        }
        for (index, size) in self.sizes.iter().enumerate() {
            let start = SETTLE + index as f64 * (self.seconds + self.pause());
            plan.start(self.client, start, Command::RequestSend(self.spec(topology, at, port, *size)));
            if self.counted {
                plan.start(Node::Host, start - EDGE, Command::Mark);
            }
        }
        if self.counted {
            plan.start(Node::Host, SETTLE + self.busy_seconds() + EDGE, Command::Mark);
        }
        for (_, node) in self.watched().into_iter().filter(|_| !self.counted) {
            let seconds = self.busy_seconds();
            plan.start(node, SETTLE, Command::Processors(processors::Spec { seconds }));
            if topology.doctor {
                let seconds = SETTLE - DOCTOR_START + DOCTOR_SPAN * seconds;
                plan.start(node, DOCTOR_START, Command::Doctor(doctor::Spec { seconds }));
            }
        }
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        let failed: u64 = self.answered(accounts).map(|answered| answered.failed).sum();
        record.add("failed", Statistic::OfRepeats, "", [failed as f64]);
        if self.counted {
            return;
        }
        for (size, answered) in self.sizes.iter().zip(self.answered(accounts)) {
            let rate = answered.requests as f64 / answered.seconds;
            let bandwidth = answered.received as f64 * 8.0 / answered.seconds;
            record.add(&format!("rate/{size}"), Statistic::OfRepeats, "1/s", [rate]);
            record.add(&format!("bandwidth/{size}"), Statistic::OfRepeats, "bit/s", [bandwidth]);
            record.add(&format!("latency/{size}"), Statistic::OfRepeats, "ms", [answered.median * 1e3]);
            record.add(&format!("longest/{size}"), Statistic::OfRepeats, "ms", [answered.longest * 1e3]);
            for (name, unit, value) in [("rate", "1/s", rate), ("bandwidth", "bit/s", bandwidth)] {
                record.series(Series::new(name, unit, by_size()).point((*size).into(), value));
            }
        }
        let observed = accounts.iter().filter_map(|account| match &account.outcome {
            Outcome::Processors(uses) => Some(busiest(uses)),
            _ => None,
        });
        for ((whose, _), (busy, interrupts)) in self.watched().into_iter().zip(observed) {
            record.add(&format!("busiest/{whose}"), Statistic::OfRepeats, "", [busy]);
            record.add(&format!("interrupts/{whose}"), Statistic::OfRepeats, "", [interrupts]);
        }
        let found = accounts.iter().filter_map(|account| match &account.outcome {
            Outcome::Findings(findings) => Some(findings.first()),
            _ => None,
        });
        for ((whose, node), first) in self.watched().into_iter().zip(found) {
            let words =
                first.map_or("nothing".to_owned(), |first| format!("{} ({}): {}", first.cause, first.sure, first.seen));
            record.note(&format!("doctor/{whose}"), words);
            if node == self.watched()[0].1 {
                for cause in REMOVABLE {
                    let named = first.is_some_and(|first| first.cause == cause);
                    record.add(&format!("named/{cause}"), Statistic::OfRepeats, "", [f64::from(u8::from(named))]);
                }
            }
        }
    }

    fn observe(
        &self,
        topology: &Topology,
        machine: &dyn Machine,
        accounts: &[Account],
        record: &mut Record,
    ) -> Result<(), Error> {
        if self.backlog.is_some() {
            self.limit_backlogs(machine, SOMAXCONN.1)?;
        }
        let stopped = self.answered(accounts).find_map(|answered| answered.stopped.clone());
        match stopped {
            // While requests are recorded, the server may be too slow for the client, which then gives up.
            _ if self.counted => self.bill(topology, machine, accounts, record),
            // A client that gave up has no rate.
            Some(reason) => Err(Error::Failed { guest: self.client.to_string(), reason }),
            None => Ok(()),
        }
    }

    fn comparisons(&self, cases: &[(&str, &Topology)]) -> Vec<String> {
        let sizes = self.sizes.iter().filter(|_| self.has_loss(cases.len()));
        sizes.map(|size| format!("loss/{size}")).collect()
    }

    /// The loss of a proxy: how much lower the rate of the last case is than that of the first, in per cent.
    fn compare(&self, cases: &[Finished], result: &mut ResultFile) {
        let [first, .., last] = cases else { return };
        if !self.has_loss(cases.len()) {
            return;
        }
        let missing = Metric::given(f64::NAN, "");
        let mut losses = Series::new(LOSS, "%", by_size()).group(last.name);
        for size in &self.sizes {
            let rate = |case: &Finished| result.metrics.get(&format!("{}rate/{size}", case.prefix)).unwrap_or(&missing);
            let (ratio, interval) = rate(last).ratio_to(rate(first));
            let loss = stats::loss_percent(ratio);
            let interval = interval.map(|[low, high]| [high, low].map(stats::loss_percent));
            result.metrics.insert(format!("loss/{size}"), Metric::derived(loss, interval, "%"));
            losses = losses.point((*size).into(), loss);
        }
        // An earlier verdict may have left its own.
        result.series.retain(|series| series.name != LOSS);
        result.series(losses);
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        if self.counted {
            return self.bill_figures(cases);
        }
        let titles = [("rate", "Connections a second"), ("bandwidth", "Bandwidth of the answers")];
        let figure = |(name, title): (&str, &str)| {
            let names = cases.iter().map(|case| format!("{}{name}", case.prefix));
            // A single size makes no line.
            let figure = if self.sizes.len() > 1 { Figure::means(title) } else { Figure::bars(title) };
            figure.series(names).y(title)
        };
        let rates = titles.into_iter().take(if self.sizes.len() > 1 { 2 } else { 1 }).map(figure);
        rates
            .chain(
                self.has_loss(cases.len())
                    .then(|| Figure::means("Loss").series([LOSS]).y("loss of the rate, in per cent")),
            )
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_cpu_is_found() {
        let used = |busy, interrupts| Use { busy, interrupts, total: 100, ..Use::default() };
        assert_eq!(busiest(&[used(10, 5), used(80, 15), used(0, 0)]), (0.8, 0.75));
        assert!(busiest(&[]).0.is_nan());
    }

    /// A loss is as certain as the two rates it follows from. Judged again, a result has the series once.
    #[test]
    fn a_loss_has_the_interval_of_its_rates() {
        let text = "pattern = \"http\"\nclient = \"external\"\nserver = \"external\"\nthrough = 1\n\
                    acceptors = \"one\"\nconnections = 1\nsizes = [0]\nseconds = 1";
        let procedure: Requests = toml::from_str(text).unwrap();
        let topology: Topology = toml::from_str("guests = [{ cpus = [0] }]").unwrap();
        let mut result = ResultFile::new("e");
        for (case, rates) in [("native", [97.0, 100.0, 103.0]), ("guest", [48.0, 50.0, 52.0])] {
            result.metrics.insert(format!("{case}/rate/0"), Metric::mean_student(&rates, "1/s"));
        }
        let cases = ["native", "guest"].map(|name| Finished {
            name,
            prefix: format!("{name}/"),
            topology: &topology,
            record: Record::default(),
        });
        procedure.compare(&cases, &mut result);
        procedure.compare(&cases, &mut result);
        let loss = &result.metrics["loss/0"];
        let [low, high] = loss.ci95.unwrap();
        assert!(loss.value == 50.0 && (43.0..44.5).contains(&low) && (55.5..57.0).contains(&high), "{loss:?}");
        assert_eq!(result.series.iter().filter(|series| series.name == LOSS).count(), 1);
    }
}
