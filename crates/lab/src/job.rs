//! Running commands of an agent, and the switchboard that distributes their events.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use fairlane_agent::{Event, Outcome};

use crate::{Error, interrupt};

/// How often an interrupt is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The number of received events of each request since [`Switchboard::received`] was last called. Only events that the lab's
/// further requests depend on are counted ([`Event::may_cause_requests`]).
type Received = Arc<Mutex<BTreeMap<u64, usize>>>;

/// Passes each event to the job it belongs to.
#[derive(Default)]
pub(crate) struct Switchboard {
    jobs: HashMap<u64, Sender<(Instant, Event)>>,
    /// The channels of jobs that are not connected yet.
    expected: HashMap<u64, Receiver<(Instant, Event)>>,
    received: Received,
    last_id: u64,
    closed: bool,
}

/// The events of a job.
pub(crate) struct Answer {
    id: u64,
    events: Receiver<(Instant, Event)>,
    received: Received,
}

impl Switchboard {
    pub(crate) fn unused_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Queues events that may arrive before [`Switchboard::connect`].
    pub(crate) fn expect(&mut self, id: u64) {
        let (sender, events) = channel();
        self.jobs.insert(id, sender);
        self.expected.insert(id, events);
    }

    /// Opens the channel of a job's events. It is closed at once if the guest has ended.
    pub(crate) fn connect(&mut self, id: u64) -> Answer {
        let events = self.expected.remove(&id).unwrap_or_else(|| {
            let (sender, events) = channel();
            if !self.closed {
                self.jobs.insert(id, sender);
            }
            events
        });
        Answer { id, events, received: self.received.clone() }
    }

    /// The number of events received for each request since the last call.
    pub(crate) fn received(&self) -> BTreeMap<u64, usize> {
        mem::take(&mut self.received.lock().expect("no thread panics while it counts"))
    }

    pub(crate) fn dispatch(&mut self, id: u64, event: Event) {
        let last = event.ends();
        if let Some(job) = self.jobs.get(&id) {
            // The job may have been dropped.
            let _ = job.send((Instant::now(), event));
        }
        if last {
            self.jobs.remove(&id);
        }
    }

    /// Ends all jobs: the guest has ended.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.jobs.clear();
    }
}

/// A running command of a guest's agent.
pub struct Job {
    guest: String,
    answer: Answer,
    /// When to give up.
    deadline: Instant,
    /// How much later that is than the command's expected end.
    patience: Duration,
}

impl Job {
    pub(crate) fn new(guest: String, answer: Answer, deadline: Instant, patience: Duration) -> Job {
        Job { guest, answer, deadline, patience }
    }

    /// Waits for the next event and returns it with the time of its arrival on the host. The last one is [`Event::Done`].
    ///
    /// # Errors
    /// [`Error::Failed`] if the command failed, [`Error::Gone`] if the guest has ended, [`Error::Silent`] if nothing arrives before
    /// the deadline, [`Error::Interrupted`] after an interrupt.
    pub fn next(&self) -> Result<(Instant, Event), Error> {
        let guest = || self.guest.clone();
        let Answer { id, events, received } = &self.answer;
        let next = loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let next = events.recv_timeout(left.min(POLL_INTERVAL));
            interrupt::check()?;
            match next {
                Err(RecvTimeoutError::Timeout) if left > POLL_INTERVAL => {}
                next => break next,
            }
        };
        if next.as_ref().is_ok_and(|(_, event)| event.may_cause_requests()) {
            *received.lock().expect("no thread panics while it counts").entry(*id).or_default() += 1;
        }
        match next {
            Ok((_, Event::Failed(reason))) => Err(Error::Failed { guest: guest(), reason }),
            Ok((_, Event::Gone(how))) => Err(Error::Gone { guest: guest(), how }),
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => Err(Error::Silent { guest: guest(), patience: self.patience }),
            Err(RecvTimeoutError::Disconnected) => Err(Error::gone(&self.guest)),
        }
    }

    /// Waits until a server is ready; returns the host's time of that, which is the zero of its samples' `t`.
    ///
    /// # Errors
    /// As [`Job::next`].
    pub fn started(&self) -> Result<Instant, Error> {
        loop {
            if let (at, Event::Started) = self.next()? {
                return Ok(at);
            }
        }
    }

    /// Passes the events to `take`, in a thread, until the last one or until `take` returns false.
    pub fn pass_on(self, take: impl Fn(Result<(Instant, Event), Error>) -> bool + Send + 'static) {
        thread::spawn(move || {
            loop {
                let event = self.next();
                let last = !matches!(event, Ok((_, Event::Started | Event::Sample(_))));
                if !take(event) || last {
                    break;
                }
            }
        });
    }

    /// Waits for the outcome and ignores the events before it.
    ///
    /// # Errors
    /// As [`Job::next`].
    pub fn wait(self) -> Result<Outcome, Error> {
        loop {
            if let (_, Event::Done(outcome)) = self.next()? {
                return Ok(outcome);
            }
        }
    }
}
