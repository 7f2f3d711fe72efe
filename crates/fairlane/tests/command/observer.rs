//! Which system calls the threads of a running backend make: each is stopped at each, as strace does (ptrace(2)).

use crate::place::Backend;
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

/// Names of calls, by the name of the thread that made them.
pub type Seen = BTreeMap<String, BTreeSet<&'static str>>;

/// Watches a backend, and all threads that it starts, until it ends. Nobody may wait for its end before: who waits for a process is also
/// told of its stops, and takes them from the observer.
pub struct Observer(JoinHandle<Seen>);

impl Observer {
    /// From now on.
    pub fn watch(backend: &Backend) -> Observer {
        let pid = backend.pid();
        let threads: Vec<(Pid, String)> = backend.threads().into_iter().map(|(tid, name, _)| (tid, name)).collect();
        let (begun, begins) = channel();
        let thread = std::thread::spawn(move || {
            let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
                | ptrace::Options::PTRACE_O_TRACECLONE
                | ptrace::Options::PTRACE_O_TRACEEXIT;
            for (tid, _) in &threads {
                ptrace::seize(*tid, options).expect("a process may trace its children");
                ptrace::interrupt(*tid).unwrap();
            }
            begun.send(()).unwrap();
            follow(pid, threads.into_iter().collect())
        });
        begins.recv().unwrap();
        Observer(thread)
    }

    /// What was seen, once the backend has ended.
    pub fn seen(self) -> Seen {
        self.0.join().unwrap()
    }
}

fn follow(pid: Pid, mut names: BTreeMap<Pid, String>) -> Seen {
    let mut seen = Seen::new();
    loop {
        // Only what this thread traces: children of the process are others' to wait for.
        let stopped = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
            Ok(status) => status,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return seen,
            Err(error) => panic!("waitpid: {error}"),
        };
        let (tid, signal) = match stopped {
            WaitStatus::PtraceSyscall(tid) => {
                // At its end a call has its answer there.
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
                // Its end is its parent's to hear of.
                let _ = ptrace::detach(tid, None);
                continue;
            }
            WaitStatus::PtraceEvent(tid, ..) => (tid, None),
            WaitStatus::Stopped(tid, signal) => (tid, Some(signal)),
            _ => continue,
        };
        go_on(tid, signal);
    }
}

fn go_on(tid: Pid, signal: Option<Signal>) {
    // It may have been killed meanwhile.
    let _ = ptrace::syscall(tid, signal);
}

/// What a thread is called. It has its parent's name at first.
fn name_of(pid: Pid, tid: Pid) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    name.map_or_else(|_| "gone".to_owned(), |name| name.trim().to_owned())
}
