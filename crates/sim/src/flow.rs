//! A flow in a running simulation: when its sender makes frames, and what is counted.

use crate::frame::{Content, Frame, Kind};
use crate::scenario::{Place, Source, Traffic};
use crate::stream::Stream;
use fairlane_core::packet::Mac;
use fairlane_core::time::Nanos;
use hdrhistogram::Histogram;
use rand::{RngExt, rngs::StdRng};

/// How much a sender that was delayed catches up on, as the lab's senders do.
const MEMORY: f64 = 50e6;

/// A flow.
pub(crate) struct Flow {
    /// The traffic that it belongs to, by index.
    pub traffic: usize,
    pub from: Place,
    pub to: Place,
    /// Addresses of both.
    pub macs: (Mac, Mac),
    /// When the next frame is due, or the next round of an incast, in nanoseconds.
    next: f64,
    /// Until when it is on.
    edge: f64,
    number: u32,
    /// When a transfer began that is not done yet.
    pub began: Option<Nanos>,
    pub stream: Option<Box<Stream>>,
    /// When the stream's time-out is looked at next.
    pub timer: Nanos,
    /// Bytes that arrived since the scenario settled.
    pub arrived_bytes: u64,
}

impl Flow {
    pub(crate) fn new(id: u32, index: usize, traffic: &Traffic, (from, to): (Place, Place), macs: (Mac, Mac)) -> Flow {
        let of = |window, bytes| Some(Stream::new(id, macs, traffic.frame, (window, traffic.congestion), bytes));
        let stream = match traffic.source {
            Source::Stream { window, bytes } => of(window, bytes),
            Source::Incast { window, .. } | Source::Transfer { window, .. } => of(window, Some(0)),
            _ => None,
        };
        Flow {
            traffic: index,
            from,
            to,
            macs,
            next: traffic.time.0.0 as f64,
            edge: f64::INFINITY,
            number: 0,
            began: None,
            stream: stream.map(Box::new),
            timer: Nanos::NEVER,
            arrived_bytes: 0,
        }
    }

    /// Spreads flows of one traffic over the first distance, so that they are not in step. Requests are in step with their start.
    pub(crate) fn spread(&mut self, traffic: &Traffic, random: &mut StdRng) {
        match traffic.source {
            Source::Constant { rate } => self.next += distance(traffic, rate) * random.random::<f64>(),
            Source::Poisson { rate } => self.next += at_random(distance(traffic, rate), random),
            Source::Transfer { pause, .. } => self.next += at_random(pause.0 as f64, random),
            Source::OnOff { on, off, .. } => {
                let at = (on + off).0 as f64 * random.random::<f64>();
                let (start, on) = (self.next, on.0 as f64);
                (self.next, self.edge) =
                    if at < on { (start, start + on - at) } else { (start + (on + off.0 as f64) - at, 0.0) };
                self.edge = if at < on { self.edge } else { self.next + on };
            }
            _ => {}
        }
    }

    /// When the next frame is due, or the next round of an incast.
    pub(crate) fn due(&self) -> Nanos {
        Nanos(self.next.ceil() as u64)
    }

    /// A round of an incast begins, and the next one is due so much later.
    pub(crate) fn follow(&mut self, interval: Nanos) {
        self.next += interval.0 as f64;
    }

    /// The next frame, if it is due by `now`: for sources that have their own times.
    pub(crate) fn make(&mut self, traffic: &Traffic, id: u32, now: Nanos, random: &mut StdRng) -> Option<Frame> {
        let (next, time) = (self.next.max(now.0 as f64 - MEMORY), now.0 as f64);
        if next > time || now >= traffic.time.1 {
            return None;
        }
        self.next = next
            + match traffic.source {
                Source::Constant { rate } | Source::OnOff { rate, .. } => distance(traffic, rate),
                Source::Poisson { rate } => at_random(distance(traffic, rate), random),
                Source::Requests { interval } => interval.0 as f64,
                Source::Flood | Source::Stream { .. } | Source::Transfer { .. } | Source::Incast { .. } => return None,
            };
        if let Source::OnOff { on, off, .. } = traffic.source
            && self.next >= self.edge
        {
            self.next = self.edge.max(time) + off.0 as f64;
            self.edge = self.next + on.0 as f64;
        }
        Some(self.numbered(traffic, id, now))
    }

    /// The next frame of a flow that sends as much as it may: none if it may not now.
    pub(crate) fn pull(&mut self, traffic: &Traffic, id: u32, now: Nanos) -> Option<Frame> {
        let (start, stop) = traffic.time;
        if now < start || now >= stop {
            return None;
        }
        match &mut self.stream {
            Some(stream) => stream.send(now),
            None => Some(self.numbered(traffic, id, now)),
        }
    }

    fn numbered(&mut self, traffic: &Traffic, id: u32, now: Nanos) -> Frame {
        let content = Content { kind: Kind::Data, flow: id, number: self.number, answers: 0, sent: now };
        self.number = self.number.wrapping_add(1);
        Frame::new(self.macs, content, traffic.frame)
    }

    /// The answer to a request that arrived.
    pub(crate) fn answer(&self, content: Content, bytes: u32) -> Frame {
        let (from, to) = self.macs;
        let content = Content { kind: Kind::Answer, answers: content.number, ..content };
        Frame::new((to, from), content, bytes)
    }
}

/// Nanoseconds from one frame to the next.
fn distance(traffic: &Traffic, rate: u64) -> f64 {
    f64::from(traffic.frame) * 8e9 / rate as f64
}

/// A distance of this mean in a Poisson process.
pub(crate) fn at_random(mean: f64, random: &mut StdRng) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}

/// What is counted of a traffic's flows.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Frames that were made, and answers to them.
    pub made: u64,
    /// Frames that arrived where they were sent to, and answers.
    pub arrived: u64,
    /// Frames that the fabric lost.
    pub lost_in_fabric: u64,
    /// Frames that found the queue in their guest full, in front of its card.
    pub refused_by_guest: u64,
    /// Of frames that are no answers: made and arrived, since the scenario settled.
    pub settled: (u64, u64),
    /// Time from a frame's making until it arrived, in nanoseconds, since the scenario settled.
    pub waits: Histogram<u64>,
    /// Time from a request until its answer, until a transfer's sender knew that all arrived, or until all flows of an incast did.
    pub trips: Histogram<u64>,
    /// Time from a transfer's beginning until its receiver had all.
    pub received: Histogram<u64>,
    /// Streams that were given up.
    pub reset: u64,
    /// Starts of an incast at which flows were not done.
    pub late: u64,
    /// Bytes that arrived in each interval.
    pub intervals: Vec<u64>,
    /// Of a traffic with one flow of requests: number and time of each answered one.
    pub answered: Vec<(u32, Nanos)>,
    /// Segments of streams that were sent again.
    pub retransmitted: u64,
}

impl Tally {
    pub(crate) fn new(intervals: usize) -> Tally {
        let histogram = || Histogram::new(3).expect("three digits are allowed");
        Tally {
            made: 0,
            arrived: 0,
            lost_in_fabric: 0,
            refused_by_guest: 0,
            settled: (0, 0),
            waits: histogram(),
            trips: histogram(),
            received: histogram(),
            reset: 0,
            late: 0,
            intervals: vec![0; intervals],
            answered: Vec::new(),
            retransmitted: 0,
        }
    }
}
