//! A thread of the client: serves its connections by epoll.
//!
//! Sockets are edge-triggered and registered once per connection: each is used until it would block. The request is written right
//! after `connect`, before the first wait: on a short path the connection is established by then.

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags},
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use super::{
    Close, IntervalCounter, Run, nanos,
    schedule::Schedule,
    slot::{Slot, State},
    stop::{Failure, Stop},
};
use crate::{
    await_any,
    traffic::{
        Pattern,
        http::Reading,
        sockets::{Dial, dial, receive, send},
        wire,
    },
};

/// Bytes of a read.
const CHUNK: usize = 128 << 10;
/// Events per call of epoll_wait.
const EVENTS: usize = 256;
/// The interval of checks for requests that timed out, in nanoseconds.
const SWEEP: u64 = 100_000_000;
/// A larger request takes several segments, the last of which Nagle's algorithm would delay.
const SMALL: usize = 1200;

/// Runs one thread's share of the connections and of the rate.
pub(super) fn run(run: &Run, thread: usize, threads: usize, counted: IntervalCounter) -> Result<(), Stop> {
    let spec = run.spec;
    let count = spec.connections / threads + usize::from(thread < spec.connections % threads);
    let keeps = matches!(spec.pattern, Pattern::Rr(_) | Pattern::Http { keep_alive: true, .. });
    let request = wire::request(&spec.pattern);
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| Stop::System(error.desc().to_owned()))?;
    let worker = Worker {
        run,
        no_delay: keeps || request.len() > SMALL,
        request,
        keeps,
        epoll,
        slots: (0..count).map(|_| Slot::new(&spec.pattern)).collect(),
        idle: (0..count).collect(),
        schedule: Schedule::new(spec.rate, thread, threads),
        counted,
        scratch: vec![0; CHUNK],
        dialled: thread,
        failed_in_a_row: 0,
        last_response: 0,
    };
    worker.work()
}

struct Worker<'a> {
    run: &'a Run<'a>,
    request: Vec<u8>,
    /// Whether a connection carries more than one request.
    keeps: bool,
    no_delay: bool,
    epoll: Epoll,
    slots: Vec<Slot>,
    /// Slots without a request, the one that has been idle longest first.
    idle: VecDeque<usize>,
    schedule: Schedule,
    counted: IntervalCounter<'a>,
    scratch: Vec<u8>,
    /// The number of connections so far, to use sources in turn.
    dialled: usize,
    failed_in_a_row: u64,
    /// When the last response was completed.
    last_response: u64,
}

impl Worker<'_> {
    fn work(mut self) -> Result<(), Stop> {
        let outcome = self.event_loop();
        if outcome.is_ok() && !self.run.stopped() {
            self.count_unanswered();
        }
        self.counted.close();
        outcome
    }

    fn event_loop(&mut self) -> Result<(), Stop> {
        let end = self.run.end();
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut sweep = SWEEP;
        loop {
            let now = self.run.now();
            if now >= end || self.run.stopped() {
                return Ok(());
            }
            self.counted.advance(now);
            if now >= sweep {
                self.sweep(now)?;
                sweep = now + SWEEP;
            }
            self.begin_due(now)?;
            let count = self.wait(&mut events, end.min(sweep).min(self.counted.boundary()))?;
            for event in &events[..count] {
                self.advance(event.data() as usize)?;
            }
        }
    }

    /// Waits for events, until a request is due and a slot is idle, or until `until`.
    fn wait(&self, events: &mut [EpollEvent], until: u64) -> Result<usize, Stop> {
        let failed = |error: Errno| Stop::System(format!("cannot wait for sockets: {}", error.desc()));
        let due = self.schedule.next().filter(|_| !self.idle.is_empty());
        let timeout = match due {
            // Epoll's timeout is in milliseconds, too coarse for a schedule.
            Some(due) => {
                let deadline: Instant = self.run.start + Duration::from_nanos(due.min(until));
                let mut polled = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
                await_any(&mut polled, deadline)
                    .map_err(|error| Stop::System(format!("cannot wait for sockets: {error}")))?;
                EpollTimeout::ZERO
            }
            // After a request that failed at once, the next is due.
            None if !self.idle.is_empty() => EpollTimeout::ZERO,
            None => {
                let left = Duration::from_nanos(until.saturating_sub(self.run.now()));
                EpollTimeout::try_from(left.as_millis() as i32 + 1).unwrap_or(EpollTimeout::ZERO)
            }
        };
        match self.epoll.wait(events, timeout) {
            Err(Errno::EINTR) => Ok(0),
            result => result.map_err(failed),
        }
    }

    /// Starts requests that are due while slots are idle.
    fn begin_due(&mut self, now: u64) -> Result<(), Stop> {
        // In closed loop a slot that becomes idle at once is not used again here, so that the events of others are handled.
        for _ in 0..self.idle.len() {
            let Some(due) = self.schedule.take(now) else { break };
            let Some(index) = self.idle.pop_front() else { break };
            self.begin(index, due)?;
        }
        Ok(())
    }

    /// Starts a request that was due at `due`.
    fn begin(&mut self, index: usize, due: u64) -> Result<(), Stop> {
        let now = self.run.now();
        let slot = &mut self.slots[index];
        slot.begun = now;
        slot.due = if self.schedule.next().is_some() { due } else { now };
        slot.sent = 0;
        slot.response.reset();
        if slot.socket.is_some() {
            slot.state = State::Sending;
            return self.advance(index);
        }
        let spec = self.run.spec;
        let source = self.run.source(self.dialled);
        self.dialled += 1;
        let socket = dial(spec.to, source, spec.close == Close::Reset, self.no_delay)
            .map_err(|error| Stop::dialling(error, spec.to, source))?;
        let slot = &mut self.slots[index];
        slot.state = State::Connecting;
        slot.socket = Some(socket);
        self.advance(index)?;
        // Registered only if it still waits, and for writing only if it waits for room: that saves a wake-up.
        let slot = &self.slots[index];
        let Some(socket) = &slot.socket else { return Ok(()) };
        let room = match slot.state {
            State::Receiving | State::Ending | State::Idle => EpollFlags::empty(),
            State::Connecting | State::Sending => EpollFlags::EPOLLOUT,
        };
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET | room;
        let watched = self.epoll.add(socket, EpollEvent::new(flags, index as u64));
        watched.map_err(|error| Stop::dialling(Dial::Socket(error), spec.to, None))
    }

    /// Continues a connection until it would block.
    fn advance(&mut self, index: usize) -> Result<(), Stop> {
        loop {
            let slot = &mut self.slots[index];
            let Some(socket) = &slot.socket else { return Ok(()) };
            let again = match slot.state {
                State::Idle => {
                    self.check_idle(index);
                    false
                }
                State::Connecting | State::Sending => self.send_request(index)?,
                State::Receiving => self.receive_response(index)?,
                State::Ending => {
                    if receive(socket, &mut self.scratch) != Err(Errno::EAGAIN) {
                        slot.socket = None;
                        self.free(index);
                    }
                    false
                }
            };
            if !again {
                return Ok(());
            }
        }
    }

    /// Sends as much of a request as the socket takes; returns whether there is more to do at once.
    fn send_request(&mut self, index: usize) -> Result<bool, Stop> {
        let slot = &mut self.slots[index];
        let Some(socket) = &slot.socket else { return Ok(false) };
        match send(socket, &self.request[slot.sent..]) {
            Ok(sent) => {
                if slot.state == State::Connecting {
                    slot.state = State::Sending;
                    self.counted.tally.connections += 1;
                    self.counted.tally.connect.saturating_record(self.run.now() - slot.begun);
                }
                slot.sent += sent;
                self.counted.tally.sent += sent as u64;
                if slot.sent == self.request.len() {
                    slot.state = State::Receiving;
                    // The response cannot be there yet; an event will announce it.
                    return Ok(false);
                }
                Ok(true)
            }
            Err(error) => self.handle_error(index, error),
        }
    }

    /// Reads the received part of a response; returns whether there is more to do at once.
    fn receive_response(&mut self, index: usize) -> Result<bool, Stop> {
        let slot = &mut self.slots[index];
        let Some(socket) = &slot.socket else { return Ok(false) };
        let reading = match receive(socket, &mut self.scratch) {
            Ok(0) => match slot.response.end() {
                Reading::More => return self.fail(index, Failure::Closed).map(|()| false),
                done => done,
            },
            Ok(read) => {
                self.counted.tally.received += read as u64;
                match slot.response.take(&self.scratch[..read]) {
                    Reading::Wrong => return Err(self.protocol(read)),
                    // FIN may have arrived with these bytes, and would not trigger another edge.
                    Reading::More => return Ok(true),
                    done => done,
                }
            }
            Err(error) => return self.handle_error(index, error),
        };
        if let Reading::Done { status, keep_alive } = reading {
            self.complete(index, status, keep_alive)?;
        }
        // FIN may have arrived with these bytes as well.
        Ok(self.slots[index].state == State::Ending)
    }

    /// Handles a socket's error: returns false if it would block or its request has failed, and the reason to stop for other errors.
    fn handle_error(&mut self, index: usize, error: Errno) -> Result<bool, Stop> {
        match error {
            Errno::EAGAIN => Ok(false),
            Errno::ECONNRESET | Errno::EPIPE => self.fail(index, Failure::Reset).map(|()| false),
            error => Err(Stop::connecting(error, self.run.spec.to)),
        }
    }

    /// Handles an event on a connection without a request: drops it if the server has closed it or sent unexpected bytes.
    fn check_idle(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let Some(socket) = &slot.socket
            && receive(socket, &mut self.scratch) != Err(Errno::EAGAIN)
        {
            slot.socket = None;
        }
    }

    fn complete(&mut self, index: usize, status: u16, keep_alive: bool) -> Result<(), Stop> {
        let now = self.run.now();
        self.last_response = now;
        self.counted.advance(now);
        let slot = &mut self.slots[index];
        let good = (200..400).contains(&status);
        // The side that closes first keeps the port in TIME_WAIT. Once half of a system's ports are in that state, the search for a
        // free one takes more CPU time than the rest of a request. So a server that announces to close does it first.
        let ends = good && !keep_alive && self.run.spec.close == Close::Graceful;
        if !(ends || self.keeps && keep_alive) {
            slot.socket = None;
        }
        if !good {
            return self.count_failure(index, Failure::Status(status));
        }
        self.failed_in_a_row = 0;
        self.counted.tally.requests += 1;
        self.counted.tally.latency.saturating_record(now.saturating_sub(slot.due).max(1));
        if ends {
            slot.state = State::Ending;
        } else {
            self.free(index);
        }
        Ok(())
    }

    /// Closes the connection of a failed request.
    fn fail(&mut self, index: usize, failure: Failure) -> Result<(), Stop> {
        self.slots[index].socket = None;
        self.count_failure(index, failure)
    }

    fn count_failure(&mut self, index: usize, failure: Failure) -> Result<(), Stop> {
        let failures = &mut self.counted.tally.failures;
        *match failure {
            Failure::Reset => &mut failures.reset,
            Failure::Closed => &mut failures.closed,
            Failure::TimedOut => &mut failures.timed_out,
            Failure::Status(_) => &mut failures.status,
        } += 1;
        self.failed_in_a_row += 1;
        if self.failed_in_a_row >= (self.slots.len() as u64).max(100) {
            return Err(Stop::Failing { to: self.run.spec.to, times: self.failed_in_a_row, last: failure });
        }
        self.free(index);
        Ok(())
    }

    fn free(&mut self, index: usize) {
        self.slots[index].state = State::Idle;
        self.idle.push_back(index);
    }

    /// Fails the requests that have timed out.
    fn sweep(&mut self, now: u64) -> Result<(), Stop> {
        let spec = self.run.spec;
        let timeout = nanos(spec.timeout);
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.state != State::Idle && now.saturating_sub(slot.begun) >= timeout {
                if slot.state == State::Ending {
                    // The request was answered; only the server has not closed as announced.
                    slot.socket = None;
                    self.free(index);
                    continue;
                }
                if now.saturating_sub(self.last_response) >= timeout {
                    return Err(Stop::Silent { to: spec.to, seconds: spec.timeout });
                }
                self.fail(index, Failure::TimedOut)?;
            }
        }
        Ok(())
    }

    /// Counts requests that are due but not answered at the end, with the time since they were due as the least latency.
    fn count_unanswered(&mut self) {
        let end = self.run.end();
        let tally = &mut self.counted.tally;
        if self.schedule.next().is_none() {
            return;
        }
        let active = |slot: &&Slot| !matches!(slot.state, State::Idle | State::Ending);
        let begun = self.slots.iter().filter(active).map(|slot| slot.due);
        let begun: Vec<u64> = begun.collect();
        let not_begun = std::iter::from_fn(|| self.schedule.take(end.saturating_sub(1)));
        for due in begun.into_iter().chain(not_begun) {
            tally.unanswered += 1;
            tally.latency.saturating_record(end.saturating_sub(due).max(1));
        }
    }

    fn protocol(&self, read: usize) -> Stop {
        let wanted = match self.run.spec.pattern {
            Pattern::Http { .. } => "an HTTP/1 server",
            _ => "`fairlane load server`",
        };
        Stop::protocol(self.run.spec.to, &self.scratch[..read], wanted)
    }
}
