//! The guest's initramfs: the agent as `/init`, and the kernel modules it loads.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::{
    cache,
    cpio::Archive,
    error::{Error, IoContext},
};

/// Where `make` builds the agent, from the build's target directory.
const BUILT: &str = "x86_64-unknown-linux-gnu/agent/fairlane-agent";
/// Where a package puts it, from the directory of the command.
const INSTALLED: &str = "../lib/fairlane/fairlane-agent";

/// Finds the static agent: `$FAIRLANE_AGENT`, else in the target directory this program was built in, else in
/// `../lib/fairlane` beside the directory this program is installed in.
///
/// # Errors
/// [`Error::Missing`], with the way to build it.
pub fn agent() -> Result<PathBuf, Error> {
    if let Some(path) = env::var_os("FAIRLANE_AGENT") {
        return std::path::absolute(&path).doing(|| path.display().to_string());
    }
    let program = env::current_exe().doing(|| "this program's own path".to_owned())?;
    let built = program.ancestors().skip(1).map(|directory| directory.join(BUILT));
    let installed = program.parent().map(|directory| directory.join(INSTALLED));
    built.chain(installed).find(|path| path.is_file()).ok_or_else(|| {
        Error::Missing("the guests' agent is not built: run `make agent`, or name it in FAIRLANE_AGENT".to_owned())
    })
}

/// Builds the initramfs of an agent and modules, or finds the one kept from before; answers its path.
pub fn initramfs(agent: &Path, modules: &[PathBuf]) -> Result<PathBuf, Error> {
    let read = |path: &Path| fs::read(path).doing(|| path.display().to_string());
    let mut archive = Archive::new();
    for name in ["proc", "sys", "dev", "modules"] {
        archive.directory(name);
    }
    archive.file("init", &read(agent)?);
    let mut order = String::new();
    for path in modules {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("modules/{name}"), &read(path)?);
        order.push_str(&format!("{name}\n"));
    }
    archive.file("modules/order", order.as_bytes());
    cache::keep(&cache::directory()?, "initramfs", &archive.finish())
}
