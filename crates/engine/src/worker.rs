//! A thread that runs one or more bridges: it polls while there is work, and sleeps otherwise.
//!
//! Commands are functions that run between two rounds ([`Worker::call`]), so none sees a frame half forwarded.

use crate::bridge::Bridge;
use crate::claim::Claim;
use crate::clock::{Clock, Monotonic};
use crate::confinement;
use crate::failure;
use fairlane_core::PortId;
use fairlane_core::time::Nanos;
use fairlane_port::handover::Resting;
use fairlane_port::{Burst, Interest, Key, Poller};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl::set_timerslack;
use nix::unistd::Pid;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// After this long without work, the worker sleeps if it knows when there will be some.
pub const SPIN: Nanos = Nanos::from_micros(50);

/// After this long without work, it sleeps in any case. A guest that has to kick it awake loses time: TCP between two guests on two
/// cores was measured at 6.4 Gbit/s with 200 us, 5.1 with 50 us or 1 ms, 4.4 with 5 us.
///
/// A worker that shares its only CPU with everything else sleeps at once: its senders may wait for that CPU, and a driver domain
/// takes it from guests. TCP to a Xen guest cost dom0 and hypervisor 28,900 instructions per frame with 200 us, and 21,100 without.
pub const LINGER: Nanos = Nanos::from_micros(200);

/// How often descriptors are polled while there is work.
const POLL: Nanos = Nanos::from_micros(50);

/// Timer slack in nanoseconds: how late the kernel may wake the worker. The default of 50 us is the time of three large frames at
/// 10 Gbit/s.
const SLACK: u64 = 1_000;

/// How long a worker that ends delivers frames that it has accepted. It ends earlier if there are none, so this is for guests that do
/// not take theirs; meanwhile all guests of the worker have no network.
const DRAIN: Nanos = Nanos::from_millis(10);

/// How long it sleeps between two looks at such guests.
const PAUSE: Duration = Duration::from_micros(50);

/// The key of the command wakeup in the poller; ports' keys consist of bridge and number.
const COMMANDS: Key = Key(u32::MAX);

/// Number of key bits for the port.
const PORT_BITS: u32 = 24;

/// The state of a worker, which commands may change.
pub struct Work<C = Monotonic> {
    /// The bridges.
    pub bridges: Vec<Bridge>,
    /// The clock of all bridges.
    pub clock: C,
    /// How long it has been moving frames, or had more to move while other threads had its core.
    pub busy: Nanos,
    poller: Poller,
    stop: bool,
}

impl<C: Clock> Work<C> {
    /// A state with these bridges, whose ports do not wake the worker yet.
    ///
    /// # Errors
    /// The poller cannot be created.
    pub fn new(bridges: Vec<Bridge>, clock: C) -> io::Result<Work<C>> {
        Ok(Work { bridges, clock, busy: Nanos(0), poller: Poller::new()?, stop: false })
    }

    /// Lets a port of a bridge wake the worker.
    ///
    /// # Errors
    /// The port's descriptors cannot be registered.
    pub fn register(&mut self, bridge: usize, port: PortId) -> io::Result<()> {
        let key = Key((bridge as u32) << PORT_BITS | port.0);
        let now = self.clock.now();
        let bridge = &mut self.bridges[bridge];
        // What is found connected has no event that would tell of its limit.
        bridge.apply_limit(port, now);
        match bridge.port(port) {
            Some(port) => port.register(&self.poller, key),
            None => Ok(()),
        }
    }

    /// The index of the bridge with this name.
    pub fn find(&self, link: &str) -> Option<usize> {
        self.bridges.iter().position(|bridge| bridge.name() == link)
    }

    fn event(&mut self, key: Key, number: u32, now: &mut Nanos) {
        let port = PortId(key.0 & ((1 << PORT_BITS) - 1));
        if let Some(bridge) = self.bridges.get_mut((key.0 >> PORT_BITS) as usize) {
            bridge.event(port, number, &self.poller, now, &self.clock);
        }
    }

    /// Sleeps until a port has an event or `next`. The time to enable notifications counts from `now`.
    fn sleep(&mut self, now: Nanos, next: Nanos, ready: &mut Vec<(Key, u32)>) -> io::Result<()> {
        let mut awake = false;
        for bridge in &mut self.bridges {
            awake |= bridge.enable_notifications();
        }
        let timeout = match next {
            _ if awake => Nanos(0),
            Nanos::NEVER => Nanos::NEVER,
            next => next.since(now),
        };
        let slept = self.poller.wait(timeout, ready);
        for bridge in &mut self.bridges {
            bridge.disable_notifications();
        }
        slept
    }
}

type Command = Box<dyn FnOnce(&mut Work) + Send>;

/// A running worker.
pub struct Worker {
    name: String,
    commands: Sender<Command>,
    wakeup: Arc<EventFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How long to wait for a command's result. A round takes microseconds. If something blocks a worker this long (a frontend's pipe,
/// a disk), it must not block control clients or the end of the process as well.
const ANSWER: Duration = Duration::from_secs(10);

/// A worker that does not respond, by the names of its links.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// Its thread has ended.
    #[error("the worker of {0} has ended")]
    Ended(String),
    /// Its thread is blocked. It carries out the command if it continues.
    #[error("the worker of {} has not answered for {} s; it carries out the command if it continues", .0, ANSWER.as_secs())]
    Silent(String),
}

impl Worker {
    /// Starts the thread, on one core if given, and lets all ports wake it.
    ///
    /// # Errors
    /// No such core, or no file descriptors left.
    pub fn start(bridges: Vec<Bridge>, clock: Monotonic, cpu: Option<usize>) -> io::Result<Worker> {
        Worker::start_as(bridges, clock, cpu, || confinement::enter(confinement::Kind::Worker))
    }

    /// The same, from a thread that is confined as a worker. Its thread inherits that.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn start_confined(bridges: Vec<Bridge>, clock: Monotonic, cpu: Option<usize>) -> io::Result<Worker> {
        Worker::start_as(bridges, clock, cpu, || ())
    }

    fn start_as(
        bridges: Vec<Bridge>,
        clock: Monotonic,
        cpu: Option<usize>,
        begin: impl FnOnce() + Send + 'static,
    ) -> io::Result<Worker> {
        let names: Vec<&str> = bridges.iter().map(Bridge::name).collect();
        let name = names.join(", ");
        let mut work = Work::new(bridges, clock)?;
        let wakeup = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        work.poller.add(wakeup.as_fd(), COMMANDS, 0, Interest::Read)?;
        for bridge in 0..work.bridges.len() {
            for port in work.bridges[bridge].ports() {
                work.register(bridge, port)?;
            }
        }
        let (commands, received) = mpsc::channel();
        let (started, outcome) = mpsc::sync_channel(1);
        let (signal, links) = (wakeup.clone(), name.clone());
        let linger = cpu.is_some() || std::thread::available_parallelism()?.get() > 1;
        let thread = std::thread::Builder::new().name("fairlane-worker".to_owned()).spawn(move || {
            let settled = settle_on(cpu);
            let failed = settled.is_err();
            begin();
            // The receiver waits for it.
            let _ = started.send(settled);
            if failed {
                return;
            }
            match catch_unwind(AssertUnwindSafe(|| run(work, &received, &signal, cpu.is_some(), linger))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failure::end(&format!("the worker of {links} cannot go on: {error}")),
                Err(_) => failure::end(&format!("the worker of {links} panicked")),
            }
        })?;
        outcome.recv().unwrap_or_else(|_| Err(io::Error::other("a worker ended before it began")))?;
        Ok(Worker { name, commands, wakeup, thread: Mutex::new(Some(thread)) })
    }

    /// Runs a function on the worker between two rounds and returns its result.
    ///
    /// # Errors
    /// [`Gone`] if the thread ended, or does not respond for ten seconds.
    pub fn call<R: Send + 'static>(&self, command: impl FnOnce(&mut Work) -> R + Send + 'static) -> Result<R, Gone> {
        self.answered(|answer| {
            Box::new(move |work| {
                // The caller waits; no one else could miss the result.
                let _ = answer.send(command(work));
            })
        })
    }

    /// Stops the worker between two rounds, with its ports' peers left to another process. It takes them back when what this returns is
    /// dropped.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn rest(&self) -> Result<Resting, Gone> {
        let (resting, rest) = Resting::new();
        self.answered(|answer| {
            Box::new(move |work| {
                let_go(work);
                // As above.
                let _ = answer.send(());
                rest.end();
                take_back(work);
            })
        })?;
        Ok(resting)
    }

    /// Has the worker carry out a command, and waits for what it answers.
    fn answered<R>(&self, command: impl FnOnce(Sender<R>) -> Command) -> Result<R, Gone> {
        let (answer, answered) = mpsc::channel();
        let ended = || Gone::Ended(self.name.clone());
        self.commands.send(command(answer)).map_err(|_| ended())?;
        self.wakeup.write(1).map_err(|_| ended())?;
        answered.recv_timeout(ANSWER).map_err(|error| match error {
            RecvTimeoutError::Disconnected => ended(),
            RecvTimeoutError::Timeout => Gone::Silent(self.name.clone()),
        })
    }

    /// Ends the thread and closes its ports. Frames that were not consumed stay in their rings, and those that were are delivered, as
    /// far as their receivers take them within 10 ms. A thread that does not respond is
    /// left to the end of the process.
    pub fn end(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            match self.call(|work| work.stop = true) {
                Err(silent @ Gone::Silent(_)) => tracing::error!("{silent}; the process ends without it"),
                // A thread that panics ends the process, so there is no panic to report.
                Ok(()) | Err(Gone::Ended(_)) => drop(thread.join()),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Prepares the present thread.
fn settle_on(cpu: Option<usize>) -> io::Result<()> {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &set)
            .map_err(|error| io::Error::other(format!("cannot pin a worker to cpu {cpu}: {error}")))?;
    }
    set_timerslack(SLACK)?;
    Ok(())
}

/// Runs rounds until told to stop. On a core of its own the worker never yields.
///
/// The clock is read once between two rounds, after sleep, and twice more if others go first: in a paravirtual Xen domain each reading is
/// a system call.
fn run(mut work: Work, commands: &Receiver<Command>, wakeup: &EventFd, own_core: bool, linger: bool) -> io::Result<()> {
    let mut burst = Burst::new();
    let mut ready = Vec::new();
    let mut now = work.clock.now();
    let (mut worked, mut polled) = (now, now);
    let mut claim = Claim::new(now);
    while !work.stop {
        let (began, mut busy, mut moved) = (now, false, false);
        let mut next = Nanos::NEVER;
        for bridge in &mut work.bridges {
            if moved {
                // The time of the previous bridges' publishing does not belong to this one.
                now = work.clock.now();
            }
            let round = bridge.round(&mut burst, now, &work.clock);
            busy |= round.busy;
            moved |= round.frames > 0;
            next = next.min(round.next);
            now = round.end;
        }
        if busy || moved {
            worked = now;
        }
        let leaves = claim.is_weak(now);
        let due = work.bridges.iter_mut().map(Bridge::next_event).fold(next, Nanos::min);
        let linger = match due {
            _ if !linger || leaves => Nanos(0),
            Nanos::NEVER => LINGER,
            _ => SPIN,
        };
        let sleeps = !busy && now.since(worked) >= linger;
        let looked = sleeps || now.since(polled) >= POLL;
        let mut done = None;
        if sleeps {
            done = Some(now);
            work.sleep(now, due, &mut ready)?;
        } else if looked {
            work.poller.wait(Nanos(0), &mut ready)?;
        } else if own_core || leaves {
            std::hint::spin_loop();
        } else {
            // Other threads on this core go first: most likely a guest, with frames for this worker.
            let left = work.clock.now();
            std::thread::yield_now();
            claim.gave_way(left, work.clock.now());
            done = Some(left);
        }
        now = work.clock.now();
        if moved {
            let done = done.unwrap_or(now);
            // Others' turn counts as well if frames wait for this worker meanwhile: it has no time to spare.
            work.busy.0 += if busy { now } else { done }.since(began).0;
            claim.moved(began, done);
        }
        if looked {
            polled = now;
        }
        for (key, number) in ready.drain(..) {
            if key == COMMANDS {
                // Only resets the wakeup.
                let _ = wakeup.read();
                for command in commands.try_iter() {
                    command(&mut work);
                }
            } else {
                work.event(key, number, &mut now);
            }
        }
    }
    drain(&mut work, &mut burst);
    Ok(())
}

/// Leaves all peers to another process.
fn let_go(work: &mut Work) {
    drain(work, &mut Burst::new());
    work.bridges.iter_mut().for_each(Bridge::let_go);
}

/// Goes on with all peers.
fn take_back(work: &mut Work) {
    let now = work.clock.now();
    work.bridges.iter_mut().for_each(|bridge| bridge.take_back(now));
}

/// Delivers what the bridges have accepted, for at most [`DRAIN`].
fn drain(work: &mut Work, burst: &mut Burst) {
    // What an uplink has read, but not offered in full, is in no ring any more: one more round takes it.
    for bridge in &mut work.bridges {
        bridge.round(burst, work.clock.now(), &work.clock);
    }
    let end = work.clock.now() + DRAIN;
    loop {
        let now = work.clock.now();
        let rests = work.bridges.iter_mut().map(|bridge| bridge.drain(burst, now, &work.clock)).min();
        if now >= end || rests.is_none_or(|next| next == Nanos::NEVER) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}
