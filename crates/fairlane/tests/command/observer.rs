//! Records the system calls of the threads of a running backend by stopping them at each call, as strace does (ptrace(2)).

use crate::workspace::Backend;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use syscalls::Sysno;

/// Names of system calls, by the name of the thread that made them.
pub(crate) type Seen = BTreeMap<String, BTreeSet<&'static str>>;

/// Traces a backend, and all threads that it starts, until it ends. No other thread may wait for the backend meanwhile: it would
/// receive the stops instead of the observer.
pub(crate) struct Observer(JoinHandle<Seen>);

impl Observer {
    /// Starts to trace a backend.
    pub(crate) fn watch(backend: &Backend) -> Observer {
        let pid = backend.pid();
        let threads: Vec<(Pid, String)> = backend.threads().into_iter().map(|(tid, name, _)| (tid, name)).collect();
        let (started, is_started) = channel();
        let thread = std::thread::spawn(move || {
            let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
                | ptrace::Options::PTRACE_O_TRACECLONE
                | ptrace::Options::PTRACE_O_TRACEEXIT;
            for (tid, _) in &threads {
                ptrace::seize(*tid, options).expect("a process may trace its children");
                ptrace::interrupt(*tid).unwrap();
            }
            started.send(()).unwrap();
            follow(pid, threads.into_iter().collect())
        });
        is_started.recv().unwrap();
        Observer(thread)
    }

    /// The recorded calls, after the backend has ended.
    pub(crate) fn seen(self) -> Seen {
        self.0.join().unwrap()
    }
}

fn follow(pid: Pid, mut names: BTreeMap<Pid, String>) -> Seen {
    let mut seen = Seen::new();
    loop {
        // Only threads traced by this thread: other threads wait for children of the process.
        let stopped = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
            Ok(status) => status,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return seen,
            Err(error) => panic!("waitpid: {error}"),
        };
        let (tid, signal) = match stopped {
            WaitStatus::PtraceSyscall(tid) => {
                // At the entry of a call, rax is -ENOSYS; at its exit, rax has the result.
                if let Ok(registers) = ptrace::getregs(tid)
                    && registers.rax as i64 == -i64::from(libc::ENOSYS)
                {
                    let name = names.entry(tid).or_insert_with(|| name_of(pid, tid)).clone();
                    let call = Sysno::new(registers.orig_rax as usize).map_or("unknown", |call| call.name());
                    seen.entry(name).or_default().insert(call);
                }
                (tid, None)
            }
            WaitStatus::PtraceEvent(tid, _, event) if event == ptrace::Event::PTRACE_EVENT_EXIT as i32 => {
                // Its parent waits for its end.
                let _ = ptrace::detach(tid, None);
                continue;
            }
            WaitStatus::PtraceEvent(tid, ..) => (tid, None),
            WaitStatus::Stopped(tid, signal) => (tid, Some(signal)),
            _ => continue,
        };
        resume(tid, signal);
    }
}

fn resume(tid: Pid, signal: Option<Signal>) {
    // Fails if it was killed meanwhile.
    let _ = ptrace::syscall(tid, signal);
}

/// The name of a thread. A new thread has its parent's name at first.
fn name_of(pid: Pid, tid: Pid) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    name.map_or_else(|_| "gone".to_owned(), |name| name.trim().to_owned())
}
