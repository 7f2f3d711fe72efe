//! A guest's card over vhost-user: its frontend (QEMU, User-Mode Linux, DPDK's virtio-user) shares memory and rings over
//! a Unix socket, and frames are then exchanged without it.
//!
//! The backend listens, or connects to a frontend that does; whichever of the two restarts, the other carries on, as all
//! that must be known of a queue is in the guest's memory.

mod access;
mod announcement;
mod features;
mod message;
mod rejection;
mod session;
mod socket;

use crate::burst::{Batch, Burst};
use crate::descriptor::close_apart;
use crate::flow::{self, Turn};
use crate::poller::{Key, Poller, Watcher};
use crate::software_offload::SoftwareOffload;
use crate::virtqueue::{Receive, Violation};
use crate::{Control, Put, Refusal, Room, Sink, Source, Status, Wanted};
pub use access::Access;
use fairlane_core::ack::Ring;
use fairlane_core::packet::{Checksum, GsoKind, Offload};
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use features::Features;
use message::Channel;
use session::{FIRST_KICK, Session};
use socket::Socket;
pub use socket::{directory_of, is_left_behind};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread::JoinHandle;
use tracing::{info, warn};

/// The port's own number of the connection in its poller; the socket's are below, kicks above.
const CONNECTION: u32 = 8;

/// A vhost-user network device's backend.
pub struct VhostUser {
    name: String,
    queues: u16,
    socket: Socket,
    access: Access,
    watcher: Option<Watcher>,
    peer: Option<Peer>,
    /// Whether frontends are not heard for now, as they had too much to say; and whether the log was told that they ever had.
    deaf: bool,
    told: bool,
    /// Closes files of the last frontend that it may wait for: one such frontend at a time.
    closing: Option<JoinHandle<()>>,
    /// Why the last frontend was turned away, until the next one comes.
    refused: Option<String>,
    /// Among transmit queues.
    turn: Turn,
    /// The receive queue that found too little room last: another's room is of no use to who waits.
    full: usize,
    /// Where frames are completed for a guest that left it to us.
    plain: SoftwareOffload,
}

/// A connected frontend and its device.
struct Peer {
    channel: Channel,
    session: Session,
}

impl VhostUser {
    /// A device with `queues` queue pairs that listens on `path`. Frontends may come, leave and come again. `name` is
    /// what the log calls it.
    ///
    /// # Errors
    /// A sentence: the path is in use, or cannot be made.
    pub fn listen(name: &str, path: &Path, queues: u16) -> io::Result<VhostUser> {
        VhostUser::listen_for(name, path, queues, Access::default())
    }

    /// The same, for some frontends only.
    ///
    /// # Errors
    /// A sentence: the path is in use, or cannot be made, or not be given away.
    pub fn listen_for(name: &str, path: &Path, queues: u16, access: Access) -> io::Result<VhostUser> {
        Ok(VhostUser::new(name, Socket::listen(path, &access)?, queues, access))
    }

    /// The same, but the frontend listens on `path`, and the backend connects whenever it can.
    ///
    /// # Errors
    /// What the system says; that nobody listens yet is none.
    pub fn connect(name: &str, path: &Path, queues: u16) -> io::Result<VhostUser> {
        VhostUser::connect_for(name, path, queues, Access::default())
    }

    /// The same, to some frontends only.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect_for(name: &str, path: &Path, queues: u16, access: Access) -> io::Result<VhostUser> {
        Ok(VhostUser::new(name, Socket::connect(path)?, queues, access))
    }

    fn new(name: &str, socket: Socket, queues: u16, access: Access) -> VhostUser {
        let name = name.to_owned();
        let (turn, plain) = (Turn::default(), SoftwareOffload::default());
        VhostUser {
            name,
            queues,
            socket,
            access,
            watcher: None,
            peer: None,
            deaf: false,
            told: false,
            closing: None,
            refused: None,
            turn,
            full: 0,
            plain,
        }
    }

    /// Meets a frontend, if one is there and none was.
    fn greet(&mut self) {
        let busy = self.peer.is_some() || self.closing.as_ref().is_some_and(|closing| !closing.is_finished());
        let Some(watcher) = self.watcher.as_ref().filter(|_| !busy) else { return };
        let Some(stream) = self.socket.accept() else { return };
        let met = self.access.admit(&stream).and_then(|()| Channel::new(stream)).and_then(|channel| {
            watcher.add(channel.socket(), CONNECTION)?;
            Ok(channel)
        });
        match met {
            Ok(channel) => {
                info!(vif = %self.name, "frontend connected");
                self.socket.pause(watcher);
                self.refused = None;
                self.peer = Some(Peer { channel, session: Session::new(self.queues, watcher.clone()) });
            }
            Err(error) => {
                warn!(vif = %self.name, %error, "a frontend could not be met");
                self.refused = Some(error.to_string());
            }
        }
    }

    /// Handles a message; a frontend with more to say is asked again, so that it holds nobody up.
    fn converse(&mut self) {
        if let Some(peer) = &mut self.peer
            && let Err(error) = peer.answer()
        {
            self.part(&error);
        }
    }

    /// Ends the connection, and waits for the next.
    fn part(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            info!(vif = %self.name, "frontend left");
        } else {
            warn!(vif = %self.name, reason = %error, "frontend turned away");
            self.refused = Some(error.to_string());
        }
        if let (Some(watcher), Some(peer)) = (&self.watcher, self.peer.take()) {
            watcher.remove(peer.channel.socket());
            let files = peer.channel.foreign();
            self.closing = if files.is_empty() { None } else { close_apart(files) };
        }
        self.attend();
    }

    /// Waits for a frontend.
    fn attend(&mut self) {
        if let Some(watcher) = &self.watcher
            && let Err(error) = self.socket.wait(watcher)
        {
            warn!(vif = %self.name, %error, "no frontend can be met any more");
        }
    }
}

impl Peer {
    /// Carries out the next message, if there is one.
    fn answer(&mut self) -> io::Result<()> {
        let Some(message) = self.channel.receive()? else { return Ok(()) };
        let (request, need_reply) = (message.request, message.need_reply);
        let outcome = self.session.handle(message);
        let replied = match &outcome {
            Ok(Some(payload)) => self.channel.reply(request, payload),
            _ if need_reply && self.session.acknowledges() => {
                self.channel.reply(request, &u64::from(outcome.is_err()).to_ne_bytes())
            }
            _ => Ok(()),
        };
        outcome.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        replied
    }

    /// Disables the device because its driver broke a rule. Where its memory went away, what was read there since is no driver's.
    fn disable(&mut self, name: &str, violation: Violation) {
        let violation = self.session.torn().unwrap_or(violation);
        warn!(vif = %name, reason = %violation, "disabled");
        self.session.disable(violation.to_string());
    }

    /// Disables the device if its memory, or its log, went away.
    #[inline]
    fn heed_tears(&mut self, name: &str) {
        if let Some(violation) = self.session.torn().filter(|_| self.session.broken().is_none()) {
            self.disable(name, violation);
        }
    }
}

impl Source for VhostUser {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let mut filler = burst.fill();
        let Some(peer) = &mut self.peer else { return filler.done() };
        if peer.session.announcement.waits() {
            filler.push(peer.session.announcement.offer(), Offload::default());
            return filler.done();
        }
        let (_, transmit, memory) = peer.session.queues();
        let waiting = |index: usize| transmit[index].as_ref().is_some_and(|queue| queue.ring.waiting());
        let Some(index) = self.turn.next(transmit.len(), waiting) else { return filler.done() };
        if let Some(queue) = &mut transmit[index]
            && let Err(violation) = queue.offer(memory, &mut filler, budget)
        {
            filler.clear();
            peer.disable(&self.name, violation);
        }
        self.turn.offered(index, filler.len());
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        let Some(peer) = &mut self.peer else { return };
        if peer.session.announcement.consume(frames) {
            return;
        }
        let (_, transmit, _) = peer.session.queues();
        if let Some(queue) = &mut transmit[self.turn.taken(frames)] {
            queue.consume(frames);
        }
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        if peer.session.announcement.waits() {
            return true;
        }
        let (_, transmit, _) = peer.session.queues();
        transmit.iter().flatten().any(|queue| queue.ring.waiting())
    }

    fn more(&mut self, notify: bool) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        if peer.session.announcement.waits() {
            return true;
        }
        let (shown, frames) = self.turn.shown();
        let (_, transmit, _) = peer.session.queues();
        transmit.iter_mut().enumerate().any(|(index, queue)| {
            let Some(queue) = queue else { return false };
            let skip = if index == shown { frames as u16 } else { 0 };
            if notify { queue.ring.enable_notifications(skip) } else { queue.ring.holds_more_than(skip) }
        })
    }
}

impl Sink for VhostUser {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        const DOWN: Option<Refusal> = Some(Refusal::Never(DropReason::ReceiverDown));
        let Some(peer) = &mut self.peer else { return Put { accepted: 0, refusal: DOWN } };
        let features = peer.session.features();
        let (receive, _, memory) = peer.session.queues();
        let (Range { start, end }, lost) = batch.fetch(frames);
        for index in start..end {
            let accepted = index - start;
            let Some((chosen, queue)) = choose(receive, batch.head(index)) else {
                return Put { accepted, refusal: DOWN };
            };
            let outcome = if takes(features, batch.offload(index)) {
                queue.put(memory, &batch.frame(index))
            } else {
                queue.put_plain(memory, &batch.frame(index), &mut self.plain)
            };
            match outcome {
                Ok(None) => {}
                Ok(refusal) => {
                    if refusal == Some(Refusal::Full) {
                        self.full = chosen;
                    }
                    return Put { accepted, refusal };
                }
                Err(violation) => {
                    peer.disable(&self.name, violation);
                    return Put { accepted, refusal: DOWN };
                }
            }
        }
        Put { accepted: end - start, refusal: lost }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        let Some(peer) = &mut self.peer else { return Room::Now };
        let (receive, _, _) = peer.session.queues();
        let full = receive.get_mut(self.full).and_then(Option::as_mut);
        // Where it does not run, or is broken, the next put says so.
        if full.is_none_or(|queue| queue.has_room().unwrap_or(true)) { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        let Some(peer) = &self.peer else { return Ring::default() };
        if !peer.session.up() {
            // Its frontend stopped the guest, which takes nothing until it goes on.
            return Ring { waiting: 1, taken: 0 };
        }
        flow::together(peer.session.receiving().map(|queue| queue.ring.standing()))
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        let Some(peer) = &mut self.peer else { return Nanos::NEVER };
        let (receive, transmit, _) = peer.session.queues();
        let received = receive.iter_mut().flatten().map(|queue| queue.publish(now));
        let sent = transmit.iter_mut().flatten().map(|queue| queue.publish(now));
        let again = received.chain(sent).fold(Nanos::NEVER, Nanos::min);
        peer.session.tell_of_log();
        peer.heed_tears(&self.name);
        again
    }
}

impl Control for VhostUser {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        let mut there = wanted.frames && peer.session.announcement.waits();
        let (receive, transmit, _) = peer.session.queues();
        if wanted.frames {
            transmit.iter_mut().flatten().for_each(|queue| there |= queue.ring.enable_notifications(0));
        }
        if wanted.room {
            there |= receive.get_mut(self.full).and_then(Option::as_mut).is_some_and(Receive::enable_notifications);
        }
        // Rings that are empty, or full, are looked at and never flushed.
        peer.heed_tears(&self.name);
        there
    }

    fn disable_notifications(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        let (receive, transmit, _) = peer.session.queues();
        receive.iter_mut().flatten().for_each(|queue| queue.ring.disable_notifications());
        transmit.iter_mut().flatten().for_each(|queue| queue.ring.disable_notifications());
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        let watcher = Watcher { poller: poller.clone(), key };
        self.socket.wait(&watcher)?;
        self.watcher = Some(watcher);
        self.greet();
        Ok(())
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        match number {
            FIRST_KICK.. => return self.peer.iter().for_each(|peer| peer.session.kicked(number)),
            // It came with the message that was one too many.
            _ if self.deaf => return,
            CONNECTION => self.converse(),
            _ => self.socket.event(),
        }
        self.greet();
    }

    fn is_message(&self, number: u32) -> bool {
        number < FIRST_KICK
    }

    fn hear(&mut self, messages: bool) {
        let Some(watcher) = self.watcher.as_ref().filter(|_| self.deaf == messages) else { return };
        self.deaf = !messages;
        if !std::mem::replace(&mut self.told, true) {
            warn!(vif = %self.name, "its frontend sends so many messages that they are heard later from now on");
        }
        match (&self.peer, messages) {
            (Some(peer), false) => watcher.remove(peer.channel.socket()),
            (None, false) => self.socket.pause(watcher),
            (Some(peer), true) => {
                if let Err(error) = watcher.add(peer.channel.socket(), CONNECTION) {
                    self.part(&error);
                }
            }
            (None, true) => self.attend(),
        }
    }

    fn status(&self) -> Status {
        let reason = match &self.peer {
            Some(peer) => peer.session.broken(),
            None => self.refused.as_deref(),
        };
        match reason {
            Some(reason) => Status::Disabled(reason.to_owned()),
            None if self.peer.as_ref().is_some_and(|peer| peer.session.up()) => Status::Up,
            None => Status::Waiting,
        }
    }
}

/// The receive queue for a frame, of those that run, and its place.
#[inline]
fn choose<'a>(queues: &'a mut [Option<Receive>], head: &[u8]) -> Option<(usize, &'a mut Receive)> {
    if let [only] = queues {
        return only.as_mut().map(|queue| (0, queue));
    }
    let running = queues.iter().flatten().count();
    if running == 0 {
        return None;
    }
    let mut places = queues.iter_mut().enumerate().filter_map(|(place, queue)| Some((place, queue.as_mut()?)));
    places.nth(flow::queue(head, running))
}

/// Whether the guest's driver does what was left to do on a frame.
#[inline]
fn takes(features: Features, offload: Offload) -> bool {
    if offload == Offload::default() {
        return true;
    }
    let [tso4, tso6, ecn] = features.guest_segmentation();
    let segments =
        offload.gso.is_none_or(|gso| (if gso.kind == GsoKind::Tcp4 { tso4 } else { tso6 }) && (ecn || !gso.ecn));
    segments && (features.guest_checksum() || offload.checksum == Checksum::Present)
}
