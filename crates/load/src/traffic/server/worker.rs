//! A thread of the server: accepts connections or gets them from the acceptor, and serves them by epoll.
//!
//! Memory is bounded by the number of connections. When there are too many, or no file descriptor is left, those that have been
//! idle longest are closed. Connections that are idle, or send a request too slowly, for longer than the server's patience are closed
//! as well.

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
    connection::{CHUNK, Connection, Next, Shared},
    counters::{Counters, add},
};

const EVENTS: usize = 256;
/// The epoll data of new connections.
const INCOMING: u64 = u64::MAX;
/// The longest wait for events, in milliseconds, after which the end of the run is noticed.
const WAIT: u16 = 100;
/// The interval of checks for idle connections, in nanoseconds.
const SWEEP: u64 = 500_000_000;
/// Connections accepted before existing ones are served.
const BATCH: usize = 64;

/// The source of a thread's connections.
pub(super) enum Incoming {
    /// Its own listener.
    Listener(TcpListener),
    /// A queue from the acceptor, and the eventfd that wakes this thread.
    Queue(mpsc::Receiver<TcpStream>, Arc<EventFd>),
}

/// Serves until the run is over, with at most `most` connections.
pub(super) fn run(run: &Run, incoming: Incoming, most: usize, counters: &Counters) -> Result<(), Errno> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let event = EpollEvent::new(EpollFlags::EPOLLIN, INCOMING);
    match &incoming {
        Incoming::Listener(listener) => epoll.add(listener, event)?,
        Incoming::Queue(_, wakeup) => epoll.add(wakeup.as_fd(), event)?,
    }
    let (scratch, padding) = (vec![0; CHUNK], vec![b'.'; CHUNK]);
    let slots = Vec::with_capacity(most.min(1024));
    let mut worker = Worker { run, epoll, incoming, most, counters, scratch, padding, slots, free: Vec::new(), now: 0 };
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
                INCOMING => worker.accept_new()?,
                index => worker.advance(index as usize),
            }
        }
        if worker.now >= sweep {
            worker.drop_idle();
            sweep = worker.now + SWEEP;
        }
    }
    Ok(())
}

struct Worker<'a> {
    run: &'a Run,
    epoll: Epoll,
    incoming: Incoming,
    most: usize,
    counters: &'a Counters,
    scratch: Vec<u8>,
    padding: Vec<u8>,
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    now: u64,
}

impl Worker<'_> {
    /// Accepts new connections.
    fn accept_new(&mut self) -> Result<(), Errno> {
        for _ in 0..BATCH {
            let stream = match &self.incoming {
                Incoming::Listener(listener) => match listener.accept() {
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
                Incoming::Queue(queue, wakeup) => match queue.try_recv() {
                    Ok(stream) => stream,
                    Err(_) => {
                        // Clears the wakeup before the last check, so that no later connection is missed.
                        let _ = wakeup.read();
                        match queue.try_recv() {
                            Ok(stream) => stream,
                            Err(_) => return Ok(()),
                        }
                    }
                },
            };
            add(&self.counters.accepted, 1);
            self.serve_new(stream);
        }
        Ok(())
    }

    /// Serves a new connection, whose request has usually arrived. Registers it with epoll only if it has to wait.
    fn serve_new(&mut self, stream: TcpStream) {
        if self.slots.len() - self.free.len() >= self.most {
            self.make_room();
        }
        let mut connection = Connection::new(stream, self.now);
        let next = connection.advance(&mut self.shared());
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
        let mut shared =
            Shared { scratch: &mut self.scratch, padding: &self.padding, counters: self.counters, now: self.now };
        let Some(connection) = &mut self.slots[index] else { return };
        let next = connection.advance(&mut shared);
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

    fn shared(&mut self) -> Shared<'_> {
        Shared { scratch: &mut self.scratch, padding: &self.padding, counters: self.counters, now: self.now }
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

    /// Closes connections without progress for longer than the server's patience.
    fn drop_idle(&mut self) {
        self.drop_before(self.now.saturating_sub(self.run.patience));
    }

    /// Closes the sixteenth of the connections that have been idle longest.
    fn make_room(&mut self) {
        let mut times: Vec<u64> = self.slots.iter().flatten().map(|connection| connection.since).collect();
        if times.is_empty() {
            // Other threads have all descriptors: wait for them.
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

/// The acceptor: accepts all connections in one thread and passes them to the serving threads in turn.
pub(super) fn accept(
    run: &Run,
    listener: &TcpListener,
    queues: &[(mpsc::SyncSender<TcpStream>, Arc<EventFd>)],
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
                    for (_, wakeup) in queues {
                        let _ = wakeup.write(1);
                    }
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                error => return Err(error),
            },
        };
        let (queue, wakeup) = &queues[turn % queues.len()];
        turn += 1;
        // Fails if the thread has ended.
        if queue.send(stream).is_ok() {
            let _ = wakeup.write(1);
        }
    }
    Ok(())
}
