//! What the next process goes on with: descriptors, by name. They come to it in one of two ways.
//!
//! The service manager's store (systemd: `FileDescriptorStoreMax=` of systemd.service(5), `FDSTORE=1` of sd_notify(3))
//! passes them to the next process of the service, however this one ends. [`settle`] tells the manager of new ones, and of
//! those that nobody uses any more. Or this process still runs, and gives them to its successor ([`handover`](crate::handover)),
//! with its listening sockets, which the manager does not get.

use crate::keeper::{Keeper, Kept};
use sd_notify::{NotifyState, listen_fds_with_names, notify, notify_with_fds};
use std::collections::BTreeMap;
use std::env;
use std::fs::remove_file;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use tracing::warn;

static STORE: OnceLock<Mutex<Store>> = OnceLock::new();

/// The names of listening sockets begin so; their paths follow.
const SOCKET: &str = "socket ";

/// What the next process is to go on with, by name.
#[derive(Default)]
pub(crate) struct Store {
    /// What came from the former process, until it is asked for.
    pub passed: BTreeMap<String, Passed>,
    pub entries: BTreeMap<String, Entry>,
    /// What the manager is to close once this process has the service.
    pub gone: Vec<String>,
    /// Whether another process has the service: the former one, before this one serves; or the next.
    pub is_others: bool,
}

/// Descriptors of the former process.
#[derive(Default)]
pub(crate) struct Passed {
    pub fds: Vec<OwnedFd>,
    pub place: Place,
}

/// What a port of this process keeps.
pub(crate) struct Entry {
    pub held: Weak<dyn Stored>,
    pub place: Place,
}

/// Whether the manager has an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// It has.
    Manager,
    /// It is to have it.
    #[default]
    Nowhere,
    /// It is not to have it: only a successor gets it.
    Here,
}

/// Something with descriptors.
pub(crate) trait Stored: Send + Sync {
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
}

impl Stored for Keeper {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.ends().to_vec()
    }
}

impl<T: AsFd + Send + Sync> Stored for T {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
    }
}

/// Begins to use the store, and takes over what the manager kept of the former process. To be called once, before anything
/// is opened.
///
/// # Errors
/// The environment is not what a manager sets.
pub fn open() -> io::Result<()> {
    let mut store = Store::default();
    for (fd, name) in listen_fds_with_names()? {
        // SAFETY: by these variables the manager names descriptors that it opened in this process for this use.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let passed = store.passed.entry(name).or_default();
        passed.fds.push(fd);
        passed.place = Place::Manager;
    }
    begin(store);
    Ok(())
}

/// Begins to use a store.
pub(crate) fn begin(store: Store) {
    // The first call decides; another one would find the same descriptors.
    let _ = STORE.set(Mutex::new(store));
}

/// A keeper of this name, and what the former process kept there. None in a process that keeps nothing.
///
/// # Errors
/// The system's error.
pub fn keeper(name: &str) -> io::Result<Option<(Arc<Keeper>, Option<Kept>)>> {
    let Some(mut store) = store() else { return Ok(None) };
    let passed = store.passed.remove(name).map(|Passed { fds, place }| (<[OwnedFd; 2]>::try_from(fds), place));
    let (keeper, kept, place) = match passed {
        Some((Ok(ends), place)) => {
            let keeper = Keeper::from_ends(ends);
            let kept = keeper.take();
            (keeper, kept, place)
        }
        Some((Err(_), place)) => {
            store.discard(name, place);
            (Keeper::new()?, None, Place::Nowhere)
        }
        None => (Keeper::new()?, None, Place::Nowhere),
    };
    let keeper = Arc::new(keeper);
    store.enter(name, keeper.clone(), place);
    Ok(Some((keeper, kept)))
}

/// Has a successor get a keeper with what it keeps, for as long as it is held; the manager does not.
pub fn leave(name: &str, keeper: &Arc<Keeper>) {
    if let Some(mut store) = store() {
        store.enter(name, keeper.clone(), Place::Here);
    }
}

/// What the former process [left](leave) under a name.
pub fn left(name: &str) -> Option<Kept> {
    let Passed { fds, .. } = store()?.passed.remove(name)?;
    Keeper::from_ends(<[OwnedFd; 2]>::try_from(fds).ok()?).take()
}

/// The socket that listens at a path: the one that the former process gave, or else a new one.
///
/// # Errors
/// That of `open`.
pub fn listener<L, E>(path: &Path, open: impl FnOnce() -> Result<L, E>) -> Result<Arc<L>, E>
where
    L: AsFd + From<OwnedFd> + Send + Sync + 'static,
{
    named_listener(&format!("{SOCKET}{}", path.display()), open)
}

/// The same of a socket without a path.
///
/// # Errors
/// That of `open`.
pub fn named_listener<L, E>(name: &str, open: impl FnOnce() -> Result<L, E>) -> Result<Arc<L>, E>
where
    L: AsFd + From<OwnedFd> + Send + Sync + 'static,
{
    held(name, Place::Here, |fds| fds.into_iter().map(L::from).next(), open)
}

/// Descriptors of this name: those that the former process had, if `keep` makes something of them, which come in any order; or else
/// new ones.
///
/// # Errors
/// That of `open`.
pub(crate) fn several<T: Stored + 'static, E>(
    name: &str,
    keep: impl FnOnce(Vec<OwnedFd>) -> Option<T>,
    open: impl FnOnce() -> Result<T, E>,
) -> Result<Arc<T>, E> {
    held(name, Place::Nowhere, keep, open)
}

/// What has a name: made of the former process's descriptors, or else new, and its place is `new`.
fn held<T: Stored + 'static, E>(
    name: &str,
    new: Place,
    keep: impl FnOnce(Vec<OwnedFd>) -> Option<T>,
    open: impl FnOnce() -> Result<T, E>,
) -> Result<Arc<T>, E> {
    let Some(mut store) = store() else { return open().map(Arc::new) };
    let Passed { fds, place } = store.passed.remove(name).unwrap_or(Passed { fds: Vec::new(), place: new });
    let kept = keep(fds);
    if kept.is_none() {
        store.discard(name, place);
    }
    let place = if kept.is_some() { place } else { new };
    let held = Arc::new(kept.map_or_else(open, Ok)?);
    store.enter(name, held.clone(), place);
    Ok(held)
}

/// Has the manager hold what is new, and close what nobody uses any more. A successor does so once it serves.
pub fn settle() {
    let Some(mut store) = store().filter(|store| !store.is_others) else { return };
    for (name, Passed { place, .. }) in std::mem::take(&mut store.passed) {
        store.discard(&name, place);
        if let Some(path) = name.strip_prefix(SOCKET) {
            // It may be gone already.
            let _ = remove_file(path);
        }
    }
    std::mem::take(&mut store.gone).iter().for_each(|name| close(name));
    store.entries.retain(|name, entry| {
        match entry.held.upgrade() {
            Some(held) if entry.place == Place::Nowhere => {
                // The manager would close a keeper once its former process has ended (FDPOLL).
                let states = [NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")];
                if tell(&states, &held.fds()) {
                    entry.place = Place::Manager;
                }
            }
            None if entry.place == Place::Manager => close(name),
            _ => {}
        }
        entry.held.strong_count() > 0
    });
}

/// Whether the service is another process's, so that the paths of sockets are, too.
pub fn is_others() -> bool {
    store().is_some_and(|store| store.is_others)
}

/// Sets whether the service is another process's.
pub(crate) fn set_others(is_others: bool) {
    if let Some(mut store) = store() {
        store.is_others = is_others;
    }
}

impl Store {
    /// Enters what is in use from now on under a name.
    fn enter(&mut self, name: &str, held: Arc<impl Stored + 'static>, place: Place) {
        let held: Arc<dyn Stored> = held;
        let entry = Entry { held: Arc::downgrade(&held), place };
        if let Some(former) = self.entries.insert(name.to_owned(), entry) {
            self.discard(name, former.place);
        }
    }

    /// Has the manager close what had this name, as nobody uses it; at once, as what takes its place may need it to be closed. A
    /// successor, whose former process may go on with it, only notes that.
    fn discard(&mut self, name: &str, place: Place) {
        if place == Place::Manager && self.is_others {
            self.gone.push(name.to_owned());
        } else if place == Place::Manager {
            close(name);
        }
    }
}

/// The process's store.
pub(crate) fn store() -> Option<MutexGuard<'static, Store>> {
    STORE.get().map(|store| store.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Has the manager close what it holds under a name.
fn close(name: &str) {
    tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)], &[]);
}

/// Notifies the manager, if there is one, and returns whether that succeeded.
fn tell(states: &[NotifyState<'_>], fds: &[BorrowedFd<'_>]) -> bool {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return false;
    }
    let told = if fds.is_empty() { notify(states) } else { notify_with_fds(states, fds) };
    told.inspect_err(|error| warn!(%error, "cannot notify the service manager: {states:?}")).is_ok()
}
