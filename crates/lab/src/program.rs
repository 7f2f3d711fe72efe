//! Finds and runs programs of this host.

use std::{
    env, io,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::error::{Error, IoContext};

/// Finds a program on the PATH.
///
/// # Errors
/// [`Error::Missing`], with the Debian package that has it.
pub(crate) fn find(program: &str, what: &str, package: &str) -> Result<PathBuf, Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file()).ok_or_else(|| {
        let advice = format!("install it with `apt-get install {package}`");
        Error::Missing(format!("{what} is not installed ({program} is not on the PATH): {advice}"))
    })
}

/// Finds the emulator.
///
/// # Errors
/// As [`find`].
pub(crate) fn find_qemu() -> Result<PathBuf, Error> {
    find("qemu-system-x86_64", "QEMU", "qemu-system-x86")
}

/// Runs a program and returns its standard output.
///
/// # Errors
/// [`Error::Io`] with its standard error if it fails.
pub(crate) fn output(program: &mut Command) -> Result<String, Error> {
    let output = program.stdin(Stdio::null()).output();
    let output = output.doing(|| format!("{program:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let source = io::Error::other(format!("{}: {errors}", output.status));
        return Err(Error::Io { what: format!("{program:?}"), source });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
