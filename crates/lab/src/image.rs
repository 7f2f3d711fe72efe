//! An initramfs: the agent as `/init`, the kernel modules it loads, and what else its kind of machine needs.
//!
//! An image is assembled in memory each time and cached under the hash of the result: a changed input makes a new image, and a
//! damaged file is written again.

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
/// Where a package installs it, relative to the directory of the `fairlane` command.
const INSTALLED: &str = "../lib/fairlane/fairlane-agent";

/// Finds the static agent: `$FAIRLANE_AGENT`, else in the target directory this program was built in, else in
/// `../lib/fairlane` relative to the directory this program is installed in.
///
/// # Errors
/// [`Error::Missing`], with how to build it.
pub(crate) fn agent() -> Result<PathBuf, Error> {
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

/// Finds the emulator's plugin that counts instructions, in the agent's directory.
///
/// # Errors
/// [`Error::Missing`], with how to build it.
pub(crate) fn plugin() -> Result<PathBuf, Error> {
    beside_agent("path-length.so", "which counts instructions: run `make plugin`")
}

/// Finds the static `fairlane` for dom0, in the agent's directory.
///
/// # Errors
/// [`Error::Missing`], with how to build it.
pub(crate) fn fairlane() -> Result<PathBuf, Error> {
    beside_agent("fairlane", "to serve Xen's guests: run `make agent`")
}

/// Finds the hostile frontend, for guests of tests, in the agent's directory.
///
/// # Errors
/// [`Error::Missing`], with how to build it.
pub(crate) fn hostile() -> Result<PathBuf, Error> {
    beside_agent("hostile", "the hostile frontend of tests: run `make agent`")
}

/// Finds the MPI program of the all-to-all exchange, for guests with Open MPI, in the agent's directory.
///
/// # Errors
/// [`Error::Missing`], with how to build it.
pub(crate) fn all_to_all() -> Result<PathBuf, Error> {
    beside_agent("all-to-all", "the MPI program of the all-to-all exchange: run `make mpi`")
}

fn beside_agent(name: &str, purpose: &str) -> Result<PathBuf, Error> {
    let path = agent()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::Missing(format!("there is no {}, {purpose}", path.display())))
}

/// An initramfs under construction.
pub(crate) struct Image {
    archive: Archive,
    /// The names of the modules to load, one per line.
    order: String,
}

impl Image {
    /// An image with the agent as `/init` and the modules it loads, in order.
    pub(crate) fn new(agent: &Path, modules: &[PathBuf]) -> Result<Image, Error> {
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
    pub(crate) fn directory(&mut self, name: &str) {
        self.archive.directory(name);
    }

    /// Adds a copy of a file of the host.
    pub(crate) fn file(&mut self, name: &str, from: &Path) -> Result<(), Error> {
        self.bytes(name, &fs::read(from).doing(|| from.display().to_string())?);
        Ok(())
    }

    /// Adds a file with these contents.
    pub(crate) fn bytes(&mut self, name: &str, contents: &[u8]) {
        self.archive.file(name, contents);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, name: &str, to: &str) {
        self.archive.link(name, to);
    }

    /// Adds programs under their paths in the image, and the libraries they load.
    pub(crate) fn programs(&mut self, programs: &[(String, PathBuf)], libraries: &Libraries) -> Result<(), Error> {
        let files: Vec<PathBuf> = programs.iter().map(|(_, file)| file.clone()).collect();
        for (name, file) in programs {
            self.file(name, file)?;
        }
        for (name, file) in libraries.of(&files)? {
            // Programs name the loader by its path; the loader finds the other libraries by name.
            let directory = if name.starts_with("ld-linux") { "lib64" } else { "lib/x86_64-linux-gnu" };
            self.file(&format!("{directory}/{name}"), &file)?;
        }
        Ok(())
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.archive.file("modules/order", self.order.as_bytes());
        self.archive.finish()
    }

    /// Stores the finished archive in the cache, unless it is there; returns its path.
    pub(crate) fn keep(self) -> Result<PathBuf, Error> {
        cache::keep(&cache::directory()?, "initramfs", &self.finish())
    }
}
