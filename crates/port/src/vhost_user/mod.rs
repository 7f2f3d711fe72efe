//! A guest's network card over vhost-user: its frontend (QEMU, User-Mode Linux, DPDK's virtio-user) shares memory and
//! rings over a Unix socket; frames then bypass the frontend.
//!
//! The backend listens, or connects to a listening frontend. Either may restart while the other carries on, as the
//! state of a queue is in the guest's memory. A backend that has a [keeper](VhostUser::kept_by) keeps its connections when it
//! restarts, and their frontends do not notice.

mod access;
mod announcement;
mod features;
mod kept;
mod message;
mod queues;
mod rejection;
mod session;
mod socket;

use crate::burst::{Batch, Burst};
use crate::descriptor::apart;
use crate::keeper::{Keeper, Kept};
use crate::poller::{Key, Poller, Watcher};
use crate::virtqueue::Violation;
use crate::{Control, Put, Refusal, Room, Sink, Source, Status, Wanted, Withheld};
pub use access::Access;
use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use kept::{Record, Unusable};
use message::Channel;
use session::{FIRST_KICK, Session};
use socket::Socket;
pub use socket::{directory_of, is_left_behind};
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use tracing::{info, warn};

/// Numbers among the port's descriptors: the connection, and the end of what is closed of the last one. The socket's number
/// is below, kicks are above.
const CONNECTION: u32 = 8;
const CLOSED: u32 = 9;

/// A vhost-user network device's backend.
pub struct VhostUser {
    name: String,
    queues: u16,
    /// Whether packed rings are offered.
    packed: bool,
    socket: Socket,
    access: Access,
    watcher: Option<Watcher>,
    peer: Option<Peer>,
    keeper: Option<Arc<Keeper>>,
    /// The former process's connection, until this one can serve it.
    kept: Option<Kept>,
    /// Whether messages are not read for now, because the frontend sent too many; and whether that was logged.
    messages_paused: bool,
    pause_logged: bool,
    /// Ends once all is closed that the last frontend shared and passed. Until then there is no next one, so that each vif
    /// has one such thread.
    closing: Option<UnixStream>,
    /// Why the last frontend was rejected, until the next one connects.
    refused: Option<String>,
}

/// A connected frontend and its device.
struct Peer {
    channel: Channel,
    session: Session,
    keeper: Option<Arc<Keeper>>,
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
        VhostUser {
            name: name.to_owned(),
            queues,
            packed: false,
            socket,
            access,
            watcher: None,
            peer: None,
            keeper: None,
            kept: None,
            messages_paused: false,
            pause_logged: false,
            closing: None,
            refused: None,
        }
    }

    /// Offers packed rings besides split ones. A driver that knows them (User-Mode Linux's, for one) then uses them, unless its
    /// frontend says otherwise.
    pub fn with_packed_rings(mut self) -> VhostUser {
        self.packed = true;
        self
    }

    /// Keeps the connection for the next process, and begins with the one that the former process kept.
    pub fn kept_by(mut self, keeper: Arc<Keeper>, kept: Option<Kept>) -> VhostUser {
        (self.keeper, self.kept) = (Some(keeper), kept);
        self
    }

    /// Goes on with the connection of the former process, if there is one.
    fn resume(&mut self) {
        let Some((kept, watcher)) = self.kept.take().zip(self.watcher.as_ref()) else { return };
        match self.resumed(kept, watcher) {
            Ok(peer) => {
                info!(vif = %self.name, "frontend kept from the former process");
                self.socket.pause(watcher);
                self.peer = Some(peer);
                self.keep();
            }
            Err(reason) => warn!(vif = %self.name, %reason, "its frontend must connect again"),
        }
    }

    fn resumed(&self, kept: Kept, watcher: &Watcher) -> Result<Peer, Unusable> {
        let (stream, messages) = kept::read(kept, self.socket.path())?;
        self.admit(&stream, watcher)?;
        let mut peer = self.begin(stream, watcher);
        for message in messages {
            peer.channel.hold(&message.files)?;
            // The frontend has its reply.
            peer.session.handle(message)?;
            peer.channel.release();
        }
        Ok(peer)
    }

    /// Checks that a frontend may use the socket, and watches its connection.
    fn admit(&self, stream: &UnixStream, watcher: &Watcher) -> io::Result<()> {
        self.access.admit(stream)?;
        stream.set_nonblocking(true)?;
        watcher.add(stream, CONNECTION)
    }

    fn begin(&self, stream: UnixStream, watcher: &Watcher) -> Peer {
        let session = Session::new(self.queues, self.packed, watcher.clone());
        Peer { channel: Channel::new(stream), session, keeper: self.keeper.clone() }
    }

    /// Has the next process go on with the connection as it is now.
    fn keep(&self) {
        if let Some(peer) = &self.peer
            && let Err(error) = peer.keep(self.socket.path())
        {
            warn!(vif = %self.name, %error, "its connection is not kept over a restart");
        }
    }

    /// Accepts a frontend if there is one and none is connected.
    fn accept(&mut self) {
        let busy = self.peer.is_some() || self.closing.is_some();
        let Some(watcher) = self.watcher.as_ref().filter(|_| !busy) else { return };
        let Some(stream) = self.socket.accept() else { return };
        match self.admit(&stream, watcher) {
            Ok(()) => {
                info!(vif = %self.name, "frontend connected");
                self.socket.pause(watcher);
                self.refused = None;
                self.peer = Some(self.begin(stream, watcher));
                self.keep();
            }
            Err(error) => {
                warn!(vif = %self.name, %error, "a frontend was not accepted");
                self.refused = Some(error.to_string());
                self.close(move || drop(stream));
            }
        }
    }

    /// Closes what a frontend brought in a thread of its own, and accepts none until that is done.
    fn close(&mut self, what: impl FnOnce() + Send + 'static) {
        let Some(watcher) = &self.watcher else { return };
        self.socket.pause(watcher);
        self.closing = apart(what);
        if let Some(closing) = &self.closing
            && let Err(error) = watcher.add(closing, CLOSED)
        {
            warn!(vif = %self.name, %error, "what its last frontend brought may still be open");
            self.closing = None;
        }
        self.wait_for_frontend();
    }

    /// Handles one message. A frontend with more to say gets another turn later, so that it delays nobody.
    fn handle_message(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        // Should the process end while it handles the message, nobody knows whether it did.
        peer.forget();
        match peer.handle_next() {
            Ok(()) => self.keep(),
            Err(error) => self.disconnect(&error),
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
        self.peer.iter().for_each(Peer::forget);
        if let Some(rest) = self.part() {
            self.close(rest);
        }
    }

    /// Ends the connection. Returns what closes all that its frontend shared and passed.
    fn part(&mut self) -> Option<impl FnOnce() + Send + use<>> {
        let Peer { channel, mut session, .. } = self.peer.take()?;
        if let Some(watcher) = &self.watcher {
            watcher.remove(channel.socket());
        }
        session.stop_all();
        Some(move || {
            drop(session);
            channel.close();
        })
    }

    /// Waits for a frontend, unless one must not come yet.
    fn wait_for_frontend(&mut self) {
        if self.closing.is_none()
            && !self.messages_paused
            && let Some(watcher) = &self.watcher
            && let Err(error) = self.socket.wait(watcher)
        {
            warn!(vif = %self.name, %error, "no frontend can be accepted any more");
        }
    }
}

impl Peer {
    /// Keeps the connection, through a socket of this path, unless the device is disabled or a message arrived in part.
    fn keep(&self, path: &Path) -> io::Result<()> {
        let Some(keeper) = &self.keeper else { return Ok(()) };
        if self.session.broken().is_some() || !self.channel.is_between_messages() {
            return Ok(());
        }
        let mut record = Record::new(path, self.channel.socket());
        self.session.record(&mut record);
        keeper.keep(&record.bytes, &record.fds)
    }

    /// No longer keeps the connection.
    fn forget(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.forget();
        }
    }

    /// Handles the next message, if there is one.
    fn handle_next(&mut self) -> io::Result<()> {
        let Some(message) = self.channel.receive()? else { return Ok(()) };
        let (request, need_reply) = (message.request, message.need_reply);
        let outcome = self.session.handle(message);
        self.channel.release();
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
        // With a new connection it is served again.
        self.forget();
    }

    /// Disables the device if the file of its memory, or of its log, was truncated.
    #[inline]
    fn check_torn(&mut self, name: &str) {
        if let Some(violation) = self.session.torn().filter(|_| self.session.broken().is_none()) {
            self.disable(name, violation);
        }
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            self.socket.pause(watcher);
        }
        if let Some(rest) = self.part() {
            apart(rest);
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
        let (queues, memory) = peer.session.queues();
        if let Err(violation) = queues.offer(memory, &mut filler, budget) {
            peer.disable(&self.name, violation);
        }
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        let Some(peer) = &mut self.peer else { return };
        if !peer.session.announcement.consume(frames) {
            peer.session.queues().0.consume(frames);
        }
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        let waiting = peer.session.announcement.waiting() || peer.session.queues().0.waiting();
        if !waiting {
            // An empty ring is polled but never flushed, so the check is here too.
            peer.check_torn(&self.name);
        }
        waiting
    }

    fn more(&mut self, notify: bool) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        peer.session.announcement.waiting() || peer.session.queues().0.more(notify)
    }
}

impl Sink for VhostUser {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let Some(peer) = &mut self.peer else {
            return Put { accepted: 0, refusal: Some(Refusal::Never(DropReason::ReceiverDown)) };
        };
        let features = peer.session.features();
        let (queues, memory) = peer.session.queues();
        let (put, broken) = queues.put(memory, features, batch, frames);
        if let Some(violation) = broken {
            peer.disable(&self.name, violation);
        }
        put
    }

    fn room(&mut self, _now: Nanos) -> Room {
        self.peer.as_mut().map_or(Room::Now, |peer| peer.session.queues().0.room())
    }

    fn ring(&self) -> Ring {
        let Some(peer) = &self.peer else { return Ring::default() };
        if !peer.session.up() {
            // The frontend stopped the guest, which takes nothing until it resumes.
            return Ring { waiting: 1, taken: 0 };
        }
        peer.session.ring()
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        let Some(peer) = &mut self.peer else { return Nanos::NEVER };
        let again = peer.session.queues().0.flush(now);
        peer.session.notify_log();
        peer.check_torn(&self.name);
        again
    }
}

impl Control for VhostUser {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        let announces = wanted.frames && peer.session.announcement.waiting();
        let ready = peer.session.queues().0.enable_notifications(wanted);
        // As a full ring is never flushed.
        peer.check_torn(&self.name);
        announces || ready
    }

    fn wakes(&self) -> bool {
        self.peer.as_ref().is_none_or(|peer| peer.session.kicks())
    }

    fn disable_notifications(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.session.queues().0.disable_notifications();
        }
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        let watcher = Watcher { poller: poller.clone(), key };
        self.socket.wait(&watcher)?;
        self.watcher = Some(watcher);
        self.resume();
        self.accept();
        Ok(())
    }

    fn event(&mut self, number: u32, _poller: &Poller, _now: Nanos) {
        match number {
            // The work that a kick signals is found in the ring.
            FIRST_KICK.. => return,
            CLOSED => {
                self.closing = None;
                return self.wait_for_frontend();
            }
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

    fn let_go(&mut self) {
        self.peer.iter_mut().for_each(|peer| peer.session.stop_all());
    }

    fn take_back(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        match peer.session.start() {
            Ok(()) => self.keep(),
            Err(why) => self.disconnect(&io::Error::new(io::ErrorKind::InvalidData, why)),
        }
    }

    fn withheld(&self) -> Withheld {
        self.peer.as_ref().map_or(Withheld::default(), |peer| peer.session.withheld())
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
