//! Scripts: recorded requests that an agent replays, each after the events that preceded it in the recording.
//!
//! To run the same each time, a machine must not be reached by anything from outside. So the lab does not send requests: a script
//! recorded before has them, with the events after which each was made. Time passes by the machine's own clock, however slow the
//! host is.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, BufRead},
    sync::{Arc, Condvar, Mutex},
};

use serde::{Deserialize, Serialize};

use crate::Request;

/// A recorded request, and the events before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// How many events of earlier requests, by id, the lab received between the last step and this one. Only those that may cause
    /// requests count ([`Event::may_cause_requests`](crate::Event::may_cause_requests)).
    pub after: BTreeMap<u64, usize>,
    /// The request.
    pub request: Request,
}

/// Reads a script, one step per line.
///
/// # Errors
/// The first line that is no step.
pub fn read_script(text: impl BufRead) -> io::Result<Vec<Step>> {
    let step = |(number, line): (usize, io::Result<String>)| {
        serde_json::from_str(&line?).map_err(|error| io::Error::other(format!("line {number}: {error}")))
    };
    (1..).zip(text.lines()).map(step).collect()
}

/// The number of sent events of each request, less those waited for. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct EventCounts(Arc<(Mutex<HashMap<u64, usize>>, Condvar)>);

impl EventCounts {
    /// Counts an event of a request.
    pub(crate) fn add(&self, id: u64) {
        let (counts, added) = &*self.0;
        *counts.lock().expect("no thread panics while it counts").entry(id).or_default() += 1;
        added.notify_all();
    }

    /// Waits until as many events have been sent, and subtracts them.
    pub(crate) fn wait_for(&self, events: &BTreeMap<u64, usize>) {
        let (counts, added) = &*self.0;
        let mut counts = counts.lock().expect("no thread panics while it counts");
        for (id, count) in events {
            while counts.get(id).is_none_or(|sent| sent < count) {
                counts = added.wait(counts).expect("no thread panics while it counts");
            }
            counts.entry(*id).and_modify(|sent| *sent -= count);
        }
    }
}
