//! Runs a policy: opens its ports, starts the workers that serve them, and answers control clients.

mod captures;
mod cards;
mod changes;
mod flows;
mod handover;

use crate::bridge::Bridge;
use crate::clock::{Clock, Monotonic};
use crate::confinement::{self, Wish};
use crate::control::{self, Add, Reload, Remove, Request, Set};
use crate::error::Error;
use crate::ports;
use crate::snapshot::{LeftOut, LinkState, Snapshot, TenantState, VifState};
use crate::starter::Starter;
use crate::web;
use crate::worker::Worker;
use captures::Captures;
use cards::{Cards, Finder};
use fairlane_policy::problem::Problem;
use fairlane_policy::{Access, File, Files, Link, Loaded, Observe, Policy, Uplink, Vif, is_found};
use fairlane_port::{Port, store};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A running backend. Dropping it ends its threads and removes its sockets.
pub struct Engine {
    shared: Arc<Shared>,
    /// Held to be dropped: they serve until then, and are dropped before the workers end.
    _control: control::Server,
    _observe: Option<control::Server>,
    web: Option<web::Server>,
}

/// State that control and metrics use as well.
struct Shared {
    policy: Mutex<Policy>,
    /// What was loaded last. Locked after the policy.
    loaded: Mutex<Loaded>,
    /// The file for changes that are to be kept; none if the policy is not from a file.
    kept_in: Option<PathBuf>,
    /// The worker of each link. The two ends of a wire have the same. Locked after the policy.
    workers: Mutex<BTreeMap<String, Arc<Worker>>>,
    starter: Starter,
    clock: Monotonic,
    stopping: Mutex<bool>,
    stop: Condvar,
    /// Cards of Xen guests in xenstore, including those that a vif in the file names.
    found: Mutex<Cards>,
    /// Captures by vif, until a client asks for their report.
    captures: Mutex<Captures>,
    /// The process that serves everything now, and the connection to it.
    successor: OnceLock<(i32, UnixStream)>,
}

impl Engine {
    /// Opens everything that a policy names, and serves it. A vif of a drop-in file that cannot be opened is logged and left out.
    ///
    /// # Errors
    /// Something else cannot be opened; then nothing runs and nothing is left behind.
    pub fn start(loaded: impl Into<Loaded>) -> Result<Engine, Error> {
        let mut loaded = loaded.into();
        ports::look_up(&mut loaded)?;
        let mut policy = loaded.policy.clone();
        let clock = Monotonic::new();
        let mut uplinks = ports::uplinks(&policy.links)?;
        let finder = policy.takes_found().then(Finder::start).transpose()?;
        let mut found = Cards::new();
        if let Some(finder) = &finder {
            finder.add_to(&mut policy, &mut found);
        }
        let mut opened = open_vifs(&mut policy, &mut loaded);
        let mut all = Vec::new();
        for group in groups(&policy.links) {
            let mut bridges = Vec::new();
            for link in &group {
                let uplink = uplinks.remove(&link.name);
                let card = |vif: &Vif| opened.remove(&vif.name).map_or_else(|| ports::vif(vif), Ok);
                bridges.push(Bridge::open(&policy, link, uplink, card, &clock)?);
            }
            all.push((group, bridges));
        }
        // What waits for a guest at an uplink is lost if the guest is not there yet.
        ports::settle();
        let mut bridges: Vec<&mut Bridge> = all.iter_mut().flat_map(|(_, bridges)| bridges).collect();
        let captures = captures::go_on(&policy, &mut bridges);
        let mut workers = BTreeMap::new();
        for (group, bridges) in all {
            let cpu = group.iter().find_map(|link| link.cpu);
            let said = |error| Error::failed(format!("cannot start the worker of link `{}`", group[0].name), error);
            let worker = Arc::new(Worker::start(bridges, clock, cpu).map_err(said)?);
            workers.extend(group.iter().map(|link| (link.name.clone(), worker.clone())));
        }
        store::settle();
        let starter = Starter::new().map_err(|error| Error::failed("cannot start a thread", error))?;
        let (socket, observe) = (policy.control.clone(), policy.observe.clone());
        let (page, token) = (policy.metrics, policy.metrics_token.clone());
        let (stopping, stop) = (Mutex::new(false), Condvar::new());
        let (found, captures) = (Mutex::new(found), Mutex::new(captures));
        let kept_in = loaded.files.saved();
        let (policy, loaded, workers) = (Mutex::new(policy), Mutex::new(loaded), Mutex::new(workers));
        let successor = OnceLock::new();
        let shared =
            Shared { policy, loaded, kept_in, workers, starter, clock, stopping, stop, found, captures, successor };
        let shared = Arc::new(shared);
        if let Some(finder) = finder {
            finder.tell(&shared);
        }
        let told = shared.clone();
        let answer: control::Answer = Arc::new(move |request| told.answer(request));
        let gives = shared.clone();
        let hand_over: control::HandOver = Arc::new(move |to, process| gives.hand_over(to, process));
        let control = control::Server::start_for_owner(&socket, answer.clone(), Some(hand_over))?;
        let observe = observe.map(|observe| start_observe(&observe, answer)).transpose()?;
        let asked = shared.clone();
        let source: web::Source = Arc::new(move || asked.snapshot());
        let web = page.map(|address| web::Server::start(address, token.as_deref(), source)).transpose()?;
        Ok(Engine { shared, _control: control, _observe: observe, web })
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
        self.shared.reload(newer.into())
    }

    /// Loads newer files. A wrong drop-in keeps its former text, and its problems are returned with the number of changes.
    ///
    /// # Errors
    /// As [`Engine::reload`], or the policy file is wrong.
    pub fn load(&self, files: &Files) -> Result<(usize, Vec<Problem>), Error> {
        self.shared.load(files)
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

    /// The process that serves everything now, if this one has handed it over. The connection to it stays open until this process
    /// ends, and tells it that.
    pub fn successor(&self) -> Option<i32> {
        self.shared.successor.get().map(|(process, _)| *process)
    }

    /// Checks that every worker responds.
    ///
    /// # Errors
    /// The worker that does not.
    pub fn is_well(&self) -> Result<(), Error> {
        Ok(self.shared.workers().iter().try_for_each(|worker| worker.call(|_| ()))?)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for worker in &self.shared.workers() {
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

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_links(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All workers.
    fn workers(&self) -> Vec<Arc<Worker>> {
        let mut workers: Vec<_> = self.of_links().values().cloned().collect();
        workers.sort_by_key(Arc::as_ptr);
        workers.dedup_by(|a, b| Arc::ptr_eq(a, b));
        workers
    }

    fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut links = HashMap::new();
        let mut vifs: Vec<VifState> = Vec::new();
        for worker in &self.workers() {
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
        let loaded = self.loaded();
        let of_files: HashSet<&str> = loaded.base.vifs.iter().map(|vif| vif.name.as_str()).collect();
        let is_added = |name: &str| !of_files.contains(name) && !is_found(name);
        vifs.iter_mut().for_each(|vif| vif.added = is_added(&vif.name));
        let left_out = loaded.left_out.iter();
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
            left_out: left_out.map(|vif| LeftOut { name: vif.name.clone(), added: is_added(&vif.name) }).collect(),
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
            Request::Add(Add { kind, name, settings, replace }) => {
                self.change(|policy| policy.add(kind, &name, &settings, replace))?;
                Ok(serde_json::Value::Null)
            }
            Request::Remove(Remove { kind, name }) => {
                self.remove(kind, &name)?;
                Ok(serde_json::Value::Null)
            }
            Request::Reload(Reload { name, text, drop_ins }) => {
                let drop_ins = drop_ins.into_iter().map(File::from).collect();
                let (changes, problems) = self.load(&Files::new(File::new(name, text), drop_ins))?;
                if problems.is_empty() { Ok(changes.into()) } else { Err(Error::DropIns { problems, changes }) }
            }
            Request::Save => json(serde_json::to_value(self.saved()?)),
            Request::StartCapture(start) => {
                self.start_capture(&start)?;
                Ok(serde_json::Value::Null)
            }
            Request::StopCapture(stop) => json(serde_json::to_value(self.stop_capture(&stop.vif)?)),
            Request::Flows => json(serde_json::to_value(self.flows()?)),
            Request::ExportFlows(export) => self.export_flows(&export).map(serde_json::Value::from),
            Request::ImportFlows(import) => self.import_flows(&import).map(serde_json::Value::from),
            // The server answers it, as it takes the connection.
            Request::HandOver(_) => Err(Error::ReadOnly),
            Request::Stop => {
                self.request_stop();
                Ok(serde_json::Value::Null)
            }
        }
    }

    fn worker_of(&self, vif: &str) -> Result<Arc<Worker>, Error> {
        let policy = self.policy();
        let found = policy.vifs.iter().find(|known| known.name == vif);
        let found = found.ok_or_else(|| {
            let known = policy.vifs.iter().map(|vif| vif.name.clone()).take(8).collect();
            Error::NoVif { name: vif.to_owned(), known }
        })?;
        self.of_links().get(&found.link).cloned().ok_or_else(|| Error::NoLink(found.link.clone()))
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
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| said(&confinement::explain(&error, Wish::File)))
}

/// Starts the control socket that only shows.
///
/// # Errors
/// Its path is in use, or its group is unknown.
fn start_observe(observe: &Observe, answer: control::Answer) -> Result<control::Server, Error> {
    let access = ports::access(&Access { owner: None, group: observe.group.clone(), mode: Some(observe.mode) });
    let access = access.map_err(|why| Error::failed("observe", why))?;
    control::Server::start_for_observers(&observe.socket, access, answer)
}

/// Opens the cards of drop-ins' vifs, and found ones. One that cannot be opened is logged, and removed from the policy.
fn open_vifs(policy: &mut Policy, loaded: &mut Loaded) -> HashMap<String, Box<dyn Port>> {
    let mut opened = HashMap::new();
    policy.vifs.retain(|vif| {
        if !loaded.of_drop_ins.contains(&vif.name) && !is_found(&vif.name) {
            return true;
        }
        match ports::vif(vif) {
            Ok(port) => drop(opened.insert(vif.name.clone(), port)),
            Err(why) => {
                tracing::error!("{why}; it is not served");
                loaded.left_out.extend(Some(vif.clone()).filter(|vif| !is_found(&vif.name)));
                return false;
            }
        }
        true
    });
    opened
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
