//! An initramfs: the agent as `/init`, the kernel modules it loads, and what else a machine of its kind needs.
//!
//! An image is put together anew each time, in memory, from what it is made of, and kept under the hash of the result:
//! so a changed input is a new image, and a damaged one is made again.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::{
    cache,
    cpio::Archive,
    error::{Error, IoContext},
    libraries::Libraries,
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

/// Finds the emulator's plugin that counts instructions: it lies beside the agent.
///
/// # Errors
/// [`Error::Missing`], with the way to build it.
pub fn plugin() -> Result<PathBuf, Error> {
    beside_agent("path-length.so", "which counts instructions: run `make plugin`")
}

/// Finds the static `fairlane` for dom0: it lies beside the agent.
///
/// # Errors
/// [`Error::Missing`], with the way to build it.
pub fn fairlane() -> Result<PathBuf, Error> {
    beside_agent("fairlane", "to serve Xen's guests: run `make agent`")
}

/// Finds the frontend that breaks the rules, for guests under test: it lies beside the agent.
///
/// # Errors
/// [`Error::Missing`], with the way to build it.
pub fn hostile() -> Result<PathBuf, Error> {
    beside_agent("hostile", "to try a backend's patience: run `make agent`")
}

/// Finds the program of an exchange by MPI, for guests that have Open MPI: it lies beside the agent.
///
/// # Errors
/// [`Error::Missing`], with the way to build it.
pub fn all_to_all() -> Result<PathBuf, Error> {
    beside_agent("all-to-all", "the program of an exchange by MPI: run `make mpi`")
}

fn beside_agent(name: &str, purpose: &str) -> Result<PathBuf, Error> {
    let path = agent()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::Missing(format!("there is no {}, {purpose}", path.display())))
}

/// An initramfs in the making.
pub struct Image {
    archive: Archive,
    /// The modules to load, a line each.
    order: String,
}

impl Image {
    /// One with the agent as `/init`, and the modules it loads, in order.
    pub fn new(agent: &Path, modules: &[PathBuf]) -> Result<Image, Error> {
        let mut image = Image { archive: Archive::new(), order: String::new() };
        for name in ["proc", "sys", "dev", "modules"] {
            image.directory(name);
        }
        image.file("init", agent)?;
        for path in modules {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            image.file(&format!("modules/{name}"), path)?;
            image.order.push_str(&format!("{name}\n"));
        }
        Ok(image)
    }

    /// Adds an empty directory.
    pub fn directory(&mut self, name: &str) {
        self.archive.directory(name);
    }

    /// Adds a file of the host's.
    pub fn file(&mut self, name: &str, from: &Path) -> Result<(), Error> {
        self.bytes(name, &fs::read(from).doing(|| from.display().to_string())?);
        Ok(())
    }

    /// Adds a file of these contents.
    pub fn bytes(&mut self, name: &str, contents: &[u8]) {
        self.archive.file(name, contents);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, to: &str) {
        self.archive.link(name, to);
    }

    /// Adds programs, named with their place, and the libraries they load.
    pub fn programs(&mut self, programs: &[(String, PathBuf)], libraries: &Libraries) -> Result<(), Error> {
        let files: Vec<PathBuf> = programs.iter().map(|(_, file)| file.clone()).collect();
        for (name, file) in programs {
            self.file(name, file)?;
        }
        for (name, file) in libraries.of(&files)? {
            // The loader is named by its path in each program; the others are found by name.
            let directory = if name.starts_with("ld-linux") { "lib64" } else { "lib/x86_64-linux-gnu" };
            self.file(&format!("{directory}/{name}"), &file)?;
        }
        Ok(())
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.archive.file("modules/order", self.order.as_bytes());
        self.archive.finish()
    }

    /// Keeps the finished archive, or finds it kept from before; answers its path.
    pub fn keep(self) -> Result<PathBuf, Error> {
        cache::keep(&cache::directory()?, "initramfs", &self.finish())
    }
}
