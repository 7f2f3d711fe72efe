//! A guest's network card over vhost-user: its frontend (QEMU, User-Mode Linux, DPDK's virtio-user) shares memory and
//! rings over a Unix socket; frames then bypass the frontend.
//!
//! The backend listens, or connects to a listening frontend. Either may restart while the other carries on, as the
//! state of a queue is in the guest's memory.

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

/// The connection's number among the port's descriptors; the socket's number is below, kicks are above.
const CONNECTION: u32 = 8;

/// A vhost-user network device's backend.
pub struct VhostUser {
    name: String,
    queues: u16,
    socket: Socket,
    access: Access,
    watcher: Option<Watcher>,
    peer: Option<Peer>,
    /// Whether messages are not read for now, because the frontend sent too many; and whether that was logged.
    messages_paused: bool,
    pause_logged: bool,
    /// Closes files of the last frontend, which may block: one such frontend at a time.
    closing: Option<JoinHandle<()>>,
    /// Why the last frontend was rejected, until the next one connects.
    refused: Option<String>,
    /// The transmit queues' turns.
    turn: Turn,
    /// The receive queue that was full last: a sender waits for room in this queue only.
    full: usize,
    /// Buffers for frames whose checksum or segmentation is done in software.
    software_offload: SoftwareOffload,
}

/// A connected frontend and its device.
struct Peer {
    channel: Channel,
    session: Session,
}

impl VhostUser {
    /// A device with `queues` queue pairs that listens on `path`. Frontends may connect and leave repeatedly. `name` is
    /// used in the log.
    ///
    /// # Errors
    /// Text that names the path: it is in use, or cannot be created.
    pub fn listen(name: &str, path: &Path, queues: u16) -> io::Result<VhostUser> {
        VhostUser::listen_for(name, path, queues, Access::default())
    }

    /// [`VhostUser::listen`] for some frontends only.
    ///
    /// # Errors
    /// Text that names the path: it is in use, or cannot be created, or its owner, group or mode cannot be set.
    pub fn listen_for(name: &str, path: &Path, queues: u16, access: Access) -> io::Result<VhostUser> {
        Ok(VhostUser::new(name, Socket::listen(path, &access)?, queues, access))
    }

    /// [`VhostUser::listen`], but the frontend listens on `path`, and the backend connects as soon as it can.
    ///
    /// # Errors
    /// The system's error. It is no error if nothing listens yet.
    pub fn connect(name: &str, path: &Path, queues: u16) -> io::Result<VhostUser> {
        VhostUser::connect_for(name, path, queues, Access::default())
    }

    /// [`VhostUser::connect`] to some frontends only.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect_for(name: &str, path: &Path, queues: u16, access: Access) -> io::Result<VhostUser> {
        Ok(VhostUser::new(name, Socket::connect(path)?, queues, access))
    }

    fn new(name: &str, socket: Socket, queues: u16, access: Access) -> VhostUser {
        let name = name.to_owned();
        let (turn, software_offload) = (Turn::default(), SoftwareOffload::default());
        VhostUser {
            name,
            queues,
            socket,
            access,
            watcher: None,
            peer: None,
            messages_paused: false,
            pause_logged: false,
            closing: None,
            refused: None,
            turn,
            full: 0,
            software_offload,
        }
    }

    /// Accepts a frontend if there is one and none is connected.
    fn accept(&mut self) {
        let busy = self.peer.is_some() || self.closing.as_ref().is_some_and(|closing| !closing.is_finished());
        let Some(watcher) = self.watcher.as_ref().filter(|_| !busy) else { return };
        let Some(stream) = self.socket.accept() else { return };
        let connected = self.access.admit(&stream).and_then(|()| Channel::new(stream)).and_then(|channel| {
            watcher.add(channel.socket(), CONNECTION)?;
            Ok(channel)
        });
        match connected {
            Ok(channel) => {
                info!(vif = %self.name, "frontend connected");
                self.socket.pause(watcher);
                self.refused = None;
                self.peer = Some(Peer { channel, session: Session::new(self.queues, watcher.clone()) });
            }
            Err(error) => {
                warn!(vif = %self.name, %error, "a frontend was not accepted");
                self.refused = Some(error.to_string());
            }
        }
    }

    /// Handles one message. A frontend with more to say gets another turn later, so that it delays nobody.
    fn handle_message(&mut self) {
        if let Some(peer) = &mut self.peer
            && let Err(error) = peer.handle_next()
        {
            self.disconnect(&error);
        }
    }

    /// Ends the connection and waits for the next.
    fn disconnect(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            info!(vif = %self.name, "frontend left");
        } else {
            warn!(vif = %self.name, reason = %error, "frontend rejected");
            self.refused = Some(error.to_string());
        }
        if let (Some(watcher), Some(peer)) = (&self.watcher, self.peer.take()) {
            watcher.remove(peer.channel.socket());
            let files = peer.channel.foreign();
            self.closing = if files.is_empty() { None } else { close_apart(files) };
        }
        self.wait_for_frontend();
    }

    /// Waits for a frontend.
    fn wait_for_frontend(&mut self) {
        if let Some(watcher) = &self.watcher
            && let Err(error) = self.socket.wait(watcher)
        {
            warn!(vif = %self.name, %error, "no frontend can be accepted any more");
        }
    }
}

impl Peer {
    /// Handles the next message, if there is one.
    fn handle_next(&mut self) -> io::Result<()> {
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

    /// Disables the device because its driver broke a rule. If its memory is torn, that is the reason instead: what was
    /// read there since is not the driver's.
    fn disable(&mut self, name: &str, violation: Violation) {
        let violation = self.session.torn().unwrap_or(violation);
        warn!(vif = %name, reason = %violation, "disabled");
        self.session.disable(violation.to_string());
    }

    /// Disables the device if the file of its memory, or of its log, was truncated.
    #[inline]
    fn check_torn(&mut self, name: &str) {
        if let Some(violation) = self.session.torn().filter(|_| self.session.broken().is_none()) {
            self.disable(name, violation);
        }
    }
}

impl Source for VhostUser {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let mut filler = burst.fill();
        let Some(peer) = &mut self.peer else { return filler.done() };
        if peer.session.announcement.waiting() {
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
        if peer.session.announcement.waiting() {
            return true;
        }
        let (_, transmit, _) = peer.session.queues();
        let waiting = transmit.iter().flatten().any(|queue| queue.ring.waiting());
        if !waiting {
            // An empty ring is polled but never flushed, so the check is here too.
            peer.check_torn(&self.name);
        }
        waiting
    }

    fn more(&mut self, notify: bool) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        if peer.session.announcement.waiting() {
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
            let outcome = if supports(features, batch.offload(index)) {
                queue.put(memory, &batch.frame(index))
            } else {
                queue.put_with_software_offload(memory, &batch.frame(index), &mut self.software_offload)
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
        // If the queue does not run or is broken, the next `put` reports it.
        if full.is_none_or(|queue| queue.has_room().unwrap_or(true)) { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        let Some(peer) = &self.peer else { return Ring::default() };
        if !peer.session.up() {
            // The frontend stopped the guest, which takes nothing until it resumes.
            return Ring { waiting: 1, taken: 0 };
        }
        flow::combined(peer.session.receiving().map(|queue| queue.ring.driver_state()))
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        let Some(peer) = &mut self.peer else { return Nanos::NEVER };
        let (receive, transmit, _) = peer.session.queues();
        let received = receive.iter_mut().flatten().map(|queue| queue.publish(now));
        let sent = transmit.iter_mut().flatten().map(|queue| queue.publish(now));
        let again = received.chain(sent).fold(Nanos::NEVER, Nanos::min);
        peer.session.notify_log();
        peer.check_torn(&self.name);
        again
    }
}

impl Control for VhostUser {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        let mut ready = wanted.frames && peer.session.announcement.waiting();
        let (receive, transmit, _) = peer.session.queues();
        if wanted.frames {
            transmit.iter_mut().flatten().for_each(|queue| ready |= queue.ring.enable_notifications(0));
        }
        if wanted.room {
            ready |= receive.get_mut(self.full).and_then(Option::as_mut).is_some_and(Receive::enable_notifications);
        }
        // As a full ring is never flushed.
        peer.check_torn(&self.name);
        ready
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
        self.accept();
        Ok(())
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        match number {
            FIRST_KICK.. => return self.peer.iter().for_each(|peer| peer.session.kicked(number)),
            // The event is of a message beyond the limit; it stays unread.
            _ if self.messages_paused => return,
            CONNECTION => self.handle_message(),
            _ => self.socket.event(),
        }
        self.accept();
    }

    fn is_message(&self, number: u32) -> bool {
        number < FIRST_KICK
    }

    fn set_messages_enabled(&mut self, messages: bool) {
        let Some(watcher) = self.watcher.as_ref().filter(|_| self.messages_paused == messages) else { return };
        self.messages_paused = !messages;
        if !std::mem::replace(&mut self.pause_logged, true) {
            warn!(vif = %self.name, "its frontend sends too many messages; from now on they may be handled late");
        }
        match (&self.peer, messages) {
            (Some(peer), false) => watcher.remove(peer.channel.socket()),
            (None, false) => self.socket.pause(watcher),
            (Some(peer), true) => {
                if let Err(error) = watcher.add(peer.channel.socket(), CONNECTION) {
                    self.disconnect(&error);
                }
            }
            (None, true) => self.wait_for_frontend(),
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

/// The running receive queue for a frame, and its index.
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

/// Whether the guest's driver negotiated what a frame needs.
#[inline]
fn supports(features: Features, offload: Offload) -> bool {
    if offload == Offload::default() {
        return true;
    }
    let [tso4, tso6, ecn] = features.guest_segmentation();
    let segmentation =
        offload.gso.is_none_or(|gso| (if gso.kind == GsoKind::Tcp4 { tso4 } else { tso6 }) && (ecn || !gso.ecn));
    segmentation && (features.guest_checksum() || offload.checksum == Checksum::Present)
}
