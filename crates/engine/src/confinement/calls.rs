//! System calls, by seccomp: each kind of thread makes those of its list, and any other one is refused with ENOSYS, and logged.
//!
//! It is refused, and does not end the process: where a list lacks a call, that a C library makes once a month or a guest can cause, all
//! guests would lose their network by it, again after each restart. Who took a thread over has as little of it either way. ENOSYS, as
//! libraries know what to do on a kernel without a call. What cannot go on without ends the process by its own error.
//!
//! The lists are data, `calls/*.json`: rules as seccompiler has them, those of `every.json` for all kinds. They are not kept by hand
//! alone: `fairlane/tests/command/calls.rs` runs a backend, watches which calls its threads make, and finds what is missing from a list
//! and what nobody makes. A rule that such a run cannot reach says why it is there, in a comment that begins with "unseen".

use super::Kind;
use fairlane_port::refused;
use seccompiler::{BpfMap, apply_filter, compile_from_json};
use serde_json::{Value, json};
use std::io;

/// What all kinds share.
const EVERY: &str = include_str!("calls/every.json");

/// The architecture that the lists are of.
const ARCHITECTURE: &str = "x86_64";

impl Kind {
    /// Its name in the compiled lists, and its own list.
    fn list(self) -> (&'static str, &'static str) {
        match self {
            Kind::Main => ("main", include_str!("calls/main.json")),
            Kind::Control => ("control", include_str!("calls/control.json")),
            Kind::Worker => ("worker", include_str!("calls/worker.json")),
            Kind::Metrics => ("metrics", include_str!("calls/metrics.json")),
            Kind::Xen => ("xen", include_str!("calls/xen.json")),
            Kind::Log => ("log", include_str!("calls/log.json")),
        }
    }
}

/// A list: what a kind of thread may do beside what all kinds may, or, of none, that. Objects with a `syscall`, and perhaps `args` and
/// a `comment`.
pub fn rules(kind: Option<Kind>) -> Vec<Value> {
    let list = kind.map_or(EVERY, |kind| kind.list().1);
    serde_json::from_str(list).expect("lists are tested")
}

/// All that a kind of thread may do.
fn all(kind: Kind) -> Vec<Value> {
    [rules(None), rules(Some(kind))].concat()
}

/// Why any system call can be made: the end of a sentence.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfiltered {
    #[error("there are no lists for {}, only for {ARCHITECTURE}", std::env::consts::ARCH)]
    Architecture,
    #[error("the lists are wrong: {0}")]
    Lists(seccompiler::Error),
    #[error("SIGSYS cannot be handled: {0}")]
    Signal(io::Error),
    #[error("this kernel has no seccomp filters ({0})")]
    Kernel(seccompiler::Error),
}

/// Compiled lists.
pub(super) struct Filters(BpfMap);

impl Filters {
    /// Compiles all.
    ///
    /// # Errors
    /// There are none for this architecture.
    pub fn new() -> Result<Filters, Unfiltered> {
        if std::env::consts::ARCH != ARCHITECTURE {
            return Err(Unfiltered::Architecture);
        }
        let filter = |kind| json!({ "mismatch_action": "trap", "match_action": "allow", "filter": all(kind) });
        let lists: serde_json::Map<_, _> =
            Kind::ALL.map(|kind| (kind.list().0.to_owned(), filter(kind))).into_iter().collect();
        let architecture = ARCHITECTURE.try_into().map_err(|_| Unfiltered::Architecture)?;
        let compiled = compile_from_json(Value::Object(lists).to_string().as_bytes(), architecture);
        compiled.map(Filters).map_err(Unfiltered::Lists)
    }

    /// Has this thread try whether the kernel takes them, which confines it.
    ///
    /// # Errors
    /// This kernel has no filters.
    pub fn tried(self) -> Result<Filters, Unfiltered> {
        refused::end_with_error().map_err(Unfiltered::Signal)?;
        match self.enter(Kind::Metrics) {
            Ok(()) => Ok(self),
            Err(error) => Err(Unfiltered::Kernel(error)),
        }
    }

    /// Has this thread keep to the list of a kind.
    ///
    /// # Errors
    /// What the system says.
    pub fn enter(&self, kind: Kind) -> Result<(), seccompiler::Error> {
        apply_filter(&self.0[kind.list().0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::libc;
    use std::collections::HashSet;

    #[test]
    fn another_call_is_refused_and_told_and_the_process_lives() {
        let confined = std::thread::spawn(|| {
            let _filters = Filters::new().and_then(Filters::tried)?;
            Ok::<_, Unfiltered>(std::fs::hard_link("/", "/").unwrap_err().raw_os_error())
        });
        assert_eq!(confined.join().unwrap().unwrap(), Some(Errno::ENOSYS as i32));
        assert_eq!(refused::take(), [libc::SYS_linkat as usize]);
        assert!(refused::take().is_empty());
    }

    #[test]
    fn lists_compile_and_say_nothing_twice() {
        assert!(Filters::new().is_ok());
        for kind in Kind::ALL {
            let rules = all(kind);
            let distinct: HashSet<String> =
                rules.iter().map(|rule| format!("{} {}", rule["syscall"], rule["args"])).collect();
            assert_eq!(distinct.len(), rules.len(), "{kind:?}");
        }
    }
}
