//! What is simulated: hosts, guests and their traffic. A plan file is one way to write it, an experiment of the lab another.

use crate::clock::Virtual;
pub use crate::window::Congestion;
use fairlane_core::ack::Mode;
use fairlane_core::time::Nanos;
use fairlane_policy::{Link, Policy, Setting, VifSetting};
use std::sync::Arc;

/// A scenario. Times count from its start, rates are in bits a second, sizes in bytes.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Two runs with the same seed are the same.
    pub seed: u64,
    /// How long it takes.
    pub seconds: f64,
    /// From when on frames count, except in time series.
    pub settle: Nanos,
    /// Length of an interval of the time series.
    pub interval: Nanos,
    /// What joins the hosts.
    pub fabric: Fabric,
    /// The hosts; each is one link of one policy.
    pub hosts: Vec<Host>,
    /// The guests, those of one host in the order of its policy's vifs.
    pub guests: Vec<Guest>,
    /// The traffic.
    pub traffic: Vec<Traffic>,
    /// What is guaranteed to tenants on all hosts together.
    pub guarantees: Vec<Guarantee>,
    /// Changes of hosts' policies. Those of one moment are made in this order.
    pub changes: Vec<Change>,
}

impl Scenario {
    /// When it ends.
    pub fn end(&self) -> Nanos {
        Nanos::from_secs_f64(self.seconds)
    }

    /// Whether a vif has early ack at any time.
    pub fn has_early_ack(&self) -> bool {
        let mut vifs = self.hosts.iter().flat_map(|host| &host.policy.vifs);
        let sets_it = |change: &Change| matches!(change.setting, Setting::Vif(VifSetting::EarlyAck(_)));
        vifs.any(|vif| vif.early_ack != Mode::Off) || self.changes.iter().any(sets_it)
    }
}

/// What joins the hosts and the outside: one queue in the middle, and one in front of each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Time that every frame takes.
    pub delay: Nanos,
    /// Bits a second of all frames together; unlimited if absent.
    pub capacity: Option<u64>,
    /// Bytes of each queue. What comes beyond that is lost.
    pub buffer: u64,
}

impl Default for Fabric {
    fn default() -> Fabric {
        Fabric { delay: Nanos::from_micros(10), capacity: None, buffer: 1 << 20 }
    }
}

/// A link of a host, with the worker that serves it.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// The link of the policy that it is.
    pub link: Link,
    /// Rate of its card. What waits in front of it is a card's, unless the link's uplink is a wire: then it is the wire's.
    pub card: u64,
    /// What the worker's work costs.
    pub costs: Costs,
}

/// A change of a host's policy while its traffic runs, as `fairlane ctl set` makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Nanos,
    /// The host, by index.
    pub host: usize,
    /// The vif, tenant or link.
    pub target: String,
    /// What it gets.
    pub setting: Setting,
}

/// What work on frames takes: nanoseconds of the CPU that does it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// For each frame.
    pub frame: f64,
    /// For each byte.
    pub byte: f64,
}

impl Work {
    /// The time for frames of these lengths.
    pub(crate) fn on(&self, frames: impl Iterator<Item = u32>) -> f64 {
        frames.map(|bytes| self.frame + self.byte * f64::from(bytes)).sum()
    }
}

/// What the backend's work costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A frame's whole path through it.
    pub work: Work,
    /// Time until a sleeping worker runs.
    pub wake: Nanos,
}

impl Default for Costs {
    /// About what `make bench` measures for frames of 1,514 bytes on one core.
    fn default() -> Costs {
        Costs { work: Work { frame: 150.0, byte: 0.05 }, wake: Nanos::from_micros(30) }
    }
}

impl Costs {
    /// Charges one end of a frame's path, half of its cost.
    pub(crate) fn spend(&self, clock: &Virtual, frames: impl Iterator<Item = u32>) {
        clock.spend((self.work.on(frames) / 2.0) as u64);
    }
}

/// A tenant's guarantee on all hosts together, which they divide by demand once a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarantee {
    /// The tenant's name in the hosts' policies.
    pub tenant: String,
    /// The guaranteed rate.
    pub min_rate: u64,
    /// Time from a host's claim until all have heard it.
    pub delay: Nanos,
}

/// A guest with one card.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its host, by index.
    pub host: usize,
    /// Its vif's name.
    pub vif: String,
    /// When it runs.
    pub cpu: Cpu,
    /// Slots in each ring of its card.
    pub ring: usize,
    /// Time from a notification until it is handled, while the guest runs.
    pub wake: Nanos,
    /// What it does, while it has its CPU, for each frame that it sends. Before it is done, its sources make no others; answers are
    /// sent at once, and the sources wait for that work as well.
    pub work: Work,
    /// What it does with each frame that it receives. Before it is done, it takes no others.
    pub rx_work: Work,
}

/// When a guest has its CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// Always.
    Always,
    /// In turns that repeat.
    Turns {
        /// Ends of the turns, counted from the first one's start: it runs in the first, waits in the second, and so on.
        ends: Arc<[Nanos]>,
        /// How much of them is over when the simulation starts.
        phase: Nanos,
    },
}

impl Cpu {
    /// Turns of these lengths: running, waiting, running and so on. None if they come to nothing, or the guest never runs.
    pub fn turns(lengths: &[Nanos], phase: Nanos) -> Option<Cpu> {
        let mut end = Nanos(0);
        let ends = lengths.iter().map(|length| {
            end += *length;
            end
        });
        let ends: Arc<[Nanos]> = ends.collect();
        let runs = lengths.iter().step_by(2).any(|length| length.0 > 0);
        runs.then(|| Cpu::Turns { phase: Nanos(phase.0 % end.0), ends })
    }

    /// Whether it runs at a time, and how long that stays so.
    fn turn(&self, at: Nanos) -> (bool, Nanos) {
        let Cpu::Turns { ends, phase } = self else { return (true, Nanos::NEVER) };
        let over = (at.0 + phase.0) % ends.last().map_or(1, |period| period.0);
        // Not one without length.
        let turn = ends.partition_point(|end| end.0 <= over);
        (turn % 2 == 0, ends.get(turn).map_or(Nanos::NEVER, |end| Nanos(end.0 - over)))
    }

    /// When it runs next, at `now` or later.
    pub(crate) fn runs_at(&self, now: Nanos) -> Nanos {
        self.has_run(Nanos(0), now)
    }

    /// When it has run for so long since `now`.
    pub(crate) fn has_run(&self, work: Nanos, now: Nanos) -> Nanos {
        let (mut left, mut at) = (work, now);
        loop {
            let (runs, rest) = self.turn(at);
            if runs && left <= rest {
                return at + left;
            }
            left = if runs { left - rest } else { left };
            at += rest;
        }
    }
}

/// Flows of the same kind, which are counted together.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Its name.
    pub name: String,
    /// How frames are made.
    pub source: Source,
    /// Bytes of each frame.
    pub frame: u32,
    /// When it starts and stops.
    pub time: (Nanos, Nanos),
    /// Time on the way to the outside and back that is added to the fabric's.
    pub rtt: Nanos,
    /// Part of the frames that the fabric loses, 0 to 1.
    pub loss: f64,
    /// How windows of streams grow.
    pub congestion: Congestion,
    /// Each flow's sender and receiver.
    pub flows: Vec<(Place, Place)>,
}

impl Traffic {
    /// Flows that lose nothing on a way without additional time.
    pub fn new(name: String, source: Source, frame: u32, time: (Nanos, Nanos), flows: Vec<(Place, Place)>) -> Traffic {
        Traffic { name, source, frame, time, rtt: Nanos(0), loss: 0.0, congestion: Congestion::default(), flows }
    }
}

/// How a flow's sender makes frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// At even distances.
    Constant {
        /// Bits a second.
        rate: u64,
    },
    /// At random, independent of one another.
    Poisson {
        /// Bits a second.
        rate: u64,
    },
    /// At even distances for a while, then none for a while, from a random moment of the two.
    OnOff {
        /// Bits a second while it is on.
        rate: u64,
        /// How long it is on.
        on: Nanos,
        /// How long it is off.
        off: Nanos,
    },
    /// As many as the card takes.
    Flood,
    /// Requests at even distances, each of which is answered by a frame of the same length.
    Requests {
        /// Time between two requests.
        interval: Nanos,
    },
    /// A stream with a window, like TCP's.
    Stream {
        /// Most bytes in flight.
        window: u64,
        /// How many bytes; no end if absent.
        bytes: Option<u64>,
    },
    /// As a stream, so many bytes again and again: the next ones after a random pause once sender and receiver are done.
    Transfer {
        /// Bytes of each transfer.
        bytes: u64,
        /// The mean pause, in an exponential distribution.
        pause: Nanos,
        /// Whether each transfer has a connection of its own.
        anew: bool,
        /// Most bytes in flight.
        window: u64,
    },
    /// All flows send so many bytes at once, as streams, at even distances.
    Incast {
        /// Bytes of each flow.
        bytes: u64,
        /// Time between two starts.
        interval: Nanos,
        /// Most bytes in flight in each flow.
        window: u64,
    },
}

impl Source {
    /// Whether frames are segments of streams.
    pub fn is_stream(&self) -> bool {
        matches!(self, Source::Stream { .. } | Source::Transfer { .. } | Source::Incast { .. })
    }
}

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Beyond the fabric.
    Outside,
    /// A guest, by index.
    Guest(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_guest_runs_in_every_other_turn() {
        let millis = |times: &[u64]| times.iter().map(|time| Nanos::from_millis(*time)).collect::<Vec<_>>();
        let at = |cpu: &Cpu, time| cpu.runs_at(Nanos::from_millis(time)).0 / 1_000_000;
        assert_eq!(Cpu::Always.runs_at(Nanos(5)), Nanos(5));
        let credit = Cpu::turns(&millis(&[30, 60]), Nanos(0)).unwrap();
        assert_eq!([0, 29, 30, 89, 90, 125].map(|time| at(&credit, time)), [0, 29, 90, 90, 90, 180]);
        let late = Cpu::turns(&millis(&[30, 60]), Nanos::from_millis(40)).unwrap();
        assert_eq!([0, 49, 50, 80].map(|time| at(&late, time)), [50, 50, 50, 140]);
        let odd = Cpu::turns(&millis(&[0, 10, 5]), Nanos(0)).unwrap();
        assert_eq!([0, 9, 10, 14, 15].map(|time| at(&odd, time)), [10, 10, 10, 14, 25]);
        let last_is_empty = Cpu::turns(&millis(&[0, 1, 1, 1, 0]), Nanos(0)).unwrap();
        assert_eq!(last_is_empty.runs_at(Nanos::from_millis(2)), Nanos::from_millis(4));
        assert_eq!(Cpu::turns(&millis(&[0, 60]), Nanos(0)), None);
        assert_eq!(Cpu::turns(&[], Nanos(0)), None);
    }

    proptest! {
        /// As counted in steps of a nanosecond, in each of which it runs or waits.
        #[test]
        fn work_is_done_in_its_turns(turns in prop::collection::vec(0u64..9, 1..6), phase in 0u64..40, now in 0u64..50, work in 0u64..40) {
            let lengths: Vec<Nanos> = turns.into_iter().map(Nanos).collect();
            let Some(cpu) = Cpu::turns(&lengths, Nanos(phase)) else { return Ok(()) };
            let mut runs = (now..).filter(|at| cpu.runs_at(Nanos(*at)) == Nanos(*at));
            let expected = match work.checked_sub(1) {
                None => runs.next(),
                Some(before) => runs.nth(before as usize).map(|last| last + 1),
            };
            prop_assert_eq!(Some(cpu.has_run(Nanos(work), Nanos(now)).0), expected);
        }
    }
}
