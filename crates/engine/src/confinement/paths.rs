//! Paths, by Landlock: what each kind of thread may still open, create and remove. Landlock does not affect open files, or
//! descriptors received from a frontend.
//!
//! | directories, with all below | main | control | worker | web, log | xen |
//! |---|---|---|---|---|---|
//! | of vhost-user sockets, as the policy named them at the start | sockets | sockets | sockets | | |
//! | of the control socket: early ack's files, captures | files | files | files | | |
//! | of the read-only control socket | sockets | | | | |
//! | of `STATE_DIRECTORY` and `RUNTIME_DIRECTORY` (systemd.exec(5)): captures, exported flows | files | files | | | |
//! | of the policy file, and its drop-ins | read | | | | |
//! | `/dev/xen`, where the policy has Xen's cards | | | | | devices |
//!
//! No thread may bind or connect a TCP socket: the web server listens by then.

use super::Kind;
use fairlane_policy::{Card, Policy};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, make_bitflags, path_beneath_rules,
};
use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// The rights that are restricted: all that this version of Landlock knows. Older kernels restrict fewer.
const RULED: ABI = ABI::V5;

const SOCKETS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeSock | RemoveFile});
const FILES: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate | MakeReg | MakeDir | RemoveFile});
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const DEVICES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});

/// Xen's devices.
const XEN: &str = "/dev/xen";

/// What a client asked to open or create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The socket of a vif.
    Socket,
    /// A capture, or flows.
    File,
}

/// The rules of each kind of thread.
pub(super) struct Rules {
    kinds: Vec<(Kind, RulesetCreated)>,
    sockets: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

impl Rules {
    /// The rules for a policy in `file`. Directories that do not exist get none.
    ///
    /// # Errors
    /// A path cannot be opened.
    pub(super) fn new(policy: &Policy, file: &Path, xen: bool) -> Result<Rules, RulesetError> {
        let control = directory(&policy.control);
        let sockets: BTreeSet<PathBuf> = policy
            .vifs
            .iter()
            .filter_map(|vif| match &vif.card {
                Card::VhostUser { socket, .. } => Some(directory(socket)),
                Card::Xen { .. } => None,
            })
            .collect();
        let given = ["STATE_DIRECTORY", "RUNTIME_DIRECTORY"].into_iter().filter_map(std::env::var_os);
        let given = given.flat_map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>());
        let files: BTreeSet<PathBuf> = given.chain([control.clone()]).collect();
        // If the file is a symbolic link, its target is read.
        let policies = file.canonicalize().into_iter().chain([file.to_owned()]).map(|file| directory(&file)).collect();
        let kept = BTreeSet::from([control]);
        let observe = policy.observe.iter().map(|observe| directory(&observe.socket)).collect();
        let devices = xen.then(|| XEN.into()).into_iter().collect();
        let rules = |kind| -> Result<(Kind, RulesetCreated), RulesetError> {
            let may: Vec<(&BTreeSet<PathBuf>, BitFlags<AccessFs>)> = match kind {
                Kind::Main => {
                    vec![(&sockets, SOCKETS), (&files, SOCKETS | FILES), (&policies, READ), (&observe, SOCKETS)]
                }
                Kind::Control => vec![(&sockets, SOCKETS), (&files, SOCKETS | FILES)],
                Kind::Worker => vec![(&sockets, SOCKETS), (&kept, SOCKETS | FILES)],
                Kind::Web | Kind::Log => Vec::new(),
                Kind::Xen => vec![(&devices, DEVICES)],
            };
            let ruleset = Ruleset::default().handle_access(AccessFs::from_all(RULED))?;
            let mut ruleset = ruleset.handle_access(AccessNet::from_all(RULED))?.create()?;
            for (directories, access) in may {
                ruleset = ruleset.add_rules(path_beneath_rules(directories, access))?;
            }
            Ok((kind, ruleset))
        };
        let kinds = Kind::ALL.into_iter().map(rules).collect::<Result<_, _>>()?;
        Ok(Rules { kinds, sockets, files })
    }

    /// Confines this thread to the rules of a kind. Returns the result.
    ///
    /// # Errors
    /// The kernel refuses the rules. That it does not support Landlock is no error.
    pub(super) fn enter(&self, kind: Kind) -> Result<RestrictionStatus, Box<dyn Error + Send + Sync>> {
        let rules = self.kinds.iter().find(|(known, _)| *known == kind);
        let (_, rules) = rules.ok_or("this kind of thread has no rules")?;
        Ok(rules.try_clone()?.restrict_self()?)
    }

    /// What would be right if a wish was denied.
    pub(super) fn advice(&self, wish: Wish) -> String {
        match wish {
            Wish::Socket => format!(
                "this backend may make sockets in directories only that it knew when it started ({}): name one there, or restart it",
                listed(&self.sockets)
            ),
            Wish::File => {
                format!("this backend may write and read files below {} only: name one there", listed(&self.files))
            }
        }
    }
}

/// The directory of a file.
fn directory(file: &Path) -> PathBuf {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn listed(directories: &BTreeSet<PathBuf>) -> String {
    let shown: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
    shown.join(", ")
}

/// Logs what is in force, or what this kernel lacks.
pub(super) fn log(status: &RestrictionStatus) {
    match status.ruleset {
        RulesetStatus::FullyEnforced => info!("confined: each thread opens the paths of its kind (Landlock)"),
        RulesetStatus::PartiallyEnforced => {
            info!("confined: each thread opens the paths of its kind, as far as this kernel's Landlock knows of them");
        }
        RulesetStatus::NotEnforced => warn!(
            "not confined: any path can be opened, as this kernel has no Landlock (it takes Linux 5.13 and `landlock` in its list of \
             security modules, `lsm=`)"
        ),
    }
}
