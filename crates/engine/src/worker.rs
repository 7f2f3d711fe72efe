//! A thread that carries the frames of one or more bridges: busy while there is work, asleep when there is none.
//!
//! Commands come as functions that run between two rounds ([`Worker::call`]), so none ever finds a frame half way.

use crate::bridge::Bridge;
use crate::clock::{Clock, Monotonic};
use crate::confinement;
use crate::failure;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use fairlane_core::PortId;
use fairlane_core::time::Nanos;
use fairlane_port::{Burst, Interest, Key, Poller};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl::set_timerslack;
use nix::unistd::Pid;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Without work for this long, the worker sleeps if it knows when there will be some.
const SPIN: Nanos = Nanos::from_micros(50);

/// Without work for this long, it sleeps anyhow. A guest that has to kick it awake, and wait for it, loses time: TCP between
/// two guests on two cores was measured at 6.4 Gbit/s with 200 us, 5.1 with 50 us or 1 ms, 4.4 with 5 us.
///
/// A worker that has one CPU for itself and everything else sleeps at once: who has frames for it may wait for that CPU, and
/// a driver domain's is taken from guests. With 200 us, TCP to a Xen guest cost dom0 and hypervisor 28,900 instructions a
/// frame, without 21,100.
const LINGER: Nanos = Nanos::from_micros(200);

/// While busy, descriptors are looked at this often.
const POLL: Nanos = Nanos::from_micros(50);

/// How late the system may wake the worker, in nanoseconds; its default of 50 us is three large frames at 10 Gbit/s.
const SLACK: u64 = 1_000;

/// Names the descriptor of commands in the poller; ports have a bridge and a number.
const COMMANDS: Key = Key(u32::MAX);

/// Bits of a key that are the port's number.
const PORT_BITS: u32 = 24;

/// What a worker works on, and what an command may change.
pub struct Work<C = Monotonic> {
    /// The bridges.
    pub bridges: Vec<Bridge>,
    /// The clock of all times that the bridges are told.
    pub clock: C,
    poller: Poller,
    stop: bool,
}

impl<C: Clock> Work<C> {
    /// The work on some bridges, whose ports wake nobody yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bridges: Vec<Bridge>, clock: C) -> io::Result<Work<C>> {
        Ok(Work { bridges, clock, poller: Poller::new()?, stop: false })
    }

    /// Has a port of a bridge wake the worker.
    ///
    /// # Errors
    /// What the system says.
    pub fn register(&mut self, bridge: usize, port: PortId) -> io::Result<()> {
        let key = Key((bridge as u32) << PORT_BITS | port.0);
        match self.bridges[bridge].port(port) {
            Some(port) => port.register(&self.poller, key),
            None => Ok(()),
        }
    }

    /// The bridge of this name, by its place.
    pub fn find(&self, link: &str) -> Option<usize> {
        self.bridges.iter().position(|bridge| bridge.name() == link)
    }

    fn event(&mut self, key: Key, number: u32, now: &mut Nanos) {
        let port = PortId(key.0 & ((1 << PORT_BITS) - 1));
        if let Some(bridge) = self.bridges.get_mut((key.0 >> PORT_BITS) as usize) {
            bridge.event(port, number, &self.poller, now, &self.clock);
        }
    }

    /// Sleeps until a port has something or the time has come. What was done since `now` makes it later by as much.
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

/// How long an command is waited for. A round takes microseconds; who holds a worker for so long (a frontend's pipe, a disk) holds
/// neither control clients nor the end of the process with it.
const ANSWER: Duration = Duration::from_secs(10);

/// A worker that does not answer, by the names of its links.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// Its thread was ended.
    #[error("the worker of {0} has ended")]
    Ended(String),
    /// Its thread is held by something. The command stands, and is carried out if it goes on.
    #[error("the worker of {} has not answered for {} s; it may yet do what it was told", .0, ANSWER.as_secs())]
    Silent(String),
}

impl Worker {
    /// Starts the thread, on one core if given, and has all ports wake it.
    ///
    /// # Errors
    /// What the system says: no such core, no descriptors left.
    pub fn start(bridges: Vec<Bridge>, clock: Monotonic, cpu: Option<usize>) -> io::Result<Worker> {
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
        let (commands, received) = unbounded();
        let (started, outcome) = bounded(1);
        let (signal, links) = (wakeup.clone(), name.clone());
        let linger = cpu.is_some() || std::thread::available_parallelism()?.get() > 1;
        let thread = std::thread::Builder::new().name("fairlane-worker".to_owned()).spawn(move || {
            let settled = settle_on(cpu);
            let failed = settled.is_err();
            confinement::enter(confinement::Kind::Worker);
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

    /// Has the worker run a function between two rounds, and waits for its answer.
    ///
    /// # Errors
    /// [`Gone`] if the thread ended, or does not answer for ten seconds.
    pub fn call<R: Send + 'static>(&self, command: impl FnOnce(&mut Work) -> R + Send + 'static) -> Result<R, Gone> {
        let (answer, answered) = bounded(1);
        let command: Command = Box::new(move |work| {
            // Who asked waits below; nobody else can miss the answer.
            let _ = answer.send(command(work));
        });
        let ended = || Gone::Ended(self.name.clone());
        self.commands.send(command).map_err(|_| ended())?;
        self.wakeup.write(1).map_err(|_| ended())?;
        answered.recv_timeout(ANSWER).map_err(|error| match error {
            RecvTimeoutError::Disconnected => ended(),
            RecvTimeoutError::Timeout => Gone::Silent(self.name.clone()),
        })
    }

    /// Ends the thread and closes its ports. Frames that were not taken stay in their rings. A thread that does not answer is left
    /// to the end of the process.
    pub fn end(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            match self.call(|work| work.stop = true) {
                Err(silent @ Gone::Silent(_)) => tracing::error!("{silent}: it is not waited for"),
                // A thread that panics ends the process, so there is no panic to be told of.
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

/// Makes the present thread fit for the work.
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

/// Rounds until told to stop. On a core of its own the worker never yields.
///
/// Between two rounds the clock is read once, after whatever the worker waited for: to a paravirtual Xen domain each reading is a
/// system call.
fn run(mut work: Work, commands: &Receiver<Command>, wakeup: &EventFd, own_core: bool, linger: bool) -> io::Result<()> {
    let mut burst = Burst::new();
    let mut ready = Vec::new();
    let mut now = work.clock.now();
    let (mut worked, mut polled) = (now, now);
    while !work.stop {
        let (mut busy, mut moved) = (false, false);
        let mut next = Nanos::NEVER;
        for bridge in &mut work.bridges {
            if moved {
                // What the bridges before it published is not this one's time.
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
        let due = work.bridges.iter().map(Bridge::next_event).fold(next, Nanos::min);
        let linger = match due {
            _ if !linger => Nanos(0),
            Nanos::NEVER => LINGER,
            _ => SPIN,
        };
        let sleeps = !busy && now.since(worked) >= linger;
        let looked = sleeps || now.since(polled) >= POLL;
        if sleeps {
            work.sleep(now, due, &mut ready)?;
        } else if looked {
            work.poller.wait(Nanos(0), &mut ready)?;
        } else if own_core {
            std::hint::spin_loop();
        } else {
            // Whoever else has something to do on this core comes first: most likely a guest, with frames for us.
            std::thread::yield_now();
        }
        now = work.clock.now();
        if looked {
            polled = now;
        }
        for (key, number) in ready.drain(..) {
            if key == COMMANDS {
                // Only resets the wakeup: whether it rang is known.
                let _ = wakeup.read();
                for command in commands.try_iter() {
                    command(&mut work);
                }
            } else {
                work.event(key, number, &mut now);
            }
        }
    }
    Ok(())
}
