//! Keeps what was added, changed and removed at run time: writes the drop-in file that the backend dictates.
//!
//! The backend cannot write to its own policy, so its client does.

use crate::policy_file;
use anyhow::Context;
use fairlane_engine::control::Client;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Writes the file. Returns its path.
///
/// # Errors
/// The backend has no policy file, or the file cannot be written; then the one that was there is unchanged.
pub(crate) fn save(client: &mut Client) -> anyhow::Result<PathBuf> {
    let file = client.save()?.file;
    let directory = file.parent().unwrap_or(Path::new("/"));
    let said = || format!("cannot write {}; what was there before is unchanged", file.display());
    if !directory.is_dir() {
        std::fs::create_dir_all(directory).with_context(said)?;
        // The backend reads it as another user, whatever the umask of who calls this.
        std::fs::set_permissions(directory, Permissions::from_mode(0o755)).with_context(said)?;
    }
    // Of two that save at once, the later has the newer state.
    let opened = File::open(directory).with_context(said)?;
    let _turn = Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, error)| error).with_context(said)?;
    let saved = client.save()?;
    policy_file::replace(&saved.file, &saved.text)?;
    Ok(saved.file)
}
