//! Frames lost in the host, between the guests' cards and the host's card.

use fairlane_agent::{Command, Counters, Outcome};

use super::super::record::Record;
use crate::machine::{CARD, UPLINK};
use crate::{Error, Machine, Node, Topology};

/// The metric's name: frames lost in all repeats.
pub(super) const LOST: &str = "lost_in_host";

/// Seconds until no frame is in flight: the time in which a link of 10 Mbit/s drains two guests' rings, queues and sockets.
pub(super) const DRAIN: f64 = 3.0;

/// Reads the counters before a repeat.
///
/// # Errors
/// Those of the machine's agents.
pub(super) fn begin(topology: &Topology, machine: &dyn Machine, record: &mut Record) -> Result<(), Error> {
    count(topology, machine, 0.0, -1.0, record)
}

/// Reads the counters after a repeat, once all frames have passed.
///
/// # Errors
/// Those of the machine's agents.
pub(super) fn end(topology: &Topology, machine: &dyn Machine, record: &mut Record) -> Result<(), Error> {
    count(topology, machine, DRAIN, 1.0, record)
}

/// Reads the cards' counters after some seconds and adds the number of lost frames, times `sign`, to the metric.
fn count(topology: &Topology, machine: &dyn Machine, after: f64, sign: f64, record: &mut Record) -> Result<(), Error> {
    let guests = (1..=topology.joined()).map(|guest| (Node::Guest(guest), CARD));
    let cards: Vec<_> = guests.chain([(Node::Host, UPLINK)]).collect();
    let ask = |(node, _): &(Node, &str)| machine.agent(*node).start_job_later(after, Command::Counters);
    let jobs = cards.iter().map(ask).collect::<Result<Vec<_>, _>>()?;
    let mut sent = Vec::new();
    for ((_, card), job) in cards.iter().zip(jobs) {
        let Outcome::Counters(counters) = job.wait()? else { continue };
        sent.extend(frames(&counters, card));
    }
    // Not a number on a machine whose cards have other names.
    let lost = match sent.split_last() {
        Some((passed, guests)) if guests.len() + 1 == cards.len() => guests.iter().sum::<f64>() - passed,
        _ => f64::NAN,
    };
    let before = record.samples(LOST).first().copied().unwrap_or(0.0);
    record.set(LOST, "frames", before + sign * lost);
    Ok(())
}

/// Frames that a card sent.
fn frames(counters: &Counters, card: &str) -> Option<f64> {
    let interface = counters.interfaces.iter().find(|interface| interface.name == card)?;
    Some(interface.sent_frames as f64)
}
