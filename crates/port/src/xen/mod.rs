//! A Xen guest's card (Linux netfront and its like), served from a driver domain in place of Linux netback.
//!
//! Rings and negotiation are those of xen/include/public/io/netif.h. Frames go by grant copy: their heads into this
//! process, to be judged; their bodies from the sender's pages to where they are for, which for a guest's frame to another
//! guest is the receiver's pages at once.
//!
//! The port carries frames; who connects it to a frontend and ends that holds its [`Plug`].

pub mod backend;
mod device;
mod error;
mod event;
pub mod gntalloc;
mod grant;
mod host;
mod ioctl;
mod landing;
mod lent;
mod link;
mod netif;
mod receive;
mod ring;
pub mod store;
mod transmit;
mod violation;

pub use crate::burst::{End, Place};
pub use error::{Rejection, Unavailable};
pub use grant::Devices;
pub use host::{Events, Host, Lent, PAGE, Page, SELF, Segment};
pub use link::{Link, QueueSetup};
pub use receive::Takes;
pub use violation::Violation;

use crate::burst::{Batch, Burst};
use crate::flow::{self, Turn};
use crate::poller::{Key, Poller, Watcher};
use crate::software_offload::SoftwareOffload;
use crate::{Control, Limit, Put, Refusal, Room, Sink, Source, Status, Wanted};
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

/// The port's own numbers in its poller: orders from the plug, and event channels.
const ORDERS: u32 = 0;
const EVENTS: u32 = 1;

/// When to read frames again after the kernel would not copy them.
const RETRY: Nanos = Nanos::from_millis(1);

/// What a plug has the port do.
enum Order {
    Connect(Link),
    Refuse(String),
    Part,
    Limit(Option<Limit>),
}

/// A vif's backend.
pub struct Xen {
    name: String,
    orders: Receiver<Order>,
    bell: Arc<EventFd>,
    parted: Box<dyn Fn(Option<String>) + Send>,
    watcher: Option<Watcher>,
    link: Option<Link>,
    /// Why the last frontend was disabled or refused, until the next one comes.
    broken: Option<String>,
    limit: Option<Limit>,
    /// Among transmit queues.
    turn: Turn,
    /// When its frames are read again, as they could not be. None if they could.
    retry: Option<Nanos>,
    /// The receive queue that found too little room last: another's room is of no use to who waits.
    full: usize,
    /// Where frames are completed for a guest that left it to us.
    plain: SoftwareOffload,
}

/// Connects a port to frontends. Orders are carried out by the port's worker.
pub struct Plug {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
}

impl Plug {
    /// Serves a frontend from now on.
    pub fn connect(&self, link: Link) {
        self.order(Order::Connect(link));
    }

    /// Says why the frontend that came is not served. None is connected.
    pub fn refuse(&self, reason: String) {
        self.order(Order::Refuse(reason));
    }

    /// Serves it no longer: nothing of it stays mapped.
    pub fn part(&self) {
        self.order(Order::Part);
    }

    /// Limits what the guest sends.
    pub fn limit(&self, limit: Option<Limit>) {
        self.order(Order::Limit(limit));
    }

    /// Whether its port is there.
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.bell) > 1
    }

    fn order(&self, order: Order) {
        // Both fail only when the port is gone, and nothing is mapped then.
        let _ = self.orders.send(order);
        let _ = self.bell.write(1);
    }
}

impl Xen {
    /// A vif that no frontend is connected to. `parted` is called on the port's thread when it let go of one: with the
    /// reason if that broke a rule, without if it was told to.
    ///
    /// # Errors
    /// No descriptor for waking the port's worker.
    pub fn new(name: &str, parted: impl Fn(Option<String>) + Send + 'static) -> io::Result<(Xen, Plug)> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let (sender, orders) = channel();
        let plug = Plug { orders: sender, bell: bell.clone() };
        let port = Xen {
            name: name.to_owned(),
            orders,
            bell,
            parted: Box::new(parted),
            watcher: None,
            link: None,
            broken: None,
            limit: None,
            turn: Turn::default(),
            retry: None,
            full: 0,
            plain: SoftwareOffload::default(),
        };
        Ok((port, plug))
    }

    /// Does what the plug says.
    fn obey(&mut self) {
        // Only resets the bell: whether it rang is known.
        let _ = self.bell.read();
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Connect(link) => {
                    self.unplug();
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
                Order::Refuse(reason) => self.broken = Some(reason),
                Order::Limit(limit) => self.limit = limit,
                Order::Part => {
                    self.unplug();
                    (self.parted)(None);
                }
            }
        }
    }

    /// Lets go of the frontend: everything is published, its pages are unmapped and its channels closed.
    fn unplug(&mut self) {
        self.retry = None;
        if let Some(mut link) = self.link.take() {
            link.flush();
            if let Some(watcher) = &self.watcher {
                watcher.remove(link.descriptor());
            }
        }
    }

    /// Lets go of a frontend that broke a rule.
    fn disable(&mut self, violation: Violation) {
        self.refuse(violation.to_string());
    }

    fn refuse(&mut self, reason: String) {
        warn!(vif = %self.name, %reason, "disabled");
        self.unplug();
        self.broken = Some(reason.clone());
        (self.parted)(Some(reason));
    }
}

impl Source for Xen {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, grant: Budget, now: Nanos) -> Batch<'a> {
        let mut filler = burst.fill();
        let Some(link) = &mut self.link else { return filler.done() };
        let waiting = |index: usize| link.queues[index].transmit.waiting();
        let Some(index) = self.turn.next(link.queues.len(), waiting) else { return filler.done() };
        match link.queues[index].transmit.offer(&mut filler, grant) {
            Ok(read) => self.retry = (!read).then_some(now + RETRY),
            Err(violation) => {
                filler.clear();
                self.disable(violation);
                return filler.done();
            }
        }
        self.turn.offered(index, filler.len());
        match &self.link {
            Some(link) => filler.done_remote(&link.queues[index].transmit.landing),
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
            link.listen();
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
            match link.queues[index].receive.put(batch, first..first + same, &mut self.plain) {
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
        // Where there is none, or its ring is broken, the next put says so.
        if full.is_none_or(|queue| queue.receive.has_room().unwrap_or(true)) { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        let Some(link) = &self.link else { return Ring::default() };
        flow::together(link.queues.iter().map(|queue| queue.receive.standing()))
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        if let Some(link) = &mut self.link {
            link.flush();
        }
        Nanos::NEVER
    }
}

impl Control for Xen {
    /// Events are listened to from here until the first of a channel: to a worker that looks by itself they say nothing, however many
    /// a frontend sends.
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let Some(link) = &mut self.link else { return false };
        link.listen();
        let mut there = false;
        if wanted.frames && self.retry.is_none() {
            link.queues.iter_mut().for_each(|queue| there |= queue.transmit.enable_notifications());
        }
        if wanted.room {
            there |= link.queues.get_mut(self.full).is_some_and(|queue| queue.receive.enable_notifications());
        }
        there
    }

    fn next_event(&self) -> Nanos {
        self.retry.unwrap_or(Nanos::NEVER)
    }

    /// Nothing: wishes stand where the frontend passes them once.
    fn disable_notifications(&mut self) {}

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        let watcher = Watcher { poller: poller.clone(), key };
        watcher.add(&self.bell, ORDERS)?;
        self.watcher = Some(watcher);
        self.obey();
        Ok(())
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        match (number, &mut self.link) {
            (ORDERS, _) => self.obey(),
            (_, Some(link)) => link.take_events(),
            (_, None) => {}
        }
    }

    fn is_message(&self, number: u32) -> bool {
        number == ORDERS
    }

    fn limit(&self) -> Option<Limit> {
        self.limit
    }

    fn status(&self) -> Status {
        match (&self.link, &self.broken) {
            (Some(_), _) => Status::Up,
            (None, Some(reason)) => Status::Disabled(reason.clone()),
            (None, None) => Status::Waiting,
        }
    }
}
