//! Work under way in a guest, and the switchboard that brings its answers.

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

use crate::{Error, interrupt::interrupted};

/// How often an interrupt is looked for.
const GLANCE: Duration = Duration::from_millis(50);

/// How many events of each request were heard, of those that move the host and beyond those that [`Switchboard::heard`]
/// told before.
type Heard = Arc<Mutex<BTreeMap<u64, usize>>>;

/// Brings each answer to the job it belongs to.
#[derive(Default)]
pub(crate) struct Switchboard {
    jobs: HashMap<u64, Sender<(Instant, Event)>>,
    /// The ways of jobs that nobody has begun yet.
    expected: HashMap<u64, Receiver<(Instant, Event)>>,
    heard: Heard,
    last_id: u64,
    hung_up: bool,
}

/// A job's answers as they come.
pub(crate) struct Answer {
    id: u64,
    events: Receiver<(Instant, Event)>,
    heard: Heard,
}

impl Switchboard {
    pub fn unused_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Keeps answers that may come before [`Switchboard::connect`].
    pub fn expect(&mut self, id: u64) {
        let (sender, events) = channel();
        self.jobs.insert(id, sender);
        self.expected.insert(id, events);
    }

    /// Opens the way for a job's answers. Once the guest is gone, what is opened is closed at once.
    pub fn connect(&mut self, id: u64) -> Answer {
        let events = self.expected.remove(&id).unwrap_or_else(|| {
            let (sender, events) = channel();
            if !self.hung_up {
                self.jobs.insert(id, sender);
            }
            events
        });
        Answer { id, events, heard: self.heard.clone() }
    }

    /// What was heard since this was last asked.
    pub fn heard(&self) -> BTreeMap<u64, usize> {
        mem::take(&mut self.heard.lock().expect("no thread panics while it counts"))
    }

    pub fn dispatch(&mut self, id: u64, event: Event) {
        let last = event.ends();
        if let Some(job) = self.jobs.get(&id) {
            // A job nobody waits for any more is no error.
            let _ = job.send((Instant::now(), event));
        }
        if last {
            self.jobs.remove(&id);
        }
    }

    pub fn hang_up(&mut self) {
        self.hung_up = true;
        self.jobs.clear();
    }
}

/// Work under way in a guest.
pub struct Job {
    guest: String,
    answer: Answer,
    /// When to give up.
    deadline: Instant,
    /// How much later that is than the work's end.
    patience: Duration,
}

impl Job {
    pub(crate) fn new(guest: String, answer: Answer, deadline: Instant, patience: Duration) -> Job {
        Job { guest, answer, deadline, patience }
    }

    /// Waits for the next event, and answers it with the host's time of its arrival. The last is [`Event::Done`].
    ///
    /// # Errors
    /// [`Error::Failed`] where the agent could not do it, [`Error::Gone`] where the guest has ended,
    /// [`Error::Silent`] where nothing comes, [`Error::Interrupted`] where nothing more is wanted.
    pub fn next(&self) -> Result<(Instant, Event), Error> {
        let guest = || self.guest.clone();
        let Answer { id, events, heard } = &self.answer;
        let next = loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match events.recv_timeout(left.min(GLANCE)) {
                _ if interrupted() => return Err(Error::Interrupted),
                Err(RecvTimeoutError::Timeout) if left > GLANCE => {}
                next => break next,
            }
        };
        if next.as_ref().is_ok_and(|(_, event)| event.moves()) {
            *heard.lock().expect("no thread panics while it counts").entry(*id).or_default() += 1;
        }
        match next {
            Ok((_, Event::Failed(reason))) => Err(Error::Failed { guest: guest(), reason }),
            Ok((_, Event::Gone(how))) => Err(Error::Gone { guest: guest(), how }),
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => Err(Error::Silent { guest: guest(), patience: self.patience }),
            Err(RecvTimeoutError::Disconnected) => Err(Error::gone(&self.guest)),
        }
    }

    /// Waits until a receiver counts; answers the host's time of that: zero of the `t` of its samples.
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

    /// Passes on what is heard, in a thread, to its end, or until nobody takes it any more: `take` answers whether somebody did.
    pub fn pass_on(self, take: impl Fn(Result<(Instant, Event), Error>) -> bool + Send + 'static) {
        thread::spawn(move || {
            loop {
                let heard = self.next();
                let last = !matches!(heard, Ok((_, Event::Started | Event::Sample(_))));
                if !take(heard) || last {
                    break;
                }
            }
        });
    }

    /// Waits for the end, passing over all events before it.
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
