//! Drops what the process no longer needs once everything is open: privileges, paths and system calls.
//!
//! A guest that takes over a thread must find nothing to continue with. Each thread is confined when it starts, because
//! capabilities, Landlock rules and seccomp filters belong to a thread; threads it starts inherit them. A new kind of thread needs
//! a [`Kind`], a list in `calls`, and [`spawn`], or a call of [`enter`] as its first line.
//!
//! Nothing happens before [`prepare`], which `fairlane up` calls unless told not to: the engine is also used in processes that do
//! other things.

pub mod calls;
mod capabilities;
mod paths;

pub(crate) use paths::Wish;

use crate::{failure, ports};
use calls::{Filters, Unfiltered};
use fairlane_policy::{Access, Card, Loaded};
use fairlane_port::refused;
use landlock::{RestrictionStatus, RulesetStatus};
use nix::sys::prctl::set_no_new_privs;
use paths::Rules;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::{OnceLock, mpsc};
use std::thread::JoinHandle;
use tracing::{info, warn};

/// The kinds of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handles signals, reads the policy again, notifies the service manager.
    Main,
    /// Answers control clients, and changes the running policy.
    Control,
    /// Forwards frames, and so faces guests.
    Worker,
    /// Serves the live page and metrics.
    Web,
    /// Talks to xenstore.
    Xen,
    /// Writes the log.
    Log,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] = [Kind::Main, Kind::Control, Kind::Worker, Kind::Web, Kind::Xen, Kind::Log];

    /// Whether it creates sockets, and so may have to give them to their owners.
    fn makes_sockets(self) -> bool {
        matches!(self, Kind::Main | Kind::Control | Kind::Worker)
    }
}

/// The confinement of this process.
struct Confinement {
    rules: Rules,
    /// The system call filters, or why there are none.
    filters: Result<Filters, Unfiltered>,
    /// The result of trying the Landlock rules.
    ruled: RestrictionStatus,
    /// Number of capabilities before.
    privileges: usize,
    /// Whether the process started with Xen cards.
    xen: bool,
    /// Whether it started with sockets that have an owner or a group.
    gives: bool,
    /// Whether it could give sockets to other users.
    could_give: bool,
}

/// The confinement of this process, if it was prepared.
static CONFINEMENT: OnceLock<Confinement> = OnceLock::new();

/// Confines all threads of the engine that start from now on to what serving the policy in `file` needs. It is tried first: what
/// the kernel does not support is left out, and [`log`] reports it.
///
/// # Errors
/// The kernel supports a part but refuses it, or a user or group of the policy is unknown.
pub fn prepare(loaded: &Loaded, file: &Path) -> Result<(), crate::Error> {
    let policy = &loaded.policy;
    let said = |error: &dyn std::fmt::Display| {
        crate::Error::failed("cannot confine this process", format!("{error}; --unconfined does without"))
    };
    let xen = policy.takes_found() || policy.vifs.iter().any(|vif| matches!(vif.card, Card::Xen { .. }));
    let rules = Rules::new(policy, file, xen).map_err(|error| said(&error))?;
    let filters = Filters::new();
    // While lookups are still possible.
    ports::look_up(&mut loaded.clone())?;
    let has_owner = |access: &Access| access.owner.is_some() || access.group.is_some();
    let of_vifs =
        policy.vifs.iter().any(|vif| matches!(&vif.card, Card::VhostUser { access, .. } if has_owner(access)));
    let gives = of_vifs || has_owner(&policy.sockets);
    let could_give = capabilities::can_give().map_err(|error| said(&error))?;
    let privileges = capabilities::count().map_err(|error| said(&error))?;
    // On a thread of its own, which ends confined.
    let trial = std::thread::scope(|scope| {
        let tried = std::thread::Builder::new().spawn_scoped(scope, || {
            let ruled = give_up(&rules, Kind::Web, gives)?;
            Ok::<_, Box<dyn Error + Send + Sync>>((ruled, filters.and_then(Filters::tried)))
        });
        tried.map(|thread| thread.join().unwrap_or_else(|_| Err("its trial panicked".into())))
    });
    let (ruled, filters) = trial.map_err(|error| said(&error))?.map_err(|error| said(&error))?;
    let confinement = Confinement { rules, filters, ruled, privileges, xen, gives, could_give };
    CONFINEMENT.set(confinement).map_err(|_| said(&"it is confined already"))
}

/// Confines this thread and those that it starts to the needs of its kind. To be called once, after it has opened what it cannot
/// open later. If the kernel refuses what it supports, the process ends: a thread that is wrongly believed to be confined would be
/// worse.
pub fn enter(kind: Kind) {
    if let Some(confinement) = CONFINEMENT.get()
        && let Err(error) = confinement.enter(kind)
    {
        failure::end(&format!("cannot confine a thread ({kind:?}): {error}"));
    }
}

/// Starts a thread, and returns when it is confined. So the resources that confining takes for a moment, such as a descriptor, are
/// taken one thread after the other at startup, and not while guests are served.
///
/// # Errors
/// No thread can be started.
/// No thread left.
pub(crate) fn spawn(kind: Kind, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (entered, enters) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        enter(kind);
        // The caller waits for it.
        let _ = entered.send(());
        work();
    })?;
    // A thread that cannot be confined ends the process.
    let _ = enters.recv();
    Ok(thread)
}

/// Logs what is in force, and what this kernel lacks.
pub fn log() {
    let Some(Confinement { filters, ruled, privileges, gives, could_give, .. }) = CONFINEMENT.get() else { return };
    let left =
        if *gives && *could_give { "CAP_CHOWN alone, to give sockets to their owners," } else { "no capability" };
    info!("confined: {left} is left of {privileges}, and none can be gained");
    paths::log(ruled);
    match filters {
        Ok(_) => {
            info!(
                "confined: each thread makes the system calls of its kind (seccomp); any other is refused, and logged"
            )
        }
        Err(why) => warn!("not confined: any system call can be made, as {why}"),
    }
}

/// Logs the system calls that were refused since the last call. What failed because of them is reported elsewhere.
pub fn log_refused() {
    for number in refused::take() {
        warn!(
            "a thread made the system call {number}, which no list for its kind has, and was refused it (ENOSYS): please report it, \
             and run with --unconfined if something fails without"
        );
    }
}

/// The system's error, and, if confinement caused it, what would be right.
pub(crate) fn explain(error: &io::Error, wish: Wish) -> String {
    let is_ruled = |confinement: &&Confinement| confinement.ruled.ruleset != RulesetStatus::NotEnforced;
    match CONFINEMENT.get().filter(is_ruled) {
        Some(confinement) if error.kind() == io::ErrorKind::PermissionDenied => {
            format!("{error}; {}", confinement.rules.advice(wish))
        }
        _ => error.to_string(),
    }
}

/// Whether Xen's devices can be opened: only if the process started with Xen cards.
pub(crate) fn has_xen() -> bool {
    CONFINEMENT.get().is_none_or(|confinement| confinement.xen)
}

/// Whether this process is to be confined, so that no lookup through libraries is possible.
pub(crate) fn is_prepared() -> bool {
    CONFINEMENT.get().is_some()
}

/// Checks that sockets can be given to owners and groups.
///
/// # Errors
/// The process started without any, and dropped the capability.
pub(crate) fn sees_to_owners() -> Result<(), CannotGive> {
    match CONFINEMENT.get() {
        Some(Confinement { gives: false, could_give: true, .. }) => Err(CannotGive),
        _ => Ok(()),
    }
}

/// No socket can be given to another user any more.
#[derive(Debug, thiserror::Error)]
#[error("this backend started without owners and groups of sockets and gave up CAP_CHOWN: restart it with this policy")]
pub(crate) struct CannotGive;

/// Drops everything but system calls. Returns the result of the Landlock rules.
fn give_up(rules: &Rules, kind: Kind, gives: bool) -> Result<RestrictionStatus, Box<dyn Error + Send + Sync>> {
    set_no_new_privs()?;
    capabilities::give_up(gives && kind.makes_sockets())?;
    rules.enter(kind)
}

impl Confinement {
    fn enter(&self, kind: Kind) -> Result<(), Box<dyn Error + Send + Sync>> {
        give_up(&self.rules, kind, self.gives)?;
        // Last, because the steps before it need system calls that are on no list.
        self.filters.as_ref().map_or(Ok(()), |filters| Ok(filters.enter(kind)?))
    }
}
