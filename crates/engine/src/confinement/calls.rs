//! System calls, by seccomp: each kind of thread may make those on its list. Any other is refused with ENOSYS and logged.
//!
//! A call that is not on the list does not end the process: a list may lack a call that a C library makes once a month or a guest
//! can cause, and then all guests would lose their network, again after each restart. An attacker who took over a thread gains
//! nothing either way. ENOSYS is what libraries expect from a kernel without a call. An operation that cannot continue fails with
//! its own error.
//!
//! The lists are data, `calls/*.json`: rules in seccompiler's form; those of `every.json` apply to all kinds. A test,
//! `fairlane/tests/command/calls.rs`, runs a backend, observes the calls of its threads, and reports calls missing from a list and
//! calls that no thread makes. A rule that the test cannot reach has a comment with its reason, which starts with "unseen".

use super::Kind;
use fairlane_port::refused;
use seccompiler::{BpfMap, apply_filter, compile_from_json};
use serde_json::{Value, json};
use std::io;

/// The rules for all kinds.
const EVERY: &str = include_str!("calls/every.json");

/// The architecture of the lists.
const ARCHITECTURE: &str = "x86_64";

impl Kind {
    /// Its name in the compiled lists, and its own list.
    fn list(self) -> (&'static str, &'static str) {
        match self {
            Kind::Main => ("main", include_str!("calls/main.json")),
            Kind::Control => ("control", include_str!("calls/control.json")),
            Kind::Worker => ("worker", include_str!("calls/worker.json")),
            Kind::Web => ("web", include_str!("calls/web.json")),
            Kind::Xen => ("xen", include_str!("calls/xen.json")),
            Kind::Log => ("log", include_str!("calls/log.json")),
        }
    }
}

/// The rules of a kind, or for none those of all kinds: objects with a `syscall`, and optionally `args` and a `comment`.
pub fn rules(kind: Option<Kind>) -> Vec<Value> {
    let list = kind.map_or(EVERY, |kind| kind.list().1);
    serde_json::from_str(list).expect("lists are tested")
}

/// All rules of a kind.
fn all(kind: Kind) -> Vec<Value> {
    [rules(None), rules(Some(kind))].concat()
}

/// Why all system calls are allowed: the end of a sentence.
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
    /// Compiles all lists.
    ///
    /// # Errors
    /// This architecture has no lists.
    pub(super) fn new() -> Result<Filters, Unfiltered> {
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

    /// Tries on this thread whether the kernel accepts the filters, which confines the thread.
    ///
    /// # Errors
    /// The kernel has no filters.
    pub(super) fn tried(self) -> Result<Filters, Unfiltered> {
        refused::end_with_error().map_err(Unfiltered::Signal)?;
        match self.enter(Kind::Web) {
            Ok(()) => Ok(self),
            Err(error) => Err(Unfiltered::Kernel(error)),
        }
    }

    /// Confines this thread to the list of a kind.
    ///
    /// # Errors
    /// The kernel refuses the filter.
    pub(super) fn enter(&self, kind: Kind) -> Result<(), seccompiler::Error> {
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
