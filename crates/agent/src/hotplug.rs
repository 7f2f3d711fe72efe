//! Xen's hotplug script: joins a guest's new interface, and says that a device's backend is connected.
//!
//! The toolstack runs it when it has made a device, and waits for its word before the guest runs
//! (docs/misc/xenstore-paths and xl-network-configuration of Xen). The script in the image is one line that names
//! this program as its interpreter.

use std::{env, process::Command};

use anyhow::{Context, bail};
use nix::net::if_::if_nametoindex;

use crate::network;

/// Does what is asked on `action` (`online` or `add`, else nothing) with the device the environment names.
pub fn hotplug(action: &str) -> anyhow::Result<()> {
    if !["online", "add"].contains(&action) {
        return Ok(());
    }
    let device = env::var("XENBUS_PATH").context("XENBUS_PATH")?;
    if let Ok(name) = env::var("vif") {
        let bridge = xenstore(&["xenstore-read", &format!("{device}/bridge")])?;
        let index = if_nametoindex(name.as_str()).with_context(|| name.clone())?;
        network::bring_up(index, None).with_context(|| format!("{name}: link up"))?;
        // A host without a bridge routes to the interface.
        if let Ok(bridge) = if_nametoindex(bridge.trim()) {
            network::join(index, bridge).with_context(|| format!("{name}: join the bridge"))?;
        }
    }
    xenstore(&["xenstore-write", &format!("{device}/hotplug-status"), "connected"])?;
    Ok(())
}

fn xenstore(argv: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(argv[0]).args(&argv[1..]).env("PATH", "/usr/bin").output().context(argv[0].to_owned())?;
    if !output.status.success() {
        bail!("{}: {}", argv.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
