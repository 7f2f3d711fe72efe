//! What the process gives up once it has opened what it needs: privileges, paths and system calls.
//!
//! A guest that took a thread over is to find nothing there to go on with. Each thread enters for itself as it begins, because
//! capabilities, Landlock's rules and filters of system calls are a thread's; what it starts later inherits them. A new kind of thread
//! takes a [`Kind`], a list in `calls` and [`spawn`], or a call of [`enter`] as its first line.
//!
//! Nothing happens before [`prepare`], which `fairlane up` calls unless it is told not to: the engine is also used in processes that have other
//! things to do.

pub mod calls;
mod capabilities;
mod paths;

pub(crate) use paths::Wish;

use crate::{failure, ports};
use calls::{Filters, Unfiltered};
use crossbeam_channel::bounded;
use fairlane_policy::{Access, Card, Policy};
use fairlane_port::refused;
use landlock::{RestrictionStatus, RulesetStatus};
use nix::sys::prctl::set_no_new_privs;
use paths::Rules;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use tracing::{info, warn};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Follows signals, reads the policy again, tells the service manager.
    Main,
    /// Answers control clients, and changes what runs.
    Control,
    /// Carries frames, and so faces guests.
    Worker,
    /// Serves the page of metrics.
    Metrics,
    /// Talks with xenstore.
    Xen,
    /// Writes the log.
    Log,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [Kind::Main, Kind::Control, Kind::Worker, Kind::Metrics, Kind::Xen, Kind::Log];

    /// Whether it makes sockets, and so may have to give them to their owners.
    fn makes_sockets(self) -> bool {
        matches!(self, Kind::Main | Kind::Control | Kind::Worker)
    }
}

/// What is given up, and what this kernel makes of it.
struct Confinement {
    rules: Rules,
    /// Or why there are none.
    filters: Result<Filters, Unfiltered>,
    /// What came of the rules on trial.
    ruled: RestrictionStatus,
    /// Capabilities that there were.
    privileges: usize,
    /// Whether the process began with Xen's cards.
    xen: bool,
    /// Whether it began with sockets that have an owner or a group.
    gives: bool,
    /// Whether it could give others more than that.
    could_give: bool,
}

/// The confinement of this process, if it is to have one.
static CONFINEMENT: OnceLock<Confinement> = OnceLock::new();

/// Has all threads of the engine that begin from now on give up what serving a policy, which is in `file`, does not take. It is tried
/// out first: what the kernel does not know is left out, and told by [`log`].
///
/// # Errors
/// The system refuses what it knows, or does not know a name of the policy's.
pub fn prepare(policy: &Policy, file: &Path) -> Result<(), crate::Error> {
    let said = |error: &dyn std::fmt::Display| {
        crate::Error::failed("cannot confine this process", format!("{error}; --unconfined does without"))
    };
    let xen = policy.takes_found() || policy.vifs.iter().any(|vif| matches!(vif.card, Card::Xen { .. }));
    let rules = Rules::new(policy, file, xen).map_err(|error| said(&error))?;
    let filters = Filters::new();
    // While anybody can be asked.
    ports::look_up(&mut policy.clone())?;
    let has_owner = |access: &Access| access.owner.is_some() || access.group.is_some();
    let gives = policy.vifs.iter().any(|vif| matches!(&vif.card, Card::VhostUser { access, .. } if has_owner(access)));
    let could_give = capabilities::can_give().map_err(|error| said(&error))?;
    let privileges = capabilities::count().map_err(|error| said(&error))?;
    // On a thread of its own, which ends confined.
    let trial = std::thread::scope(|scope| {
        let tried = std::thread::Builder::new().spawn_scoped(scope, || {
            let ruled = give_up(&rules, Kind::Metrics, gives)?;
            Ok::<_, Box<dyn Error + Send + Sync>>((ruled, filters.and_then(Filters::tried)))
        });
        tried.map(|thread| thread.join().unwrap_or_else(|_| Err("its trial panicked".into())))
    });
    let (ruled, filters) = trial.map_err(|error| said(&error))?.map_err(|error| said(&error))?;
    let confinement = Confinement { rules, filters, ruled, privileges, xen, gives, could_give };
    CONFINEMENT.set(confinement).map_err(|_| said(&"it is confined already"))
}

/// Gives up, on this thread and those that it starts, what its kind does not need. To be called once, when it has opened what it will
/// not be able to open later. Where the system refuses what it knows the process ends: a thread that is believed to be confined and
/// is not would be worse.
pub fn enter(kind: Kind) {
    if let Some(confinement) = CONFINEMENT.get()
        && let Err(error) = confinement.enter(kind)
    {
        failure::end(&format!("cannot confine a thread ({kind:?}): {error}"));
    }
}

/// Starts a thread that has entered when this returns. So all that entering takes for a moment, such as a descriptor, is taken while the
/// process starts, one thread after the other, and not among those whom it serves.
///
/// # Errors
/// No thread left.
pub(crate) fn spawn(kind: Kind, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (entered, enters) = bounded(1);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        enter(kind);
        // Who started it waits.
        let _ = entered.send(());
        work();
    })?;
    // A thread that cannot enter ends the process.
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

/// Logs system calls that were refused since this was called last: what went wrong without them says the rest.
pub fn log_refused() {
    for number in refused::take() {
        warn!(
            "a thread made the system call {number}, which no list for its kind has, and was refused it (ENOSYS): please report it, \
             and run with --unconfined if something fails without"
        );
    }
}

/// What the system says, and, where this process gave up what it was asked for, what would be right.
pub(crate) fn explain(error: &io::Error, wish: Wish) -> String {
    let is_ruled = |confinement: &&Confinement| confinement.ruled.ruleset != RulesetStatus::NotEnforced;
    match CONFINEMENT.get().filter(is_ruled) {
        Some(confinement) if error.kind() == io::ErrorKind::PermissionDenied => {
            format!("{error}; {}", confinement.rules.advice(wish))
        }
        _ => error.to_string(),
    }
}

/// Whether Xen's devices can be opened. They cannot where the process began without.
pub(crate) fn has_xen() -> bool {
    CONFINEMENT.get().is_none_or(|confinement| confinement.xen)
}

/// Whether this process is to be confined, so that nobody may be asked who may be a library's business.
pub(crate) fn is_prepared() -> bool {
    CONFINEMENT.get().is_some()
}

/// Sees that sockets can be given to owners and groups, or could not before.
///
/// # Errors
/// The process began without any, and gave up the capability.
pub(crate) fn sees_to_owners() -> Result<(), CannotGive> {
    match CONFINEMENT.get() {
        Some(Confinement { gives: false, could_give: true, .. }) => Err(CannotGive),
        _ => Ok(()),
    }
}

/// That no socket can be given away any more.
#[derive(Debug, thiserror::Error)]
#[error("this backend began without owners and groups of sockets and gave up CAP_CHOWN: restart it with such a policy")]
pub(crate) struct CannotGive;

/// Gives up all but system calls. What came of the rules for paths.
fn give_up(rules: &Rules, kind: Kind, gives: bool) -> Result<RestrictionStatus, Box<dyn Error + Send + Sync>> {
    set_no_new_privs()?;
    capabilities::give_up(gives && kind.makes_sockets())?;
    rules.enter(kind)
}

impl Confinement {
    fn enter(&self, kind: Kind) -> Result<(), Box<dyn Error + Send + Sync>> {
        give_up(&self.rules, kind, self.gives)?;
        // Last, as what comes before takes system calls that no list has.
        self.filters.as_ref().map_or(Ok(()), |filters| Ok(filters.enter(kind)?))
    }
}
