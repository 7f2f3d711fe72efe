//! A device as its frontend configured it, and the queues that run on this configuration.
//!
//! A queue runs while it has everything it needs: features, memory, size, addresses, a kick, and being enabled. A
//! message that changes one of these stops the queues concerned and starts them again; a queue's progress is in guest
//! memory.

use super::announcement::Announcement;
use super::features::{self, Features};
use super::kept::{Record, two};
use super::message::Message;
use super::queues::{self, Queues, Setting};
use super::rejection::Rejection;
use crate::Withheld;
use crate::descriptor::close_apart;
use crate::notifier::{Notifier, Way};
use crate::poller::{Interest, Watcher};
use crate::virtqueue::{DirtyLog, GuestMemory, Layout, MAX_REGIONS, MAX_SIZE, Region, Violation};
use fairlane_core::ack::Ring;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use vhost::vhost_user::message::{FrontendReq as Request, VhostUserProtocolFeatures, VhostUserVringAddrFlags};

/// Kicks are numbered from here on among the port's descriptors.
pub(super) const FIRST_KICK: u32 = 16;

/// VHOST_USER_VRING_NOFD_MASK: a message about a ring's descriptor without one.
const NO_FD: u64 = 1 << 8;

/// The MTUs of a device (virtio 1.2, section 5.1.4.1).
const MTU: RangeInclusive<u64> = 68..=65535;

/// One queue's settings. Queues come in pairs: the guest's receive queue, then its transmit queue.
#[derive(Default)]
struct Vring {
    size: u16,
    /// Descriptor table, driver area, device area, in the frontend's addresses.
    addresses: Option<[u64; 3]>,
    /// The device area's address in the dirty log, if writes to it are logged.
    log: Option<u64>,
    /// SET_VRING_KICK was received, perhaps without a descriptor: the ring is then to be polled.
    kicked: bool,
    kick: Option<Notifier>,
    call: Option<Arc<Notifier>>,
    error: Option<Notifier>,
    enabled: bool,
    /// Where the queue stopped, or the frontend believes that it did, for GET_VRING_BASE.
    base: Option<u32>,
}

impl Vring {
    /// Writes down the messages that configure it. It may run from the last one on.
    fn record<'a>(&'a self, index: u32, record: &mut Record<'a>) {
        if self.size > 0 {
            record.ring(Request::SET_VRING_NUM, index, self.size.into());
        }
        if let Some(base) = self.base {
            record.ring(Request::SET_VRING_BASE, index, base);
        }
        if let Some([descriptors, available, used]) = self.addresses {
            let flags = self.log.map_or(0, |_| VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits());
            let places = [two(index, flags), descriptors, used, available, self.log.unwrap_or(0)];
            record.message(Request::SET_VRING_ADDR, &places, None);
        }
        let call = self.call.as_deref();
        let notifiers = [(Request::SET_VRING_ERR, self.error.as_ref()), (Request::SET_VRING_CALL, call)];
        for (request, notifier) in notifiers {
            if let Some(notifier) = notifier {
                record.message(request, &[index.into()], Some(notifier.as_fd()));
            }
        }
        record.ring(Request::SET_VRING_ENABLE, index, self.enabled.into());
        if self.kicked {
            let no_fd = if self.kick.is_some() { 0 } else { NO_FD };
            let fd = self.kick.as_ref().map(AsFd::as_fd);
            record.message(Request::SET_VRING_KICK, &[u64::from(index) | no_fd], fd);
        }
    }
}

/// A configured device.
pub(super) struct Session {
    watcher: Watcher,
    acknowledged: Option<Features>,
    protocol: VhostUserProtocolFeatures,
    status: u8,
    memory: GuestMemory,
    /// The dirty log, while the frontend migrates the guest.
    log: Option<Arc<DirtyLog>>,
    /// Notifies the frontend that the log changed.
    log_call: Option<Notifier>,
    /// The announcement of a guest that migrated to this host.
    pub announcement: Announcement,
    vrings: Vec<Vring>,
    pairs: usize,
    offers_packed: bool,
    /// The frontend's socket for requests by the backend; never used, but User-Mode Linux drops a device that closes
    /// it.
    backend_requests: Option<File>,
    queues: Box<dyn Queues>,
    /// Why no queue may run any more.
    broken: Option<String>,
}

impl Session {
    /// A device with this many queue pairs, perhaps of packed rings, not configured yet.
    pub(super) fn new(queues: u16, offers_packed: bool, watcher: Watcher) -> Session {
        let pairs = usize::from(queues);
        Session {
            watcher,
            acknowledged: None,
            protocol: VhostUserProtocolFeatures::empty(),
            status: 0,
            memory: GuestMemory::default(),
            log: None,
            log_call: None,
            announcement: Announcement::default(),
            vrings: (0..2 * pairs).map(|_| Vring::default()).collect(),
            pairs,
            offers_packed,
            backend_requests: None,
            queues: queues::none(pairs, false),
            broken: None,
        }
    }

    /// The features offered to the frontend.
    fn offered(&self) -> Features {
        Features::offered(self.pairs as u16, self.offers_packed, self.protocol)
    }

    /// The features that the guest's driver acknowledged.
    pub(super) fn features(&self) -> Features {
        self.acknowledged.unwrap_or_default()
    }

    /// The running queues, and the memory they lie in.
    #[inline]
    pub(super) fn queues(&mut self) -> (&mut dyn Queues, &GuestMemory) {
        (self.queues.as_mut(), &self.memory)
    }

    /// [`Control::withheld`](crate::Control::withheld)
    pub(super) fn withheld(&self) -> Withheld {
        self.queues.withheld()
    }

    /// The state of the running receive queues.
    pub(super) fn ring(&self) -> Ring {
        self.queues.ring()
    }

    /// Whether the guest can receive.
    pub(super) fn up(&self) -> bool {
        self.queues.up()
    }

    /// Which shared file the frontend truncated while it was in use, if any.
    #[inline]
    pub(super) fn torn(&self) -> Option<Violation> {
        if self.memory.torn() {
            return Some(Violation::Torn);
        }
        self.log.as_ref().filter(|log| log.torn()).map(|_| Violation::TornLog)
    }

    /// Notifies the frontend that the log changed, if it did and the frontend asked for that.
    #[inline]
    pub(super) fn notify_log(&self) {
        if let Some(call) = &self.log_call
            && self.log.as_ref().is_some_and(|log| log.changed())
        {
            call.notify();
        }
    }

    /// Why the device was disabled, if it was.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Stops all queues for good, and notifies the frontend by its error descriptors.
    pub(super) fn disable(&mut self, reason: String) {
        self.stop_all();
        self.announcement = Announcement::default();
        self.broken = Some(reason);
        self.vrings.iter().filter_map(|vring| vring.error.as_ref()).for_each(Notifier::notify);
    }

    /// Writes down the messages that configure a device as this one. A queue's place is in the guest's memory.
    pub(super) fn record<'a>(&'a self, record: &mut Record<'a>) {
        record.message(Request::SET_PROTOCOL_FEATURES, &[self.protocol.bits()], None);
        if let Some(features) = self.acknowledged {
            record.message(Request::SET_FEATURES, &[features.bits()], None);
        }
        record.message(Request::SET_STATUS, &[self.status.into()], None);
        if let Some(file) = &self.backend_requests {
            record.message(Request::SET_BACKEND_REQ_FD, &[], Some(file.as_fd()));
        }
        for (Region { guest, len, user, offset }, file) in self.memory.regions() {
            record.message(Request::ADD_MEM_REG, &[0, guest, len, user, offset], Some(file.as_fd()));
        }
        if let Some(log) = &self.log {
            let (file, offset, len) = log.place();
            record.message(Request::SET_LOG_BASE, &[len, offset], Some(file.as_fd()));
        }
        if let Some(call) = &self.log_call {
            record.message(Request::SET_LOG_FD, &[], Some(call.as_fd()));
        }
        for (index, vring) in (0..).zip(&self.vrings) {
            vring.record(index, record);
        }
    }

    /// Handles a message. Returns the payload of the reply, if the request has a reply of its own.
    ///
    /// # Errors
    /// The reason why the message is rejected.
    pub(super) fn handle(&mut self, message: Message) -> Result<Option<Vec<u8>>, Rejection> {
        if let Some(reply) = self.reply(&message)? {
            return Ok(Some(reply));
        }
        let request = message.request;
        match request {
            Request::SET_MEM_TABLE | Request::ADD_MEM_REG | Request::REM_MEM_REG => self.set_memory(message)?,
            Request::SET_LOG_BASE | Request::SET_LOG_FD => self.set_log(message)?,
            Request::SET_VRING_NUM | Request::SET_VRING_BASE | Request::SET_VRING_ADDR | Request::SET_VRING_ENABLE => {
                self.set_ring(&message)?
            }
            Request::SET_VRING_KICK | Request::SET_VRING_CALL | Request::SET_VRING_ERR => self.set_notifier(message)?,
            _ => self.set_device(message)?,
        }
        self.start()?;
        // With LOG_SHMFD this has a reply; frontends that read it take 0 for success.
        Ok((request == Request::SET_LOG_BASE).then(|| long(0)))
    }

    /// The reply to a query; none if the message is not a query.
    fn reply(&mut self, message: &Message) -> Result<Option<Vec<u8>>, Rejection> {
        Ok(Some(match message.request {
            Request::GET_FEATURES => long(self.offered().bits()),
            Request::GET_PROTOCOL_FEATURES => long(features::protocol().bits()),
            Request::GET_QUEUE_NUM => long(self.pairs as u64),
            Request::GET_MAX_MEM_SLOTS => long(MAX_REGIONS as u64),
            Request::GET_STATUS => long(self.status.into()),
            Request::GET_VRING_BASE => {
                let index = self.index(message.word(0)?.into())?;
                self.stop(index);
                let vring = &mut self.vrings[index];
                // The protocol stops the ring until the next kick descriptor.
                (vring.kicked, vring.kick) = (false, None);
                let reply = [index as u32, vring.base.unwrap_or(0)];
                reply.iter().flat_map(|word| word.to_ne_bytes()).collect()
            }
            _ => return Ok(None),
        }))
    }

    /// Handles a message about the device as a whole.
    fn set_device(&mut self, message: Message) -> Result<(), Rejection> {
        match message.request {
            Request::SET_OWNER | Request::SET_VRING_ENDIAN => {}
            Request::RESET_OWNER | Request::RESET_DEVICE => self.reset(),
            Request::SET_FEATURES => {
                let acknowledged = self.offered().acknowledge(message.long(0)?)?;
                if self.acknowledged != Some(acknowledged) {
                    self.stop_all();
                    self.acknowledged = Some(acknowledged);
                    self.queues = queues::none(self.pairs, acknowledged.packed());
                }
            }
            Request::SET_PROTOCOL_FEATURES => {
                let bits = message.long(0)? & features::protocol().bits();
                self.protocol = VhostUserProtocolFeatures::from_bits_truncate(bits);
            }
            Request::SET_STATUS => {
                self.status = message.long(0)? as u8;
                if self.status == 0 {
                    self.reset();
                }
            }
            Request::SET_BACKEND_REQ_FD => self.backend_requests = message.files.into_iter().next(),
            // Frames of any length are carried; the guest has its MTU from the frontend.
            Request::NET_SET_MTU => {
                let mtu = message.long(0)?;
                if !MTU.contains(&mtu) {
                    return Err(Rejection::Mtu(mtu));
                }
            }
            Request::SEND_RARP => self.announcement.announce(message.bytes(0)?),
            other => return Err(Rejection::Request(other)),
        }
        Ok(())
    }

    /// Handles a message about the guest's memory.
    fn set_memory(&mut self, mut message: Message) -> Result<(), Rejection> {
        self.stop_all();
        match message.request {
            Request::ADD_MEM_REG => {
                let region = region(&message, 8)?;
                let file = message.files.into_iter().next().ok_or(Rejection::NoDescriptor(message.request))?;
                self.memory.add(region, file)?;
            }
            Request::REM_MEM_REG => {
                let region = region(&message, 8)?;
                let place = |region: Region| (region.guest, region.user, region.len);
                let files = self.memory.remove(|known| place(known) == place(region));
                if files.is_empty() {
                    return Err(Rejection::NoRegion(region.guest));
                }
                close_apart(files);
            }
            _ => {
                let (regions, files) = (message.word(0)? as usize, message.files.len());
                if regions != files {
                    return Err(Rejection::Table { regions, files });
                }
                // Unmapped before the new one is mapped, so that only one counts against the budget.
                close_apart(self.memory.remove(|_| true));
                for (index, file) in std::mem::take(&mut message.files).into_iter().enumerate() {
                    self.memory.add(region(&message, 8 + 32 * index)?, file)?;
                }
            }
        }
        Ok(())
    }

    /// Handles a message about the dirty log.
    fn set_log(&mut self, mut message: Message) -> Result<(), Rejection> {
        let file = message.files.drain(..).next().ok_or(Rejection::NoDescriptor(message.request))?;
        if message.request == Request::SET_LOG_FD {
            self.log_call = Some(Notifier::new("SET_LOG_FD", Way::Out, file)?);
            return Ok(());
        }
        self.stop_all();
        // Unmapped before the new one is mapped, so that only one counts against the budget. No stopped queue has it.
        if let Some(log) = self.log.take().and_then(Arc::into_inner) {
            close_apart(vec![log.unmap()]);
        }
        let (offset, len) = (message.long(8)?, message.long(0)?);
        self.log = Some(Arc::new(DirtyLog::new(file, offset, len)?));
        Ok(())
    }

    /// Handles a message about a ring.
    fn set_ring(&mut self, message: &Message) -> Result<(), Rejection> {
        let index = self.index(message.word(0)?.into())?;
        match message.request {
            Request::SET_VRING_NUM => {
                let number = message.word(4)?;
                let size = u16::try_from(number).ok().filter(|size| size.is_power_of_two() && *size <= MAX_SIZE);
                let size = size.ok_or(Violation::RingSize(number as u16))?;
                self.stop(index);
                self.vrings[index].size = size;
            }
            Request::SET_VRING_ADDR => {
                let addresses = [message.long(8)?, message.long(24)?, message.long(16)?];
                let logged = message.word(4)? & VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits() != 0;
                let log = if logged { Some(message.long(32)?) } else { None };
                if (self.vrings[index].addresses, self.vrings[index].log) != (Some(addresses), log) {
                    self.stop(index);
                    (self.vrings[index].addresses, self.vrings[index].log) = (Some(addresses), log);
                }
            }
            Request::SET_VRING_ENABLE => {
                self.vrings[index].enabled = message.word(4)? != 0;
                if !self.vrings[index].enabled {
                    self.stop(index);
                }
            }
            // The frontend's idea of where the queue begins. The ring itself knows better.
            _ => {
                let base = message.word(4)?;
                self.stop(index);
                self.vrings[index].base = Some(base);
            }
        }
        Ok(())
    }

    /// Handles a message about a ring's kick, call or error descriptor.
    fn set_notifier(&mut self, message: Message) -> Result<(), Rejection> {
        let request = message.request;
        let (index, notifier) = self.notifier(message)?;
        if request == Request::SET_VRING_ERR {
            self.vrings[index].error = notifier;
            return Ok(());
        }
        self.stop(index);
        let vring = &mut self.vrings[index];
        if request == Request::SET_VRING_KICK {
            (vring.kicked, vring.kick) = (true, notifier);
        } else {
            vring.call = notifier.map(Arc::new);
        }
        Ok(())
    }

    /// Whether a request without a reply of its own is acknowledged because the frontend negotiated that.
    pub(super) fn acknowledges(&self) -> bool {
        self.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK)
    }

    /// Whether the frontend kicks, instead of having each ring polled.
    pub(super) fn kicks(&self) -> bool {
        self.vrings.iter().all(|vring| vring.kick.is_some() || !vring.kicked)
    }

    fn index(&self, index: u64) -> Result<usize, Rejection> {
        let have = self.vrings.len();
        let index = usize::try_from(index).ok().filter(|index| *index < have);
        index.ok_or(Rejection::NoRing(have))
    }

    /// The ring that a kick, call or error descriptor belongs to, and the descriptor if there is one.
    fn notifier(&self, message: Message) -> Result<(usize, Option<Notifier>), Rejection> {
        let word = message.long(0)?;
        let index = self.index(word & 0xff)?;
        let file = message.files.into_iter().next();
        if word & NO_FD != 0 {
            return Ok((index, None));
        }
        let file = file.ok_or(Rejection::NoRingDescriptor { request: message.request, index })?;
        let way = if message.request == Request::SET_VRING_KICK { Way::In } else { Way::Out };
        Ok((index, Some(Notifier::new(&format!("{:?} for ring {index}", message.request), way, file)?)))
    }

    /// Starts every queue that is fully configured and does not run.
    pub(super) fn start(&mut self) -> Result<(), Rejection> {
        let Some(features) = self.acknowledged.filter(|_| self.broken.is_none()) else { return Ok(()) };
        for index in 0..self.vrings.len() {
            if let Some(layout) = self.startable(index, features) {
                self.start_queue(index, features, layout)?;
            }
        }
        Ok(())
    }

    /// The layout of a queue that is fully configured and does not run.
    fn startable(&self, index: usize, features: Features) -> Option<Layout> {
        let vring = &self.vrings[index];
        let [descriptors, available, used] = vring.addresses?;
        let ready = vring.kicked && vring.size > 0 && (vring.enabled || !features.protocol());
        // Memory is added and removed while rings are configured (hot-plug); the region of one of this ring's parts may not
        // be mapped yet.
        let is_missing = |part| self.memory.user(part, 1).is_none();
        if !ready || self.queues.runs(index) || [descriptors, available, used].into_iter().any(is_missing) {
            return None;
        }
        if (features.log_all() || vring.log.is_some()) && self.log.is_none() {
            // QEMU sends the log's address after the rings' addresses.
            return None;
        }
        let (event_idx, indirect, in_order) = (features.event_idx(), features.indirect(), features.in_order());
        Some(Layout { size: vring.size, descriptors, available, used, event_idx, indirect, in_order })
    }

    fn start_queue(&mut self, index: usize, features: Features, layout: Layout) -> Result<(), Rejection> {
        let vring = &self.vrings[index];
        let page_log = self.log.clone().filter(|_| features.log_all());
        if let Some(log) = &page_log {
            log.covers(self.memory.end(), "the guest's memory")?;
        }
        let ring_log = self.log.clone().zip(vring.log);
        let setting = Setting { call: vring.call.clone(), ring_log, page_log, mergeable: features.mergeable() };
        self.queues.start(index, layout, setting, &self.memory)?;
        if let Some(kick) = &vring.kick {
            // Reported once for each kick, and once if the frontend closes its end.
            let watched = self.watcher.watch(kick, FIRST_KICK + index as u32, Interest::Arrival);
            watched.map_err(|error| Rejection::Kick { index, error })?;
        }
        Ok(())
    }

    /// Stops a queue if it runs: publishes its completions and stops watching its kick.
    fn stop(&mut self, index: usize) {
        let Some(base) = self.queues.stop(index) else { return };
        let vring = &mut self.vrings[index];
        vring.base = Some(base);
        if let Some(kick) = &vring.kick {
            self.watcher.remove(kick);
        }
    }

    /// Stops all queues.
    pub(super) fn stop_all(&mut self) {
        for index in 0..self.vrings.len() {
            self.stop(index);
        }
    }

    /// Resets to a device with only memory and features configured (virtio 1.2, section 2.4).
    fn reset(&mut self) {
        self.stop_all();
        for vring in &mut self.vrings {
            // QEMU (7.2) resets a device that it stops before it reads the rings' indices, and sets the error
            // descriptors only once.
            *vring = Vring { base: vring.base, error: vring.error.take(), ..Vring::default() };
        }
    }
}

/// A 64-bit number as a payload.
fn long(value: u64) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// A region's description at byte `at` of a message.
fn region(message: &Message, at: usize) -> Result<Region, Rejection> {
    Ok(Region {
        guest: message.long(at)?,
        len: message.long(at + 8)?,
        user: message.long(at + 16)?,
        offset: message.long(at + 24)?,
    })
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop_all();
    }
}
