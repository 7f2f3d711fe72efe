//! Runs a policy: opens its ports, starts the workers that serve them, and answers control clients.

mod captures;
mod flows;

use crate::bridge::Bridge;
use crate::change::Refused;
use crate::clock::{Clock, Monotonic};
use crate::confinement::{self, Wish};
use crate::control::{self, Reload, Request, Set};
use crate::error::Error;
use crate::ports;
use crate::snapshot::{LinkState, Snapshot, TenantState, VifState};
use crate::web;
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
    /// Held to be dropped: they serve until then, and are dropped before the workers end.
    _control: control::Server,
    web: Option<web::Server>,
}

/// State that control and metrics use as well.
struct Shared {
    policy: Mutex<Policy>,
    workers: Vec<Worker>,
    /// The index of each link's worker.
    places: HashMap<String, usize>,
    clock: Monotonic,
    stopping: Mutex<bool>,
    stop: Condvar,
    /// Cards of Xen guests in xenstore, including those that a vif in the file names.
    found: Mutex<BTreeMap<(String, u32), Terms>>,
    /// Captures by vif, until a client asks for their report.
    captures: Mutex<HashMap<String, Recording>>,
}

impl Engine {
    /// Opens everything that a policy names, and serves it.
    ///
    /// # Errors
    /// Something cannot be opened; then nothing runs and nothing is left behind.
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
        let (socket, page, token) = (policy.control.clone(), policy.metrics, policy.metrics_token.clone());
        let (stopping, stop) = (Mutex::new(false), Condvar::new());
        let (takes_found, found, captures) = (policy.takes_found(), Mutex::default(), Mutex::default());
        let policy = Mutex::new(policy);
        let shared = Arc::new(Shared { policy, workers, places, clock, stopping, stop, found, captures });
        if takes_found {
            let heard = Arc::downgrade(&shared);
            ports::find(move |found| {
                if let Some(shared) = heard.upgrade() {
                    shared.card_changed(found);
                }
            })?;
        }
        let told = shared.clone();
        let control = control::Server::start(&socket, Arc::new(move |request| told.answer(request)))?;
        let asked = shared.clone();
        let source: web::Source = Arc::new(move || asked.snapshot());
        let web = page.map(|address| web::Server::start(address, token.as_deref(), source)).transpose()?;
        Ok(Engine { shared, _control: control, web })
    }

    /// Changes one setting of a vif or link, in the syntax of a policy file: `("web", "weight", "30")`.
    ///
    /// # Errors
    /// The setting is refused; then nothing changed.
    pub fn set(&self, target: &str, key: &str, value: &str) -> Result<(), Error> {
        self.shared.set(target, key, value)
    }

    /// Applies a newer policy. Returns the number of changes.
    ///
    /// # Errors
    /// A change needs a restart, or something cannot be opened; then nothing changed. Exception: if a new vif takes over the socket
    /// of an old one and fails, the old one is gone.
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

    /// The present policy.
    pub fn policy(&self) -> Policy {
        self.shared.policy().clone()
    }

    /// The address of the metrics server.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.web.as_ref().map(web::Server::address)
    }

    /// A function that ends [`Engine::wait`], for a signal handler.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.request_stop()
    }

    /// Waits until a control client or a [`Engine::stopper`] requests a stop, at most for the given time. Returns whether one did.
    pub fn wait(&self, at_most: Option<Duration>) -> bool {
        let stopping = self.shared.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let (stop, most) = (&self.shared.stop, at_most.unwrap_or(Duration::MAX));
        let waited = stop.wait_timeout_while(stopping, most, |stopping| !*stopping);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Checks that every worker responds.
    ///
    /// # Errors
    /// The worker that does not.
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
    /// A thread that panicked during a change is no reason to refuse all further ones.
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

    /// Applies a newer file together with the found Xen cards.
    fn reload(&self, mut newer: Policy) -> Result<usize, Error> {
        ports::look_up(&mut newer)?;
        let mut policy = self.policy();
        for ((guest, device), terms) in &*self.found() {
            warn(newer.add_found_card(guest, *device, terms));
        }
        self.advance(&mut policy, newer)
    }

    /// Handles a Xen card that was found, changed or removed.
    fn card_changed(&self, Found { guest, device, terms }: Found) {
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

    /// Applies all changes from the policy to a newer one. Failed changes are reverted in the policy, so that they can be requested
    /// again.
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
                // A worker that hangs does this once it continues; a dead one ends the process.
                Err(gone) => failed.push(gone.into()),
            }
        }
        *policy = now;
        if failed.is_empty() { Ok(count) } else { Err(Error::Undone(failed)) }
    }

    /// The index of the worker that applies a change.
    fn place(&self, policy: &Policy, newer: &Policy, change: &Change) -> Result<usize, Error> {
        let of_vif = |policy: &Policy, name: &str| {
            policy.vifs.iter().find(|vif| vif.name == name).map_or(String::new(), |vif| vif.link.clone())
        };
        let link = match change {
            Change::RemoveVif { vif } => of_vif(policy, vif),
            Change::Share { vif, .. }
            | Change::Member { vif, .. }
            | Change::AntiSpoofing { vif, .. }
            | Change::EarlyAck { vif, .. } => of_vif(newer, vif),
            Change::AddVif(vif) => vif.link.clone(),
            Change::Rate { link, .. }
            | Change::RxRate { link, .. }
            | Change::Tenant { link, .. }
            | Change::Scheduler { link, .. }
            | Change::IdleTimeout { link, .. }
            | Change::Isolate { link, .. }
            | Change::RxPool { link, .. } => link.clone(),
        };
        self.places.get(&link).copied().ok_or(Error::NoLink(link))
    }

    fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut links = HashMap::new();
        let mut vifs: Vec<VifState> = Vec::new();
        for worker in &self.workers {
            let (busy, seen) = worker.call(|work| {
                let now = work.clock.now();
                let bridges = work.bridges.iter_mut();
                let seen = bridges.map(|bridge| (bridge.name().to_owned(), bridge.snapshot(now)));
                (work.busy, seen.collect::<Vec<_>>())
            })?;
            for (link, (uplink, seen)) in seen {
                links.insert(link, (busy, uplink));
                vifs.extend(seen);
            }
        }
        let captures = self.captures();
        for vif in &mut vifs {
            vif.capture = captures.get(&vif.name).map(|capture| captures::report(capture.so_far()));
        }
        drop(captures);
        // Locked only here: a slow worker must not block clients that need the policy.
        let policy = self.policy();
        let places: HashMap<&str, usize> =
            policy.vifs.iter().enumerate().map(|(place, vif)| (vif.name.as_str(), place)).collect();
        vifs.sort_by_key(|vif| places.get(vif.name.as_str()).copied());
        let link = |link: &Link| {
            let (busy, uplink) = links.get(&link.name).cloned().unwrap_or_default();
            LinkState {
                name: link.name.clone(),
                scheduler: link.scheduler.name().to_owned(),
                by_weight: link.scheduler.by_weight(),
                rate: ports::rate(&policy.links, link),
                rx_rate: link.rx_rate,
                idle_timeout: link.idle_timeout.0,
                isolate: link.isolate,
                cpu: link.cpu,
                rx_pool: link.rx_pool,
                busy: busy.0,
                uplink,
            }
        };
        Ok(Snapshot {
            time: self.clock.now().0,
            links: policy.links.iter().map(link).collect(),
            tenants: policy.tenants.iter().map(TenantState::new).collect(),
            vifs,
        })
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

/// Logs the result of a request without a client.
fn warn<S: Display>(sentences: impl IntoIterator<Item = S>) {
    sentences.into_iter().for_each(|sentence| tracing::warn!("{sentence}"));
}

/// Creates a file that only its owner may read. An existing file, link or pipe is not opened.
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

/// Groups links by worker: one link alone, or the two ends of a wire.
fn groups(links: &[Link]) -> Vec<Vec<&Link>> {
    let far = |link: &Link| match &link.uplink {
        Uplink::Wire { to, .. } => links.iter().find(|other| other.name == *to),
        _ => None,
    };
    let is_far = |link: &&Link| links.iter().any(|other| far(other).is_some_and(|far| far.name == link.name));
    links.iter().filter(|link| !is_far(link)).map(|link| std::iter::once(link).chain(far(link)).collect()).collect()
}
