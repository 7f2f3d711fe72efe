//! What a worker sleeps on: an epoll set whose keys name a port and one of its descriptors.

use fairlane_core::time::{Nanos, SECOND};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Names a descriptor's owner: a number that the worker assigns to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u32);

/// Which readiness a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable, reported as long as it is (level-triggered).
    Read,
    /// Newly readable, reported once (edge-triggered).
    Arrival,
    /// Writable.
    Write,
}

/// An epoll set. Clones share the set.
#[derive(Clone)]
pub struct Poller {
    epoll: Arc<OwnedFd>,
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// The error of `epoll_create1`.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no pointer is passed; the descriptor is ours alone.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and has no other owner.
        Ok(Poller { epoll: Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// Watches a descriptor; events carry `key` and the owner's own `number`.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub fn add(&self, fd: BorrowedFd<'_>, key: Key, number: u32, interest: Interest) -> io::Result<()> {
        let events = match interest {
            Interest::Read => libc::EPOLLIN,
            Interest::Arrival => libc::EPOLLIN | libc::EPOLLET,
            Interest::Write => libc::EPOLLOUT,
        };
        let mut event = libc::epoll_event { events: events as u32, u64: u64::from(key.0) << 32 | u64::from(number) };
        // SAFETY: `event` is alive during the call, which only reads it.
        let done = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: no pointer is passed that the kernel reads for this operation.
        unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut());
        }
    }

    /// Waits at most `timeout` ([`Nanos::NEVER`]: without limit) and puts what is ready into `ready`.
    ///
    /// # Errors
    /// The error of `epoll_pwait2`. An interrupted wait returns with nothing ready.
    pub fn wait(&self, timeout: Nanos, ready: &mut Vec<(Key, u32)>) -> io::Result<()> {
        const EVENTS: usize = 64;
        let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; EVENTS];
        let limit =
            libc::timespec { tv_sec: (timeout.0 / SECOND) as i64, tv_nsec: (timeout.0 % SECOND) as libc::c_long };
        let limit = if timeout == Nanos::NEVER { std::ptr::null() } else { &raw const limit };
        // SAFETY: `events` holds EVENTS entries, `limit` is null or points to a live timespec, no signal mask is passed.
        let count = unsafe {
            libc::epoll_pwait2(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr().cast(),
                EVENTS as i32,
                limit,
                std::ptr::null(),
            )
        };
        ready.clear();
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        for event in &events[..count as usize] {
            // SAFETY: the kernel wrote the first `count` entries.
            let data = unsafe { event.assume_init() }.u64;
            ready.push((Key((data >> 32) as u32), data as u32));
        }
        Ok(())
    }
}

/// A port's access to its worker's poller: watches descriptors under the port's key.
#[derive(Clone)]
pub(crate) struct Watcher {
    /// The worker's set.
    pub poller: Poller,
    /// The port's key.
    pub key: Key,
}

impl Watcher {
    /// Watches a descriptor for reading, under the port's own `number`.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub(crate) fn add(&self, fd: impl AsFd, number: u32) -> io::Result<()> {
        self.watch(fd, number, Interest::Read)
    }

    /// Watches a descriptor, under the port's own `number`.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub(crate) fn watch(&self, fd: impl AsFd, number: u32, interest: Interest) -> io::Result<()> {
        self.poller.add(fd.as_fd(), self.key, number, interest)
    }

    /// Stops watching a descriptor. Needed before it is closed if a peer holds it too: the set would go on reporting
    /// it.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        self.poller.remove(fd.as_fd());
    }
}
