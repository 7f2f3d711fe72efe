//! Xen's hotplug script: tells the toolstack that a device's backend is connected.
//!
//! The toolstack runs it when it has made a device, and waits for its word before the guest runs (xenstore-paths in
//! Xen's documentation). The script in the image is one line that names this program as its interpreter. Joining the
//! interface is left to the host's side, which wires all machines alike.

use std::{env, process::Command};

use anyhow::{Context, bail};

/// Does what is asked on `action` (`online` or `add`, else nothing) with the device the environment names.
pub fn hotplug(action: &str) -> anyhow::Result<()> {
    if !["online", "add"].contains(&action) {
        return Ok(());
    }
    let device = env::var("XENBUS_PATH").context("XENBUS_PATH, the device in xenstore")?;
    let status = format!("{device}/hotplug-status");
    let output = Command::new("/usr/bin/xenstore-write").args([&status, "connected"]).output();
    let output = output.context("/usr/bin/xenstore-write")?;
    if !output.status.success() {
        bail!("{status}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
