//! A Xen guest's network card (Linux netfront and the like), served from a driver domain in place of Linux netback.
//!
//! Rings and negotiation follow xen/include/public/io/netif.h. Frames are moved by grant copy: their heads into this
//! process, where decisions are made; their bodies from the sender's pages to their destination, which for a frame from
//! guest to guest is directly the receiver's pages.
//!
//! The port carries frames; the holder of its [`Plug`] connects it to a frontend and disconnects it.

pub mod backend;
mod bounce_buffer;
mod device;
mod error;
mod event;
pub mod gntalloc;
mod grant;
mod host;
mod ioctl;
mod link;
mod netif;
mod receive;
mod ring;
mod self_granted;
pub mod store;
mod transmit;
mod violation;

pub use crate::burst::{End, Place};
pub use error::{Rejection, Unavailable};
pub use grant::Devices;
pub use host::{Events, GrantCopy, Host, PAGE, Page, SELF, SelfGranted};
pub use link::{Link, QueueSetup};
pub use receive::FrontendFeatures;
pub use violation::Violation;

use crate::burst::{Batch, Burst};
use crate::flow::{self, Turn};
use crate::poller::{Key, Poller, Watcher};
use crate::software_offload::SoftwareOffload;
use crate::{Control, Limit, Put, Refusal, Room, Sink, Source, Status, Wanted, Withheld};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tracing::{info, warn};

/// The port's own numbers in its poller: commands from the plug, and event channels.
const COMMANDS: u32 = 0;
const EVENTS: u32 = 1;

/// How long to wait before frames are read again that the kernel failed to copy.
const RETRY: Nanos = Nanos::from_millis(1);

/// A command from the plug to the port.
enum Command {
    Connect(Link),
    Refuse(String),
    Disconnect,
    Limit(Option<Limit>),
}

/// A vif's backend.
pub struct Xen {
    name: String,
    commands: Receiver<Command>,
    wakeup: Arc<EventFd>,
    disconnected: Box<dyn Fn(Option<String>) + Send>,
    watcher: Option<Watcher>,
    link: Option<Link>,
    /// Why the last frontend was disabled or refused, until the next one connects.
    broken: Option<String>,
    /// Whether another process has the frontend.
    left: bool,
    limit: Option<Limit>,
    /// The transmit queues' turns.
    turn: Turn,
    /// When to read frames again after they could not be read. None if they could.
    retry: Option<Nanos>,
    /// The receive queue that was full last: a sender waits for room in this queue only.
    full: usize,
    /// Buffers for frames whose checksum or segmentation is done in software.
    software_offload: SoftwareOffload,
}

/// Connects a port to frontends and disconnects it. The port's worker carries out its commands.
pub struct Plug {
    commands: Sender<Command>,
    wakeup: Arc<EventFd>,
}

impl Plug {
    /// Serves this frontend from now on.
    pub fn connect(&self, link: Link) {
        self.send(Command::Connect(link));
    }

    /// Reports why a frontend is not served. None must be connected.
    pub fn refuse(&self, reason: String) {
        self.send(Command::Refuse(reason));
    }

    /// Disconnects the frontend: none of its memory stays mapped.
    pub fn disconnect(&self) {
        self.send(Command::Disconnect);
    }

    /// Limits what the guest sends.
    pub fn limit(&self, limit: Option<Limit>) {
        self.send(Command::Limit(limit));
    }

    /// Whether the port still exists.
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.wakeup) > 1
    }

    fn send(&self, command: Command) {
        // Both fail only when the port is gone, and nothing is mapped then.
        let _ = self.commands.send(command);
        let _ = self.wakeup.write(1);
    }
}

impl Xen {
    /// A vif without a frontend. `disconnected` is called on the port's thread after a frontend was disconnected: with
    /// the reason if it broke a rule, without one on command.
    ///
    /// # Errors
    /// There is no descriptor left for waking the port's worker.
    pub fn new(name: &str, disconnected: impl Fn(Option<String>) + Send + 'static) -> io::Result<(Xen, Plug)> {
        let wakeup = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let (sender, commands) = channel();
        let plug = Plug { commands: sender, wakeup: wakeup.clone() };
        let port = Xen {
            name: name.to_owned(),
            commands,
            wakeup,
            disconnected: Box::new(disconnected),
            watcher: None,
            link: None,
            broken: None,
            left: false,
            limit: None,
            turn: Turn::default(),
            retry: None,
            full: 0,
            software_offload: SoftwareOffload::default(),
        };
        Ok((port, plug))
    }

    /// Carries out the plug's commands.
    fn handle_commands(&mut self) {
        // Only resets the eventfd: that it was written is known.
        let _ = self.wakeup.read();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Connect(link) => {
                    self.disconnect();
                    let watched =
                        self.watcher.as_ref().map_or(Ok(()), |watcher| watcher.add(link.descriptor(), EVENTS));
                    match watched {
                        Ok(()) => {
                            info!(vif = %self.name, domain = link.domain(), queues = link.queues.len(), "connected");
                            self.broken = None;
                            self.link = Some(link);
                        }
                        Err(error) => self.refuse(format!("its events cannot be waited for: {error}")),
                    }
                }
                Command::Refuse(reason) => self.broken = Some(reason),
                Command::Limit(limit) => self.limit = limit,
                // One that broke a rule meanwhile was reported then; a second report might end the next one.
                Command::Disconnect if self.link.is_none() => {}
                Command::Disconnect => {
                    self.disconnect();
                    (self.disconnected)(None);
                }
            }
        }
    }

    /// Disconnects the frontend: publishes everything, unmaps its pages and closes its channels.
    fn disconnect(&mut self) {
        self.retry = None;
        if let Some(mut link) = self.link.take() {
            link.flush();
            if let Some(watcher) = &self.watcher {
                watcher.remove(link.descriptor());
            }
        }
    }

    /// Disconnects a frontend that broke a rule.
    fn disable(&mut self, violation: Violation) {
        self.refuse(violation.to_string());
    }

    fn refuse(&mut self, reason: String) {
        warn!(vif = %self.name, %reason, "disabled");
        self.disconnect();
        self.broken = Some(reason.clone());
        (self.disconnected)(Some(reason));
    }
}

impl Source for Xen {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        let mut filler = burst.fill();
        let Some(link) = &mut self.link else { return filler.done() };
        let waiting = |index: usize| link.queues[index].transmit.waiting();
        let Some(index) = self.turn.next(link.queues.len(), waiting) else { return filler.done() };
        match link.queues[index].transmit.offer(&mut filler, budget) {
            Ok(read) => self.retry = (!read).then_some(now + RETRY),
            Err(violation) => {
                filler.clear();
                self.disable(violation);
                return filler.done();
            }
        }
        self.turn.offered(index, filler.len());
        match &self.link {
            Some(link) => filler.done_remote(&link.queues[index].transmit.bounce),
            None => filler.done(),
        }
    }

    fn consume(&mut self, frames: usize) {
        let turn = self.turn.taken(frames);
        let Some(queue) = self.link.as_mut().and_then(|link| link.queues.get_mut(turn)) else { return };
        if let Err(violation) = queue.transmit.consume(frames) {
            self.disable(violation);
        }
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        if self.retry.is_some_and(|retry| now < retry) {
            return false;
        }
        self.retry = None;
        self.link.as_ref().is_some_and(|link| link.queues.iter().any(|queue| queue.transmit.waiting()))
    }

    fn more(&mut self, notify: bool) -> bool {
        let (shown, _) = self.turn.shown();
        let Some(link) = &mut self.link else { return false };
        if notify {
            link.unmask_events();
        }
        link.queues.iter_mut().enumerate().any(|(index, queue)| queue.transmit.more(index == shown, notify))
    }
}

impl Sink for Xen {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        const DOWN: Option<Refusal> = Some(Refusal::Never(DropReason::ReceiverDown));
        let Range { start, end } = frames;
        let mut accepted = 0;
        while start + accepted < end {
            let Some(link) = &mut self.link else { return Put { accepted, refusal: DOWN } };
            let queues = link.queues.len();
            let place = |index: usize| flow::queue(batch.frame(index).head(), queues);
            let first = start + accepted;
            let index = place(first);
            let same = (first..end).take_while(|next| place(*next) == index).count();
            match link.queues[index].receive.put(batch, first..first + same, &mut self.software_offload) {
                Ok(put) => {
                    accepted += put.accepted;
                    if put.refusal == Some(Refusal::Full) {
                        self.full = index;
                    }
                    if put.refusal.is_some() {
                        return Put { accepted, refusal: put.refusal };
                    }
                }
                Err(violation) => {
                    self.disable(violation);
                    return Put { accepted, refusal: DOWN };
                }
            }
        }
        Put { accepted, refusal: None }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        let full = self.link.as_mut().and_then(|link| link.queues.get_mut(self.full));
        // If there is none, or its ring is broken, the next `put` reports it.
        if full.is_none_or(|queue| queue.receive.has_room().unwrap_or(true)) { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        let Some(link) = &self.link else { return Ring::default() };
        flow::combined(link.queues.iter().map(|queue| queue.receive.frontend_state()))
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        if let Some(link) = &mut self.link {
            link.flush();
        }
        Nanos::NEVER
    }
}

impl Control for Xen {
    /// Unmasks the event channels until the first event of each: a worker that polls does not need events, however many
    /// a frontend sends.
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let Some(link) = &mut self.link else { return false };
        link.unmask_events();
        let mut ready = false;
        if wanted.frames && self.retry.is_none() {
            link.queues.iter_mut().for_each(|queue| ready |= queue.transmit.enable_notifications());
        }
        if wanted.room {
            ready |= link.queues.get_mut(self.full).is_some_and(|queue| queue.receive.enable_notifications());
        }
        ready
    }

    fn wakes(&self) -> bool {
        true
    }

    fn next_event(&self) -> Nanos {
        self.retry.unwrap_or(Nanos::NEVER)
    }

    /// Does nothing: a frontend passes the index we asked for once, and then sends no more events.
    fn disable_notifications(&mut self) {}

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        let watcher = Watcher { poller: poller.clone(), key };
        watcher.add(&self.wakeup, COMMANDS)?;
        self.watcher = Some(watcher);
        self.handle_commands();
        Ok(())
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        match (number, &mut self.link) {
            (COMMANDS, _) => self.handle_commands(),
            (_, Some(link)) => link.mask_events(),
            (_, None) => {}
        }
    }

    fn is_message(&self, number: u32) -> bool {
        number == COMMANDS
    }

    /// The frontend's channels can have one other end, and its rings say where to go on.
    fn let_go(&mut self) {
        // A frontend may have been connected that this port does not know of yet.
        self.handle_commands();
        self.left = self.link.is_some();
        self.disconnect();
    }

    /// Asks for the frontend: a worker may not map its rings.
    fn take_back(&mut self) {
        if std::mem::take(&mut self.left) {
            (self.disconnected)(None);
        }
    }

    fn limit(&self) -> Option<Limit> {
        self.limit
    }

    fn withheld(&self) -> Withheld {
        let queues = || self.link.iter().flat_map(|link| &link.queues);
        Withheld {
            sent: queues().any(|queue| queue.transmit.is_withheld()),
            received: queues().any(|queue| queue.receive.is_withheld()),
        }
    }

    fn status(&self) -> Status {
        match (&self.link, &self.broken) {
            (Some(_), _) => Status::Up,
            (None, Some(reason)) => Status::Disabled(reason.clone()),
            (None, None) => Status::Waiting,
        }
    }
}
