//! A server's thread: accepts or is handed connections, and turns them by epoll.
//!
//! Memory is bounded by the number of connections. When there are too many, or no descriptor is left, those that have been
//! silent longest make room; whoever is silent, or trickles a request, for longer than the server's patience, is closed.

use std::{
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::EventFd,
    },
};

use super::{
    Run,
    connection::{CHUNK, Connection, Lent, Next},
    counters::{Counters, add},
};

const EVENTS: usize = 256;
/// The event of new connections.
const DOOR: u64 = u64::MAX;
/// The longest wait for events, in milliseconds, which is how soon the end is noticed.
const WAIT: u16 = 100;
/// From one look for silent connections to the next, in nanoseconds.
const SWEEP: u64 = 500_000_000;
/// Connections accepted before those that are there have their turn.
const BATCH: usize = 64;

/// Where a thread has its connections from.
pub enum Door {
    /// Its own listener.
    Listener(TcpListener),
    /// An acceptor, which wakes it.
    Inbox(mpsc::Receiver<TcpStream>, Arc<EventFd>),
}

/// Serves until the run is over. At most `most` connections are kept at once.
pub fn run(run: &Run, door: Door, most: usize, counters: &Counters) -> Result<(), Errno> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let event = EpollEvent::new(EpollFlags::EPOLLIN, DOOR);
    match &door {
        Door::Listener(listener) => epoll.add(listener, event)?,
        Door::Inbox(_, bell) => epoll.add(bell.as_fd(), event)?,
    }
    let (scratch, filling) = (vec![0; CHUNK], vec![b'.'; CHUNK]);
    let slots = Vec::with_capacity(most.min(1024));
    let mut worker = Worker { run, epoll, door, most, counters, scratch, filling, slots, free: Vec::new(), now: 0 };
    let mut events = [EpollEvent::empty(); EVENTS];
    let mut sweep = SWEEP;
    while !run.over.load(Ordering::Relaxed) {
        let count = match worker.epoll.wait(&mut events, EpollTimeout::from(WAIT)) {
            Err(Errno::EINTR) => 0,
            result => result?,
        };
        worker.now = run.start.elapsed().as_nanos() as u64;
        if run.crowded.swap(false, Ordering::Relaxed) {
            worker.make_room();
        }
        for event in &events[..count] {
            match event.data() {
                DOOR => worker.open()?,
                index => worker.advance(index as usize),
            }
        }
        if worker.now >= sweep {
            worker.drop_silent();
            sweep = worker.now + SWEEP;
        }
    }
    Ok(())
}

struct Worker<'a> {
    run: &'a Run,
    epoll: Epoll,
    door: Door,
    most: usize,
    counters: &'a Counters,
    scratch: Vec<u8>,
    filling: Vec<u8>,
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    now: u64,
}

impl Worker<'_> {
    /// Takes new connections.
    fn open(&mut self) -> Result<(), Errno> {
        for _ in 0..BATCH {
            let stream = match &self.door {
                Door::Listener(listener) => match listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                        Errno::EAGAIN => return Ok(()),
                        Errno::ECONNABORTED | Errno::EINTR | Errno::EPROTO => continue,
                        Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM => {
                            self.make_room();
                            return Ok(());
                        }
                        error => return Err(error),
                    },
                },
                Door::Inbox(inbox, bell) => match inbox.try_recv() {
                    Ok(stream) => stream,
                    Err(_) => {
                        // What comes between the look and this rings again.
                        let _ = bell.read();
                        match inbox.try_recv() {
                            Ok(stream) => stream,
                            Err(_) => return Ok(()),
                        }
                    }
                },
            };
            add(&self.counters.accepted, 1);
            self.enter(stream);
        }
        Ok(())
    }

    /// Begins with a connection. Mostly its request is there by now; only what waits is watched.
    fn enter(&mut self, stream: TcpStream) {
        if self.slots.len() - self.free.len() >= self.most {
            self.make_room();
        }
        let mut connection = Connection::new(stream, self.now);
        let next = connection.advance(&mut self.lent());
        if next == Next::Close {
            add(&self.counters.closed, 1);
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        connection.writing = next == Next::Write;
        let watched = self.epoll.add(connection.stream(), EpollEvent::new(flags(next), index as u64));
        self.slots[index] = Some(connection);
        if watched.is_err() {
            self.drop_one(index);
        }
    }

    fn advance(&mut self, index: usize) {
        let mut lent =
            Lent { scratch: &mut self.scratch, filling: &self.filling, counters: self.counters, now: self.now };
        let Some(connection) = &mut self.slots[index] else { return };
        let next = connection.advance(&mut lent);
        if next == Next::Close {
            return self.close(index);
        }
        let writing = next == Next::Write;
        if connection.writing != writing {
            connection.writing = writing;
            let mut event = EpollEvent::new(flags(next), index as u64);
            if self.epoll.modify(connection.stream(), &mut event).is_err() {
                self.drop_one(index);
            }
        }
    }

    fn lent(&mut self) -> Lent<'_> {
        Lent { scratch: &mut self.scratch, filling: &self.filling, counters: self.counters, now: self.now }
    }

    fn close(&mut self, index: usize) {
        self.slots[index] = None;
        self.free.push(index);
        add(&self.counters.closed, 1);
    }

    fn drop_one(&mut self, index: usize) {
        add(&self.counters.dropped, 1);
        self.close(index);
    }

    /// Closes connections that have not got on for longer than the server's patience.
    fn drop_silent(&mut self) {
        self.drop_before(self.now.saturating_sub(self.run.patience));
    }

    /// Closes the sixteenth of the connections that has been silent longest.
    fn make_room(&mut self) {
        let mut times: Vec<u64> = self.slots.iter().flatten().map(|connection| connection.since).collect();
        if times.is_empty() {
            // Others have all descriptors: there is nothing but to wait.
            thread::sleep(Duration::from_millis(1));
            return;
        }
        let nth = times.len() / 16;
        let (_, &mut time, _) = times.select_nth_unstable(nth);
        self.drop_before(time.saturating_add(1));
    }

    fn drop_before(&mut self, time: u64) {
        for index in 0..self.slots.len() {
            if self.slots[index].as_ref().is_some_and(|connection| connection.since < time) {
                self.drop_one(index);
            }
        }
    }
}

fn flags(next: Next) -> EpollFlags {
    if next == Next::Write { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN }
}

/// Accepts all connections in one thread and hands them to others in turn: what a server with one acceptor does.
pub fn accept(
    run: &Run,
    listener: &TcpListener,
    hands: &[(mpsc::SyncSender<TcpStream>, Arc<EventFd>)],
) -> Result<(), Errno> {
    let mut turn = 0;
    while !run.over.load(Ordering::Relaxed) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                Errno::EAGAIN => {
                    let deadline = Instant::now() + Duration::from_millis(WAIT.into());
                    crate::readable(listener, deadline).map_err(|_| Errno::EIO)?;
                    continue;
                }
                Errno::ECONNABORTED | Errno::EINTR | Errno::EPROTO => continue,
                Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM => {
                    run.crowded.store(true, Ordering::Relaxed);
                    for (_, bell) in hands {
                        let _ = bell.write(1);
                    }
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                error => return Err(error),
            },
        };
        let (hand, bell) = &hands[turn % hands.len()];
        turn += 1;
        // A thread that has ended takes no more.
        if hand.send(stream).is_ok() {
            let _ = bell.write(1);
        }
    }
    Ok(())
}
