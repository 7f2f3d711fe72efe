//! The service manager's store of descriptors (systemd: `FileDescriptorStoreMax=` of systemd.service(5), `FDSTORE=1` of
//! sd_notify(3)): what it holds is passed to the next process of the service, however this one ends.
//!
//! A service has one manager, so a process has one store; without a manager nothing is kept. Entries have names.
//! [`settle`] tells the manager of new ones, and of those that nobody uses any more.

use crate::keeper::{Keeper, Kept};
use sd_notify::{NotifyState, listen_fds_with_names, notify, notify_with_fds};
use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use tracing::warn;

static STORE: OnceLock<Mutex<Store>> = OnceLock::new();

/// What the manager holds or is to hold, by name.
#[derive(Default)]
struct Store {
    /// Descriptors that the former process kept, until they are asked for.
    passed: BTreeMap<String, Vec<OwnedFd>>,
    entries: BTreeMap<String, Entry>,
}

/// What a port of this process keeps.
struct Entry {
    held: Weak<dyn Stored>,
    /// Whether the manager has it.
    is_stored: bool,
}

/// Something with descriptors for the manager.
trait Stored: Send + Sync {
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
}

impl Stored for Keeper {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.ends().to_vec()
    }
}

impl Stored for File {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
    }
}

/// Begins to use the store, and takes over what the former process kept. To be called once, before anything is opened.
///
/// # Errors
/// The environment is not what a manager sets.
pub fn open() -> io::Result<()> {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return Ok(());
    }
    let mut store = Store::default();
    for (fd, name) in listen_fds_with_names()? {
        // SAFETY: by these variables the manager names descriptors that it opened in this process for this use.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        store.passed.entry(name).or_default().push(fd);
    }
    // The first call decides; another one would find the same descriptors.
    let _ = STORE.set(Mutex::new(store));
    Ok(())
}

/// A keeper of this name, and what the former process kept there. None without a manager.
///
/// # Errors
/// The system's error.
pub fn keeper(name: &str) -> io::Result<Option<(Arc<Keeper>, Option<Kept>)>> {
    let Some(mut store) = store() else { return Ok(None) };
    let ends = store.passed.remove(name).map(<[OwnedFd; 2]>::try_from);
    let (keeper, kept, is_stored) = match ends {
        Some(Ok(ends)) => {
            let keeper = Keeper::from_ends(ends);
            let kept = keeper.take();
            (keeper, kept, true)
        }
        Some(Err(_)) => {
            tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)], &[]);
            (Keeper::new()?, None, false)
        }
        None => (Keeper::new()?, None, false),
    };
    let keeper = Arc::new(keeper);
    store.enter(name, keeper.clone(), is_stored);
    Ok(Some((keeper, kept)))
}

/// A file of this name: the one that the former process had, if it is still the right one, or else a new one.
///
/// # Errors
/// That of `open`.
pub(crate) fn file<E>(
    name: &str,
    is_right: impl FnOnce(&File) -> bool,
    open: impl FnOnce() -> Result<File, E>,
) -> Result<Arc<File>, E> {
    let Some(mut store) = store() else { return open().map(Arc::new) };
    let passed = store.passed.remove(name);
    let has_passed = passed.is_some();
    let kept = passed.into_iter().flatten().map(File::from).next().filter(is_right);
    if has_passed && kept.is_none() {
        tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)], &[]);
    }
    let is_stored = kept.is_some();
    let file = Arc::new(kept.map_or_else(open, Ok)?);
    store.enter(name, file.clone(), is_stored);
    Ok(file)
}

/// Has the manager hold what is new, and close what nobody uses any more.
pub fn settle() {
    let Some(mut store) = store() else { return };
    let Store { passed, entries } = &mut *store;
    for (name, _) in std::mem::take(passed) {
        tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)], &[]);
    }
    entries.retain(|name, entry| {
        let name = NotifyState::FdName(name);
        match entry.held.upgrade() {
            Some(held) if !entry.is_stored => {
                // The manager would close a keeper once its former process has ended (FDPOLL).
                let states = [NotifyState::FdStore, name, NotifyState::Custom("FDPOLL=0")];
                entry.is_stored = tell(&states, &held.fds());
            }
            None if entry.is_stored => drop(tell(&[NotifyState::FdStoreRemove, name], &[])),
            _ => {}
        }
        entry.held.strong_count() > 0
    });
}

impl Store {
    /// Enters what is in use from now on under a name.
    fn enter(&mut self, name: &str, held: Arc<impl Stored + 'static>, is_stored: bool) {
        let held: Arc<dyn Stored> = held;
        let entry = Entry { held: Arc::downgrade(&held), is_stored };
        let former = self.entries.insert(name.to_owned(), entry);
        if former.is_some_and(|former| former.is_stored) {
            tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)], &[]);
        }
    }
}

fn store() -> Option<MutexGuard<'static, Store>> {
    STORE.get().map(|store| store.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Notifies the manager, and returns whether that succeeded.
fn tell(states: &[NotifyState<'_>], fds: &[BorrowedFd<'_>]) -> bool {
    let told = if fds.is_empty() { notify(states) } else { notify_with_fds(states, fds) };
    told.inspect_err(|error| warn!(%error, "cannot notify the service manager: {states:?}")).is_ok()
}
