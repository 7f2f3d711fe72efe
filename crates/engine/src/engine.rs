//! A policy at work: its ports, the workers that serve them, and who may ask and tell.

mod captures;
mod flows;

use crate::bridge::Bridge;
use crate::change::Refused;
use crate::clock::{Clock, Monotonic};
use crate::confinement::{self, Wish};
use crate::control::{self, Reload, Request, Set};
use crate::error::Error;
use crate::metrics;
use crate::ports;
use crate::snapshot::{LinkState, Snapshot};
use crate::worker::Worker;
use fairlane_policy::{Change, Link, Policy, Setting, Terms, Uplink};
use fairlane_port::Port;
use fairlane_port::capture::Recording;
use fairlane_port::xen::backend::Found;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A running backend. Dropping it ends its threads and removes its sockets.
pub struct Engine {
    shared: Arc<Shared>,
    /// Only held: they serve until dropped, which is before the workers end.
    _control: control::Server,
    metrics: Option<metrics::Server>,
}

/// What control and metrics reach too.
struct Shared {
    policy: Mutex<Policy>,
    workers: Vec<Worker>,
    /// The worker of each link.
    places: HashMap<String, usize>,
    clock: Monotonic,
    stopping: Mutex<bool>,
    stop: Condvar,
    /// Cards of Xen's guests, as xenstore has them; those that a vif of the file names too.
    found: Mutex<BTreeMap<(String, u32), Terms>>,
    /// Captures by vif, from their start until somebody asks what came of them.
    captures: Mutex<HashMap<String, Recording>>,
}

impl Engine {
    /// Opens all that a policy names and starts to serve it.
    ///
    /// # Errors
    /// What could not be opened; then nothing runs and nothing is left behind.
    pub fn start(mut policy: Policy) -> Result<Engine, Error> {
        ports::look_up(&mut policy)?;
        let clock = Monotonic::new();
        let mut uplinks = ports::uplinks(&policy.links)?;
        let mut workers = Vec::new();
        let mut places = HashMap::new();
        for group in groups(&policy.links) {
            let mut bridges = Vec::new();
            for link in &group {
                let uplink = uplinks.remove(&link.name);
                bridges.push(Bridge::open(&policy, link, uplink, ports::vif, &clock)?);
                places.insert(link.name.clone(), workers.len());
            }
            let cpu = group.iter().find_map(|link| link.cpu);
            let said = |error| Error::failed(format!("cannot start the worker of link `{}`", group[0].name), error);
            workers.push(Worker::start(bridges, clock, cpu).map_err(said)?);
        }
        let (socket, page) = (policy.control.clone(), policy.metrics);
        let (stopping, stop) = (Mutex::new(false), Condvar::new());
        let (takes_found, found, captures) = (policy.takes_found(), Mutex::default(), Mutex::default());
        let policy = Mutex::new(policy);
        let shared = Arc::new(Shared { policy, workers, places, clock, stopping, stop, found, captures });
        if takes_found {
            let heard = Arc::downgrade(&shared);
            ports::find(move |found| {
                if let Some(shared) = heard.upgrade() {
                    shared.hear(found);
                }
            })?;
        }
        let told = shared.clone();
        let control = control::Server::start(&socket, Arc::new(move |request| told.answer(request)))?;
        let asked = shared.clone();
        let source: metrics::Source = Arc::new(move || asked.snapshot());
        let metrics = page.map(|address| metrics::Server::start(address, source)).transpose()?;
        Ok(Engine { shared, _control: control, metrics })
    }

    /// Changes one setting of a vif or link, as a policy file would say it: `("web", "weight", "30")`.
    ///
    /// # Errors
    /// What is wrong with it; then nothing changed.
    pub fn set(&self, target: &str, key: &str, value: &str) -> Result<(), Error> {
        self.shared.set(target, key, value)
    }

    /// Goes over to a newer policy. Returns the number of changes.
    ///
    /// # Errors
    /// What cannot change while running, or could not be opened; then nothing changed. Only where a new vif takes over
    /// the socket of an old one, and fails, the old one is gone.
    pub fn reload(&self, newer: Policy) -> Result<usize, Error> {
        self.shared.reload(newer)
    }

    /// State and counters of everything.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.shared.snapshot()
    }

    /// The policy as it is now.
    pub fn policy(&self) -> Policy {
        self.shared.policy().clone()
    }

    /// Where metrics are served.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(metrics::Server::address)
    }

    /// A function that ends [`Engine::wait`], for who handles signals.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.request_stop()
    }

    /// Waits until a control client or a [`Engine::stopper`] says to stop, for so long at most if given. Whether one did.
    pub fn wait(&self, at_most: Option<Duration>) -> bool {
        let stopping = self.shared.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let (stop, most) = (&self.shared.stop, at_most.unwrap_or(Duration::MAX));
        let waited = stop.wait_timeout_while(stopping, most, |stopping| !*stopping);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sees that every worker answers.
    ///
    /// # Errors
    /// Who does not.
    pub fn is_well(&self) -> Result<(), Error> {
        Ok(self.shared.workers.iter().try_for_each(|worker| worker.call(|_| ()))?)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for worker in &self.shared.workers {
            worker.end();
        }
        self.shared.end_captures();
    }
}

impl Shared {
    /// A thread that panicked in the midst of a change is no reason to refuse all others.
    fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, target: &str, key: &str, value: &str) -> Result<(), Error> {
        let setting = Setting::parse(key, value)?;
        let mut policy = self.policy();
        let mut newer = policy.clone();
        newer.apply(target, setting)?;
        self.advance(&mut policy, newer)?;
        Ok(())
    }

    /// Goes over to a newer file, and takes in what was found beside it.
    fn reload(&self, mut newer: Policy) -> Result<usize, Error> {
        ports::look_up(&mut newer)?;
        let mut policy = self.policy();
        for ((guest, device), terms) in &*self.found() {
            warn(newer.add_found_card(guest, *device, terms));
        }
        self.advance(&mut policy, newer)
    }

    /// Heeds that a card of Xen's was found, has other terms, or is gone.
    fn hear(&self, Found { guest, device, terms }: Found) {
        let mut policy = self.policy();
        let mut newer = policy.clone();
        match terms {
            Some(terms) => {
                warn(newer.add_found_card(&guest, device, &terms));
                self.found().insert((guest, device), terms);
            }
            None => {
                newer.remove_found_card(&guest, device);
                self.found().remove(&(guest, device));
            }
        }
        warn(self.advance(&mut policy, newer).err());
    }

    fn found(&self) -> MutexGuard<'_, BTreeMap<(String, u32), Terms>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all steps from the policy to a newer one. Of what could not be done the policy says what it said before, so that it can be
    /// asked for again.
    fn advance(&self, policy: &mut Policy, newer: Policy) -> Result<usize, Error> {
        let changes = policy.changes(&newer).map_err(Error::Fixed)?;
        let count = changes.len();
        let mut opened: Vec<HashMap<String, Box<dyn Port>>> = self.workers.iter().map(|_| HashMap::new()).collect();
        let mut steps: Vec<Vec<Change>> = self.workers.iter().map(|_| Vec::new()).collect();
        for change in changes {
            let worker = self.place(policy, &newer, &change)?;
            if let Change::AddVif(vif) = &change
                && !policy.vifs.iter().any(|old| old.card.shares_place_with(&vif.card))
            {
                opened[worker].insert(vif.name.clone(), ports::vif(vif)?);
            }
            steps[worker].push(change);
        }
        let mut now = newer.clone();
        let mut failed = Vec::new();
        for ((worker, steps), opened) in self.workers.iter().zip(steps).zip(opened) {
            if steps.is_empty() {
                continue;
            }
            let newer = newer.clone();
            match worker.call(move |work| work.apply(steps, &newer, opened)) {
                Ok(refused) => {
                    for Refused { change, why } in refused.into_iter().rev() {
                        now.revert(&change, policy);
                        failed.push(why);
                    }
                }
                // One that is held does what it was told once it is not; a dead one ends the process.
                Err(gone) => failed.push(gone.into()),
            }
        }
        *policy = now;
        if failed.is_empty() { Ok(count) } else { Err(Error::Undone(failed)) }
    }

    /// The worker that takes a step.
    fn place(&self, policy: &Policy, newer: &Policy, change: &Change) -> Result<usize, Error> {
        let of_vif = |policy: &Policy, name: &str| {
            policy.vifs.iter().find(|vif| vif.name == name).map_or(String::new(), |vif| vif.link.clone())
        };
        let link = match change {
            Change::RemoveVif { vif } => of_vif(policy, vif),
            Change::Share { vif, .. } | Change::AntiSpoofing { vif, .. } | Change::EarlyAck { vif, .. } => {
                of_vif(newer, vif)
            }
            Change::AddVif(vif) => vif.link.clone(),
            Change::Rate { link, .. }
            | Change::Scheduler { link, .. }
            | Change::IdleTimeout { link, .. }
            | Change::Isolate { link, .. }
            | Change::RxPool { link, .. } => link.clone(),
        };
        self.places.get(&link).copied().ok_or(Error::NoLink(link))
    }

    fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut uplinks = HashMap::new();
        let mut vifs = Vec::new();
        for worker in &self.workers {
            let seen = worker.call(|work| {
                let now = work.clock.now();
                let bridges = work.bridges.iter_mut();
                bridges.map(|bridge| (bridge.name().to_owned(), bridge.snapshot(now))).collect::<Vec<_>>()
            })?;
            for (link, (uplink, seen)) in seen {
                uplinks.insert(link, uplink);
                vifs.extend(seen);
            }
        }
        // Only now: a worker that is slow to answer holds nobody who wants the policy.
        let policy = self.policy();
        let places: HashMap<&str, usize> =
            policy.vifs.iter().enumerate().map(|(place, vif)| (vif.name.as_str(), place)).collect();
        vifs.sort_by_key(|vif| places.get(vif.name.as_str()).copied());
        let link = |link: &Link| LinkState {
            name: link.name.clone(),
            scheduler: link.scheduler.name().to_owned(),
            by_weight: link.scheduler.by_weight(),
            rate: ports::rate(&policy.links, link),
            idle_timeout: link.idle_timeout.0,
            isolate: link.isolate,
            cpu: link.cpu,
            rx_pool: link.rx_pool,
            uplink: uplinks.get(&link.name).cloned().flatten(),
        };
        Ok(Snapshot { time: self.clock.now().0, links: policy.links.iter().map(link).collect(), vifs })
    }

    /// Answers a control client.
    fn answer(&self, request: Request) -> Result<serde_json::Value, Error> {
        let json = |value: Result<serde_json::Value, serde_json::Error>| {
            value.map_err(|error| Error::failed("cannot write the answer", error))
        };
        match request {
            Request::Show => json(serde_json::to_value(self.snapshot()?)),
            Request::Set(Set { target, key, value }) => {
                self.set(&target, &key, &value)?;
                Ok(serde_json::Value::Null)
            }
            Request::Reload(Reload { name, text }) => {
                let newer = Policy::parse(&name, &text).map_err(|problems| {
                    Error::Policy(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
                })?;
                self.reload(newer).map(serde_json::Value::from)
            }
            Request::StartCapture(start) => {
                self.start_capture(&start)?;
                Ok(serde_json::Value::Null)
            }
            Request::StopCapture(stop) => json(serde_json::to_value(self.stop_capture(&stop.vif)?)),
            Request::Flows => json(serde_json::to_value(self.flows()?)),
            Request::ExportFlows(export) => self.export_flows(&export).map(serde_json::Value::from),
            Request::ImportFlows(import) => self.import_flows(&import).map(serde_json::Value::from),
            Request::Stop => {
                self.request_stop();
                Ok(serde_json::Value::Null)
            }
        }
    }

    fn worker_of(&self, vif: &str) -> Result<&Worker, Error> {
        let policy = self.policy();
        let found = policy.vifs.iter().find(|known| known.name == vif);
        let found = found.ok_or_else(|| {
            let known = policy.vifs.iter().map(|vif| vif.name.clone()).take(8).collect();
            Error::NoVif { name: vif.to_owned(), known }
        })?;
        Ok(&self.workers[self.places[&found.link]])
    }

    fn request_stop(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.notify_all();
    }
}

/// Logs what nobody waits for an answer about.
fn warn<S: Display>(sentences: impl IntoIterator<Item = S>) {
    sentences.into_iter().for_each(|sentence| tracing::warn!("{sentence}"));
}

/// A new file that only its owner may read. What is there already, a link or pipe too, is not opened.
fn create(path: &Path) -> Result<std::fs::File, Error> {
    let said = |error: &dyn Display| Error::failed(format!("cannot write to {}", path.display()), error);
    if !path.is_absolute() {
        return Err(said(&"the path must begin with /"));
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| said(&confinement::explain(&error, Wish::File)))
}

/// The links that share a worker: one alone, or the two ends of a wire.
fn groups(links: &[Link]) -> Vec<Vec<&Link>> {
    let far = |link: &Link| match &link.uplink {
        Uplink::Wire { to, .. } => links.iter().find(|other| other.name == *to),
        _ => None,
    };
    let is_far = |link: &&Link| links.iter().any(|other| far(other).is_some_and(|far| far.name == link.name));
    links.iter().filter(|link| !is_far(link)).map(|link| std::iter::once(link).chain(far(link)).collect()).collect()
}
