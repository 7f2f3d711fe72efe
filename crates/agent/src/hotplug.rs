//! Xen's hotplug script: reports to the toolstack that a device's backend is connected.
//!
//! The toolstack runs it after it has created a device, and waits for its report before the guest runs (xenstore-paths in Xen's
//! documentation). The script in the image is one line that names this program as its interpreter. The interface itself is
//! configured by the lab, as on all machines.

use std::{env, fs, os::unix::fs::MetadataExt, process::Command};

use anyhow::{Context, bail};
use nix::sys::stat::{major, minor};

/// Handles `action` for the device that the environment names. Actions other than `online` and `add` are ignored.
pub(crate) fn hotplug(action: &str) -> anyhow::Result<()> {
    if !["online", "add"].contains(&action) {
        return Ok(());
    }
    let device = env::var("XENBUS_PATH").context("XENBUS_PATH, the device in xenstore")?;
    if env::var("XENBUS_TYPE").is_ok_and(|kind| kind == "vbd") {
        let disk = xenstore("read", &[&format!("{device}/params")])?;
        let number = fs::metadata(disk.trim()).with_context(|| disk.clone())?.rdev();
        // The backend opens the disk by its device number, in hexadecimal digits.
        let number = format!("{:x}:{:x}", major(number), minor(number));
        xenstore("write", &[&format!("{device}/physical-device"), &number])?;
    }
    xenstore("write", &[&format!("{device}/hotplug-status"), "connected"]).map(drop)
}

/// Runs xenstore's own program; returns its standard output.
fn xenstore(verb: &str, words: &[&str]) -> anyhow::Result<String> {
    let program = format!("/usr/bin/xenstore-{verb}");
    let output = Command::new(&program).args(words).output().with_context(|| program.clone())?;
    if !output.status.success() {
        bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context(program)
}
