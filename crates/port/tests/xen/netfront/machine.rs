//! A machine without Xen: all domains' memory, grants and event channels.

use fairlane_port::xen::{End, Events, GrantCopy, Host, PAGE, Page, Place, SELF, SelfGranted};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[repr(align(4096))]
struct Bytes([u8; PAGE]);

/// A guest's page, owned or within a larger allocation.
pub(crate) struct Sheet(*mut Bytes, bool);

// SAFETY: tests touch a page from one thread at a time.
unsafe impl Send for Sheet {}
// SAFETY: as above.
unsafe impl Sync for Sheet {}

impl Drop for Sheet {
    fn drop(&mut self) {
        if self.1 {
            // SAFETY: it came from `Box::into_raw` and is dropped once.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

impl Sheet {
    pub(crate) fn new() -> Arc<Sheet> {
        Arc::new(Sheet(Box::into_raw(Box::new(Bytes([0; PAGE]))), true))
    }

    fn within(start: *mut u8) -> Sheet {
        Sheet(start.cast(), false)
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= PAGE);
        // SAFETY: no reference is made, and the page is there.
        let bytes = unsafe { &raw mut (*self.0).0 };
        bytes.cast::<u8>().wrapping_add(offset)
    }
}

/// Pages by domain and grant reference.
pub(super) type Grants = Arc<Mutex<HashMap<(u16, u32), Arc<Sheet>>>>;

/// All domains' memory, and what they granted to us.
#[derive(Default)]
pub(crate) struct Machine {
    pub grants: Grants,
    /// The number of self-granted references used so far.
    granted: AtomicU32,
    /// Calls of [`Host::copy`] with something to do, and bytes copied by address instead of a grant.
    pub copies: AtomicU32,
    pub ours: AtomicU32,
    pub notified: Arc<AtomicU32>,
    /// The event channel of the last set that was opened.
    channel: Mutex<Arc<Channel>>,
    /// Whether there is memory for self-granted pages.
    has_self_grants: bool,
    /// A page that is missing at the next copy.
    missed: Mutex<Option<(u16, u32)>>,
    /// Calls that fail as a whole from now on.
    failing: AtomicU32,
}

impl Machine {
    /// A machine with self-granted pages.
    pub(crate) fn with_self_grants() -> Machine {
        Machine { has_self_grants: true, ..Machine::default() }
    }

    /// Makes a domain's page unavailable for one copy.
    pub(crate) fn miss(&self, domain: u16, reference: u32) {
        *self.missed.lock().unwrap() = Some((domain, reference));
    }

    /// Makes the next `calls` calls fail as a whole, as for want of memory.
    pub(crate) fn fail(&self, calls: u32) {
        self.failing.store(calls, Ordering::Relaxed);
    }

    /// Sends an event by the set of channels opened last.
    pub(crate) fn send_event(&self) {
        self.channel.lock().unwrap().send_event();
    }

    pub(crate) fn sheet(&self, place: Place, len: u16) -> Option<*mut u8> {
        if self.missed.lock().unwrap().take_if(|page| *page == (place.domain, place.reference)).is_some() {
            return None;
        }
        let fits = usize::from(place.offset) + usize::from(len) <= PAGE;
        let grants = self.grants.lock().unwrap();
        grants.get(&(place.domain, place.reference)).filter(|_| fits).map(|sheet| sheet.at(place.offset.into()))
    }

    /// References to a page: its owner, its grant, and mappings.
    pub(crate) fn users(&self, domain: u16, reference: u32) -> usize {
        Arc::strong_count(&self.grants.lock().unwrap()[&(domain, reference)])
    }
}

impl Host for Machine {
    unsafe fn copy(&self, copies: &mut [GrantCopy]) {
        if !copies.is_empty() {
            self.copies.fetch_add(1, Ordering::Relaxed);
            let failing = self.failing.load(Ordering::Relaxed);
            if failing > 0 {
                self.fail(failing - 1);
                return copies.iter_mut().for_each(GrantCopy::set_not_tried);
            }
        }
        for copy in copies {
            let end = |end: End| match end {
                End::Ours(ours) => {
                    self.ours.fetch_add(copy.len().into(), Ordering::Relaxed);
                    Some(ours)
                }
                End::Guest(place) => self.sheet(place, copy.len()),
            };
            let (from, to) = (end(copy.from()), end(copy.to()));
            if let (Some(from), Some(to)) = (from, to) {
                // SAFETY: the caller's for our own memory, checked for a guest's.
                unsafe { std::ptr::copy(from, to, copy.len().into()) };
                copy.set_status(0);
            } else {
                copy.set_status(-3);
            }
        }
    }

    fn map(&self, domain: u16, reference: u32) -> io::Result<Page> {
        let sheet = self.grants.lock().unwrap().get(&(domain, reference)).cloned();
        let sheet = sheet.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the page is aligned, and lives as long as the reference to it.
        Ok(unsafe { Page::new(sheet.at(0), Box::new(sheet)) })
    }

    fn self_grant(&self, pages: usize) -> Option<SelfGranted> {
        let first = self.has_self_grants.then(|| self.granted.fetch_add(pages as u32, Ordering::Relaxed))?;
        let layout = Layout::array::<Bytes>(pages).unwrap();
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let references: Vec<u32> = (first..).take(pages).collect();
        let mut grants = self.grants.lock().unwrap();
        for (page, reference) in references.iter().enumerate() {
            let sheet = Arc::new(Sheet::within(start.wrapping_add(page * PAGE)));
            grants.insert((SELF, *reference), sheet);
        }
        drop(grants);
        let own = OwnGrants { grants: self.grants.clone(), start, layout, references: references.clone() };
        // SAFETY: the pages are valid until the grants are dropped.
        Some(unsafe { SelfGranted::new(start, references, Box::new(own)) })
    }

    fn events(&self) -> io::Result<Box<dyn Events>> {
        let channel = Arc::new(Channel::default());
        *self.channel.lock().unwrap() = channel.clone();
        Ok(Box::new(ChannelSet(self.notified.clone(), channel)))
    }
}

/// Pages of ours that are granted until this is dropped.
struct OwnGrants {
    grants: Grants,
    start: *mut u8,
    layout: Layout,
    references: Vec<u32>,
}

// SAFETY: this value owns the memory.
unsafe impl Send for OwnGrants {}

impl Drop for OwnGrants {
    fn drop(&mut self) {
        let mut grants = self.grants.lock().unwrap();
        self.references.iter().for_each(|reference| drop(grants.remove(&(SELF, *reference))));
        // SAFETY: it was allocated with this layout, and nobody refers to it any more.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// An event channel: after an event it is masked until it is unmasked.
pub(super) struct Channel {
    descriptor: EventFd,
    /// Whether it is masked, and whether an event arrived meanwhile.
    state: Mutex<[bool; 2]>,
}

impl Default for Channel {
    fn default() -> Channel {
        let descriptor = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        Channel { descriptor, state: Mutex::default() }
    }
}

impl Channel {
    fn send_event(&self) {
        let [masked, pending] = &mut *self.state.lock().unwrap();
        if *masked {
            *pending = true;
        } else {
            *masked = true;
            self.descriptor.write(1).unwrap();
        }
    }
}

struct ChannelSet(Arc<AtomicU32>, Arc<Channel>);

impl Events for ChannelSet {
    fn bind(&self, _domain: u16, remote: u32) -> io::Result<u32> {
        if remote == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(remote + 100) }
    }
    fn notify(&self, _channel: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn mask(&mut self) {
        let _ = self.1.descriptor.read();
    }
    fn unmask(&mut self) {
        let [_, pending] = std::mem::take(&mut *self.1.state.lock().unwrap());
        if pending {
            self.1.send_event();
        }
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.1.descriptor.as_fd()
    }
}
