//! The dialogue with toolstack and frontends over xenstore: which vifs exist, the state of each, and when a port is
//! connected to a frontend or disconnected from it.
//!
//! It runs on a thread of its own, as xenstore may be slow to answer and workers must not wait. Whenever something
//! about a vif changes, all that is known of it is read again and the next step taken, so the order of events does not
//! matter. A daemon that ends leaves every state as it is; the next one finds connected frontends and resumes their
//! rings, without their noticing.

use super::device::{self, State, optional, set_state};
use super::error::Unavailable;
use super::host::Host;
use super::store::Store;
use super::{Link, Plug, Xen};
use crate::Limit;
use crate::handover::{Rest, Resting};
use fairlane_policy::Terms;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{info, warn};

/// Where the toolstack creates vifs, below the own domain's path.
const VIFS: &str = "backend/vif";

/// How long to wait for the thread's answer: xenstore may be slow.
const PATIENCE: Duration = Duration::from_secs(3);

/// Identifies a vif in xenstore: its guest's domain, and its device number there.
type Id = (u16, u32);

/// A network card in xenstore, whether a port serves it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The guest's name in the toolstack.
    pub guest: String,
    /// Its device number.
    pub device: u32,
    /// What its keys in xenstore grant it; none if the card is gone.
    pub terms: Option<Terms>,
}

/// Called for every card: when it is found, when its terms change, and when it is gone.
type Finder = Box<dyn FnMut(Found) + Send>;

/// A message to the thread.
enum Message {
    Add(Vif),
    Find(Finder),
    /// The port of this number disconnected its frontend, with the reason if that broke a rule.
    Disconnected(usize, Option<String>),
    /// Do nothing for a while, and answer before.
    Rest(Sender<()>, Rest),
    /// Answer when everything that is known of was dealt with.
    Settle(Sender<()>),
    End,
}

/// A port and its state.
struct Vif {
    name: String,
    /// The guest: its name or the number of its domain.
    guest: String,
    device: u32,
    queues: u16,
    plug: Plug,
    number: usize,
    /// The frontend it is connected to.
    current: Option<Id>,
    /// Whether the port was told to disconnect from it.
    disconnecting: bool,
    /// The frontend that broke a rule, until it connects again.
    broken: Option<Id>,
    /// The limit from the toolstack's `rate`.
    limit: Option<Limit>,
}

/// Serves the vifs of this domain. Dropping it ends the dialogue, not the service.
pub struct Backend {
    messages: Sender<Message>,
    wakeup: Arc<EventFd>,
    vifs: usize,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    /// Starts the thread, which first calls `begin`. It calls `lost` with the reason if it cannot continue: vifs then
    /// stay as they are, and new ones are not found.
    ///
    /// # Errors
    /// Xenstore does not answer, or no thread or descriptor is left.
    pub fn start(
        mut store: Store,
        host: Arc<dyn Host>,
        begin: impl FnOnce() + Send + 'static,
        lost: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Backend, Unavailable> {
        store.watch(VIFS, VIFS).map_err(|error| Unavailable::Watch { path: VIFS, error })?;
        let wakeup = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|error| Unavailable::Serve(error.into()))?;
        let wakeup = Arc::new(wakeup);
        let (messages, received) = channel();
        let (vifs, known, found, finder, waiting) = Default::default();
        let mut dialogue =
            Dialogue { store, host, wakeup: wakeup.clone(), received, vifs, known, found, finder, waiting };
        let thread = std::thread::Builder::new().name("fairlane-xenbus".to_owned()).spawn(move || {
            begin();
            match catch_unwind(AssertUnwindSafe(|| dialogue.run())) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => lost(&format!("the connection to xenstore is lost: {error}")),
                Err(_) => lost("the xenstore thread panicked"),
            }
        });
        let thread = Some(thread.map_err(Unavailable::Serve)?);
        Ok(Backend { messages, wakeup, vifs: 0, thread })
    }

    /// The port for card `device` of a guest, named as in the toolstack, with at most `queues` queues. The guest may
    /// come and go. `name` is used in the log.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn vif(&mut self, name: &str, guest: &str, device: u32, queues: u16) -> io::Result<Xen> {
        let number = self.vifs;
        self.vifs += 1;
        let (messages, wakeup) = (self.messages.clone(), self.wakeup.clone());
        let (port, plug) = Xen::new(name, move |reason| {
            // The thread is gone only when the process ends.
            let _ = messages.send(Message::Disconnected(number, reason));
            let _ = wakeup.write(1);
        })?;
        let (name, guest) = (name.to_owned(), guest.to_owned());
        let (current, broken, limit) = (None, None, None);
        let vif = Vif { name, guest, device, queues, plug, number, current, disconnecting: false, broken, limit };
        self.send(Message::Add(vif));
        Ok(port)
    }

    /// Reports all cards from now on, by calls on the backend's thread, which may request ports meanwhile.
    pub fn find(&self, finder: impl FnMut(Found) + Send + 'static) {
        self.send(Message::Find(Box::new(finder)));
    }

    /// Leaves xenstore and all frontends to another process. When the first of what this returns is dropped, the dialogue goes on with
    /// what it then finds. Ports must be told as well ([`Control::let_go`](crate::Control::let_go)), once there is an answer.
    pub fn rest(&self) -> (Resting, Answer) {
        let (resting, rest) = Resting::new();
        (resting, self.ask(|answer| Message::Rest(answer, rest)))
    }

    /// Asks for an answer when all cards that are there were reported, and all ports connected whose frontends are.
    pub fn settle(&self) -> Answer {
        self.ask(Message::Settle)
    }

    fn ask(&self, message: impl FnOnce(Sender<()>) -> Message) -> Answer {
        let (answer, answered) = channel();
        self.send(message(answer));
        Answer(answered)
    }

    fn send(&self, message: Message) {
        // As above.
        let _ = self.messages.send(message);
        let _ = self.wakeup.write(1);
    }
}

/// An answer of the thread that is to come.
pub struct Answer(Receiver<()>);

impl Answer {
    /// Waits for it. Whoever does must not hold a lock that the finder needs.
    ///
    /// # Errors
    /// It has not come within three seconds, or the thread has ended.
    pub fn wait(self) -> Result<(), RecvTimeoutError> {
        self.0.recv_timeout(PATIENCE)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.send(Message::End);
        if let Some(thread) = self.thread.take() {
            // A panic was reported by `lost` already.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Dialogue {
    store: Store,
    host: Arc<dyn Host>,
    wakeup: Arc<EventFd>,
    received: Receiver<Message>,
    vifs: Vec<Vif>,
    /// Vifs in xenstore that ports serve.
    known: BTreeMap<Id, Known>,
    /// Cards that the finder was called for.
    found: BTreeMap<Id, Found>,
    finder: Option<Finder>,
    /// Those who wait until everything is dealt with.
    waiting: Vec<Sender<()>>,
}

/// What is known of a vif in xenstore.
struct Known {
    /// The path of its frontend.
    frontend: String,
    /// The number of its port.
    port: usize,
}

impl Dialogue {
    fn run(&mut self) -> io::Result<()> {
        let (mut changed, mut last) = (BTreeSet::new(), (0, 0));
        loop {
            while let Some(event) = self.store.event()? {
                match id(&event.path).or_else(|| id(&event.token)) {
                    Some(id) => drop(changed.insert(id)),
                    None => changed.extend(self.all()?),
                }
            }
            for message in self.received.try_iter().collect::<Vec<_>>() {
                match message {
                    Message::Add(vif) => {
                        self.vifs.retain(|vif| vif.plug.in_use());
                        self.vifs.push(vif);
                        changed.extend(self.all()?);
                    }
                    Message::Find(finder) => {
                        self.finder = Some(finder);
                        changed.extend(self.all()?);
                    }
                    Message::Disconnected(number, reason) => {
                        self.disconnected(number, reason);
                        // The next guest of that name may have waited for this.
                        changed.extend(self.all()?);
                    }
                    Message::Rest(answer, rest) => {
                        // The other side waits, or has given up and drops its end.
                        let _ = answer.send(());
                        rest.end();
                        changed.extend(self.all()?);
                    }
                    Message::Settle(answer) => self.waiting.push(answer),
                    Message::End => return Ok(()),
                }
            }
            // In turn: a guest that writes without end gets one step, and then all others get theirs.
            let next = changed.range((Bound::Excluded(last), Bound::Unbounded)).chain(&changed).next().copied();
            if let Some(id) = next {
                changed.remove(&id);
                last = id;
                if let Err(error) = self.step(id) {
                    // A vif may vanish while it is read; a lost xenstore shows in the next event.
                    warn!(domain = id.0, device = id.1, %error, "xenstore");
                }
                continue;
            }
            for answer in self.waiting.drain(..) {
                // Whoever has given up needs none.
                let _ = answer.send(());
            }
            let ready = |fd| PollFd::new(fd, PollFlags::POLLIN);
            match poll(&mut [ready(self.store.descriptor()), ready(self.wakeup.as_fd())], PollTimeout::NONE) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            // Only resets the eventfd: messages are looked for in any case.
            let _ = self.wakeup.read();
        }
    }

    /// All vifs that are or were in xenstore.
    fn all(&mut self) -> io::Result<Vec<Id>> {
        let mut all: Vec<Id> = self.known.keys().chain(self.found.keys()).copied().collect();
        for domain in self.list(VIFS)? {
            for device in self.list(&format!("{VIFS}/{domain}"))? {
                all.extend(id(&format!("{VIFS}/{domain}/{device}")));
            }
        }
        Ok(all)
    }

    fn list(&mut self, path: &str) -> io::Result<Vec<String>> {
        match self.store.directory(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names,
        }
    }

    /// Handles a port's report that it disconnected its frontend.
    fn disconnected(&mut self, number: usize, reason: Option<String>) {
        let Some(vif) = self.vifs.iter_mut().find(|vif| vif.number == number) else { return };
        let id = vif.current.take();
        vif.disconnecting = false;
        if let (Some(reason), Some(id)) = (reason, id) {
            vif.broken = Some(id);
            self.write_error(id, &reason);
        }
    }

    /// Writes where toolstacks look for it why a vif does not work.
    fn write_error(&mut self, (domain, device): Id, reason: &str) {
        if let Err(error) = self.store.write(&format!("error/{VIFS}/{domain}/{device}/error"), reason) {
            warn!(domain, device, %error, "the reason could not be written to xenstore");
        }
    }

    /// Takes the next step for a vif.
    fn step(&mut self, id: Id) -> io::Result<()> {
        let path = format!("{VIFS}/{}/{}", id.0, id.1);
        let before = device::state(&mut self.store, &path)?;
        let Some(frontend) = optional(&mut self.store, &format!("{path}/frontend"))? else {
            self.report_gone(id);
            return self.remove(id);
        };
        let name = optional(&mut self.store, &format!("/local/domain/{}/name", id.0))?;
        self.report(id, name.as_deref(), &path)?;
        let Some(place) = self.find(id, name.as_deref()) else { return Ok(()) };
        let port = self.vifs[place].number;
        if self.known.get(&id).is_none_or(|known| known.frontend != frontend || known.port != port) {
            self.remove(id)?;
            self.store.watch(&format!("{frontend}/state"), &path)?;
            self.known.insert(id, Known { frontend: frontend.clone(), port });
        }
        self.advance(place, id, &path, &frontend, before)
    }

    /// Takes the next step for a vif that has a port, from the state `before`.
    fn advance(&mut self, place: usize, id: Id, path: &str, frontend: &str, before: State) -> io::Result<()> {
        let port = self.vifs[place].number;
        // Another domain has the guest's name by now, so this one is shutting down. Domain numbers grow.
        let replaced = self.known.range((id.0 + 1, 0)..).any(|(_, known)| known.port == port);
        let online = optional(&mut self.store, &format!("{path}/online"))?.as_deref() != Some("0");
        let frontend_state = device::state(&mut self.store, frontend)?;
        let limit = device::limit(&mut self.store, path)?;
        let vif = &mut self.vifs[place];
        if !replaced && vif.limit != limit {
            vif.limit = limit;
            vif.plug.limit(limit);
        }
        let connected = vif.current == Some(id);
        let leaving = before >= State::Closing && !online;
        if frontend_state == State::Connected && !leaving && !replaced && vif.broken != Some(id) {
            return if connected { Ok(()) } else { self.connect(place, id, path, frontend, before) };
        }
        if connected {
            // The state is set to closed only after everything is unmapped.
            vif.disconnect();
            return Ok(());
        }
        let next = match frontend_state {
            _ if leaving => State::Closed,
            _ if replaced => return Ok(()),
            State::Initialising | State::InitWait | State::Initialised => {
                vif.broken = vif.broken.filter(|broken| *broken != id);
                if before != State::InitWait {
                    device::offer(&mut self.store, path, vif.queues)?;
                }
                State::InitWait
            }
            State::Connected | State::Closing => State::Closing,
            State::Unknown if before == State::Initialising => return Ok(()),
            State::Unknown | State::Closed | State::Other => State::Closed,
        };
        set_state(&mut self.store, path, before, next)
    }

    /// Connects a port to a connected frontend.
    fn connect(&mut self, place: usize, id: Id, path: &str, frontend: &str, before: State) -> io::Result<()> {
        let vif = &mut self.vifs[place];
        if vif.current.is_some() {
            // The previous guest of the same name is shutting down. When it is disconnected, this is called again.
            vif.disconnect();
            return Ok(());
        }
        let opened = device::request(&mut self.store, frontend, vif.queues)
            .and_then(|(queues, features)| Link::open(self.host.clone(), id.0, &queues, features));
        match opened {
            Ok(link) => {
                info!(vif = %vif.name, domain = id.0, device = id.1, resumed = before == State::Connected, "frontend found");
                vif.current = Some(id);
                vif.plug.connect(link);
                // Written even if unchanged: the frontend then announces its address to its neighbours.
                self.store.write(&format!("{path}/state"), &(State::Connected as u8).to_string())
            }
            Err(rejection) => {
                let reason = rejection.to_string();
                warn!(vif = %vif.name, %reason, "frontend refused");
                vif.broken = Some(id);
                vif.plug.refuse(reason.clone());
                self.write_error(id, &reason);
                set_state(&mut self.store, path, before, State::Closing)
            }
        }
    }

    /// The port for a vif in xenstore, by its index in the list.
    fn find(&self, id: Id, name: Option<&str>) -> Option<usize> {
        let number = id.0.to_string();
        let named = |guest: &str| guest == number || name == Some(guest);
        self.vifs
            .iter()
            .position(|vif| vif.plug.in_use() && (vif.current == Some(id) || (vif.device == id.1 && named(&vif.guest))))
    }

    /// Calls the finder for a card that exists, if something about it is new.
    fn report(&mut self, id: Id, name: Option<&str>, path: &str) -> io::Result<()> {
        let (Some(finder), Some(name)) = (&mut self.finder, name) else { return Ok(()) };
        let terms = Some(device::terms(&mut self.store, path)?);
        let found = Found { guest: name.to_owned(), device: id.1, terms };
        if self.found.get(&id) != Some(&found) {
            self.found.insert(id, found.clone());
            finder(found);
        }
        Ok(())
    }

    /// Handles a vif that is no longer in xenstore.
    fn remove(&mut self, id: Id) -> io::Result<()> {
        if let Some(Known { frontend, .. }) = self.known.remove(&id) {
            self.store.unwatch(&format!("{frontend}/state"), &format!("{VIFS}/{}/{}", id.0, id.1))?;
        }
        for vif in &mut self.vifs {
            vif.broken = vif.broken.filter(|broken| *broken != id);
            if vif.current == Some(id) {
                vif.disconnect();
            }
        }
        Ok(())
    }

    /// Calls the finder for a card that is gone, unless the guest is back already under another number.
    fn report_gone(&mut self, id: Id) {
        let (Some(finder), Some(lost)) = (&mut self.finder, self.found.remove(&id)) else { return };
        if !self.found.values().any(|other| (&other.guest, other.device) == (&lost.guest, lost.device)) {
            finder(Found { terms: None, ..lost });
        }
    }
}

impl Vif {
    fn disconnect(&mut self) {
        if !self.disconnecting {
            self.disconnecting = true;
            self.plug.disconnect();
        }
    }
}

/// The vif that a path belongs to.
fn id(path: &str) -> Option<Id> {
    let mut parts = path.split_once(VIFS)?.1.strip_prefix('/')?.split('/');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
