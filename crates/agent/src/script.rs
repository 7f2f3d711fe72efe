//! A script: requests that an agent has from its start, each to be done when what it followed from has happened.
//!
//! Where nothing from outside may reach a computer, so that it runs alike each time, the host does not ask: a rehearsal
//! shows what it will ask, and after which answers. Time passes as the computer has it, however slow the host is.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, BufRead},
    sync::{Arc, Condvar, Mutex},
};

use serde::{Deserialize, Serialize};

use crate::Request;

/// A request and its cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// How many events of earlier requests, by id, the host had heard before it asked, beyond those before the last step.
    /// Only those that move it count ([`Event::moves`](crate::Event::moves)).
    pub after: BTreeMap<u64, usize>,
    /// What it asked.
    pub request: Request,
}

/// Reads a script, a step a line.
///
/// # Errors
/// The line that is no step.
pub fn read_script(text: impl BufRead) -> io::Result<Vec<Step>> {
    let step = |(number, line): (usize, io::Result<String>)| {
        serde_json::from_str(&line?).map_err(|error| io::Error::other(format!("line {number}: {error}")))
    };
    (1..).zip(text.lines()).map(step).collect()
}

/// How many events of each request were told so far. Clones count together.
#[derive(Clone, Default)]
pub struct Told(Arc<(Mutex<HashMap<u64, usize>>, Condvar)>);

impl Told {
    /// Counts an event.
    pub fn add(&self, id: u64) {
        let (told, more) = &*self.0;
        *told.lock().expect("no thread panics while it counts").entry(id).or_default() += 1;
        more.notify_all();
    }

    /// Takes so many off, once they have been told.
    pub fn take(&self, events: &BTreeMap<u64, usize>) {
        let (told, more) = &*self.0;
        let mut told = told.lock().expect("no thread panics while it counts");
        for (id, count) in events {
            while told.get(id).is_none_or(|told| told < count) {
                told = more.wait(told).expect("no thread panics while it counts");
            }
            told.entry(*id).and_modify(|told| *told -= count);
        }
    }
}
