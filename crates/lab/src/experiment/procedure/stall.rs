//! What a guest that waits for its CPU does to its neighbour: one guest receives datagrams, and meanwhile another is pinged and then
//! has a TCP stream in each direction. Whether the first waits is the case's background.

use fairlane_agent::{Command, Event, Outcome};
use fairlane_load::{ReceiveSpec, Sample, ping, tcp, udp};
use fairlane_report::{Axis, Figure, Series, stats};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits, node_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure};
use crate::{Node, Topology};

/// Seconds from the datagrams' start until their effect is steady.
const SETTLE: f64 = 1.0;
/// Seconds to wait for replies after the last request, and between the phases.
const REPLY_TIMEOUT: f64 = 1.0;
/// Seconds from the last stream's end until the datagrams' sender and the load may end.
const TAIL: f64 = 1.0;
/// Seconds that receivers run longer than all senders: a sender on a busy machine begins late, and writes all that it has begun to.
const RECEIVER_MARGIN: f64 = 4.0;
/// The number of intervals of a stream in which it is counted.
const INTERVALS: f64 = 12.0;
/// The quantiles of the round trips, by the names of their metrics.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stall {
    /// The sender of the datagrams.
    #[serde(deserialize_with = "super::node")]
    from: Node,
    /// The guest that receives them.
    guest: usize,
    /// The rate of the datagrams, in bits per second of Ethernet frames.
    offer: f64,
    /// Payload of a datagram, in bytes.
    payload: usize,
    /// The guest that the external machine pings.
    neighbour: usize,
    /// Requests per repeat.
    count: u16,
    /// Seconds from one request to the next.
    interval: f64,
    /// Seconds of each TCP stream.
    stream: f64,
}

impl Stall {
    /// When the first stream starts, and when the second does.
    fn streams(&self) -> [f64; 2] {
        let first = SETTLE + f64::from(self.count) * self.interval + REPLY_TIMEOUT;
        [first, first + self.stream + TAIL]
    }

    /// The intervals in which streams are counted, in seconds.
    fn interval(&self) -> f64 {
        self.stream / INTERVALS
    }

    /// How long the datagrams are sent.
    fn sending(&self) -> f64 {
        self.streams()[1] + self.stream
    }
}

impl Procedure for Stall {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> = guest_fault("guest", self.guest, topology).into_iter().collect();
        faults.extend(guest_fault("neighbour", self.neighbour, topology));
        faults.extend(node_fault("from", self.from, topology));
        if self.guest == self.neighbour {
            faults.push(("neighbour", format!("neighbour must be a guest other than guest, not {}", self.guest)));
        }
        limits(&mut faults, "offer", self.offer, 1e3, 1e12);
        limits(&mut faults, "payload", self.payload as f64, 8.0, 65_507.0);
        limits(&mut faults, "count", self.count.into(), 10.0, 65_535.0);
        limits(&mut faults, "interval", self.interval, 0.001, 10.0);
        limits(&mut faults, "stream", self.stream, 0.1, 600.0);
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        let rates = ["lost", "received", "to_neighbour", "from_neighbour"];
        QUANTILES.into_iter().map(|(name, _)| name).chain(rates).map(str::to_owned).collect()
    }

    fn seconds(&self) -> f64 {
        self.sending() + TAIL
    }

    fn shorten(&mut self) {
        (self.count, self.stream) = (self.count.min(200), self.stream.min(1.0));
    }

    fn scale(&mut self, factor: f64) {
        self.offer *= factor;
    }

    fn plan(&self, _: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        let (guest, neighbour) = (Node::Guest(self.guest), Node::Guest(self.neighbour));
        let receive = |port, interval| ReceiveSpec { port, interval, seconds: self.seconds() + RECEIVER_MARGIN };
        let [datagrams, to, from] = [port, port + 1, port + 2];
        plan.serve(guest, Command::UdpReceive(receive(datagrams, 1.0)));
        plan.serve(neighbour, Command::TcpReceive(receive(to, self.interval())));
        plan.serve(Node::External, Command::TcpReceive(receive(from, self.interval())));
        let send = udp::SendSpec {
            to: (at(guest), datagrams).into(),
            size: self.payload,
            rate: Some(self.offer),
            seconds: self.sending(),
        };
        plan.start(self.from, 0.0, Command::UdpSend(send));
        let (count, interval) = (self.count, self.interval);
        let echo = ping::Spec { to: at(neighbour), count, interval, patience: REPLY_TIMEOUT };
        plan.start(Node::External, SETTLE, Command::Ping(echo));
        let [first, second] = self.streams();
        let stream = |to| Command::TcpSend(tcp::SendSpec { to, connections: 1, seconds: self.stream });
        plan.start(Node::External, first, stream((at(neighbour), to).into()));
        plan.start(neighbour, second, stream((at(Node::External), from).into()));
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        let [datagrams, to, from, sent, trips, ..] = accounts else { return };
        let (Outcome::Received(datagrams), Outcome::Sent(sent), Outcome::RoundTrips(trips)) =
            (&datagrams.outcome, &sent.outcome, &trips.outcome)
        else {
            return;
        };
        let came: u64 = datagrams.sources.iter().map(|source| source.datagrams).sum();
        record.add("received", Statistic::OfRepeats, "%", [100.0 * came as f64 / sent.datagrams as f64]);
        for (name, receiver) in [("to_neighbour", to), ("from_neighbour", from)] {
            record.add(name, Statistic::OfRepeats, "Mbit/s", [throughput(&receiver.events, self.interval())]);
        }
        // One without a reply took at least as long as one was waited for.
        let milliseconds = |trip: &Option<f64>| 1e3 * trip.unwrap_or(REPLY_TIMEOUT);
        let points = (0u32..).zip(&trips.seconds);
        let points = points.map(|(index, trip)| [f64::from(index) * self.interval, milliseconds(trip)]);
        record.series(Series::new("rtt", "ms", Axis::time()).points(points));
        let lost = 100.0 * trips.lost() as f64 / trips.seconds.len() as f64;
        record.add("lost", Statistic::OfRepeats, "%", [lost]);
    }

    fn conclude(&self, _: &Topology, record: &mut Record) {
        let trips = record.values("rtt");
        for (name, p) in QUANTILES {
            record.set(name, "ms", stats::quantile(&trips, p).unwrap_or(f64::NAN));
        }
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let names = cases.iter().map(|case| format!("{}rtt", case.prefix));
        vec![Figure::cdf("Round trips to the neighbour").series(names).x("round trip")]
    }
}

/// The throughput of a stream while it flows, in Mbit/s: the mean over the intervals after the first with data and before the last,
/// which it fills in part. What a receiver gets after the sender's end, out of queues, is not more than it gets before.
fn throughput(events: &[Event], interval: f64) -> f64 {
    let samples =
        || events.iter().filter_map(|event| if let Event::Sample(sample) = event { Some(sample) } else { None });
    let place = |sample: &Sample| (sample.t / interval).round() as usize;
    let with_data = || samples().filter(|sample| sample.bytes > 0).map(place);
    let (Some(first), Some(last)) = (with_data().min(), with_data().max()) else { return 0.0 };
    // If it fills none, those are all there is.
    let counted = if first + 1 < last { first + 1..last } else { first..last + 1 };
    let bytes: u64 = samples().filter(|sample| counted.contains(&place(sample))).map(|sample| sample.bytes).sum();
    bytes as f64 * 8.0 / 1e6 / (counted.len() as f64 * interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_counted_while_it_flows() {
        const INTERVAL: f64 = 0.25;
        let sample = |(end, bytes): (usize, u64)| {
            let (t, source) = (end as f64 * INTERVAL, ([10, 0, 0, 1], 1).into());
            Event::Sample(Sample { t, source, bytes, datagrams: 0, skipped: 0, late: 0 })
        };
        let rate =
            |bytes: &[u64]| throughput(&(1..).zip(bytes.iter().copied()).map(sample).collect::<Vec<_>>(), INTERVAL);
        assert_eq!(rate(&[0, 0]), 0.0, "nothing came");
        // It begins within the third interval, pauses in the fifth, and ends within the seventh.
        assert_eq!(rate(&[0, 0, 100, 500_000, 0, 250_000, 100, 0]), 8.0);
        let with_data = [(3, 100), (4, 500_000), (6, 250_000), (7, 100)].map(sample);
        assert_eq!(throughput(&with_data, INTERVAL), 8.0, "intervals without data need not be reported");
        assert_eq!(rate(&[0, 125_000, 125_000, 0]), 4.0, "a short one");
        assert_eq!(rate(&[0, 125_000]), 4.0, "a shorter one");
    }
}
