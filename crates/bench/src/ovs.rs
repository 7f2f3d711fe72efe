//! A private Open vSwitch with its datapath on DPDK: database, sockets and logs in one directory, without huge pages.

use crate::machine::{self, Missing, POLLING};
use crate::process::{self, Process};
use crate::testpmd::BACKEND;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PACKAGE: &str = "openvswitch-switch-dpdk";

/// The program of this package. The program on the PATH may be the one without DPDK.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

const STARTUP_TIMEOUT: Duration = Duration::from_secs(20);

/// The words that start it in a network namespace of its own: it creates taps that outlive it, but not their namespace.
pub(crate) const APART: [&str; 2] = ["unshare", "--net"];

/// Its bridge, and the interface of this name that is the host's.
pub(crate) const BRIDGE: &str = "ovs0";

/// A running switch, with its database.
pub(crate) struct OpenVSwitch {
    switch: Process,
    _database: Process,
    client: Client,
}

/// How its configuration is changed.
struct Client {
    /// `ovs-vsctl`.
    program: String,
    /// The database's socket.
    socket: String,
}

impl Client {
    fn run(&self, words: &[&str]) -> Result<String> {
        let line = [self.program.as_str(), "--timeout=120", &format!("--db=unix:{}", self.socket)];
        process::output(&[&line[..], words].concat()).context("configure Open vSwitch")
    }
}

impl OpenVSwitch {
    /// Starts a switch with a port for each socket and the NORMAL action, which learns MAC addresses. The sockets are in `home`.
    ///
    /// # Errors
    /// Missing programs or permissions, or a switch that does not start.
    pub(crate) fn start(home: &Path, sockets: &[PathBuf], real_time: bool) -> Result<OpenVSwitch> {
        // Its main thread spins while it waits for the one that polls, so neither may be above the other.
        let priority: &[&str] = if real_time { &POLLING } else { &[] };
        let first: Vec<String> = APART.iter().chain(priority).map(|word| (*word).to_owned()).collect();
        OpenVSwitch::start_under(&first, &[], home, sockets)
    }

    /// As [`OpenVSwitch::start`], without priority and in this namespace: the words before its own start it, with these variables in its
    /// environment.
    ///
    /// # Errors
    /// As [`OpenVSwitch::start`].
    pub(crate) fn start_under(
        first: &[String],
        variables: &[(&str, &OsStr)],
        home: &Path,
        sockets: &[PathBuf],
    ) -> Result<OpenVSwitch> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Missing("Open vSwitch creates taps, which needs root".to_owned()).into());
        }
        let vsctl = machine::find("ovs-vsctl", PACKAGE)?.display().to_string();
        let program: PathBuf =
            if Path::new(SWITCH).is_file() { SWITCH.into() } else { machine::find("ovs-vswitchd-dpdk", PACKAGE)? };
        let socket = home.join("db.sock").display().to_string();
        let database = database(home, &socket)?;
        let client = Client { program: vsctl, socket };
        client.run(&options().each_ref().map(String::as_str))?;
        let mut switch = switch(first, variables, home, &program, &client.socket)?;
        client.run(&["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"])?;
        for socket in sockets {
            let name = name(socket)?;
            client.run(&["add-port", BRIDGE, name, "--", "set", "Interface", name, "type=dpdkvhostuser"])?;
            let error = client.run(&["get", "Interface", name, "error"])?;
            ensure!(error.trim() == "[]", "Open vSwitch: {name}: {error}");
        }
        switch.ready("its ports were there", STARTUP_TIMEOUT, || sockets.iter().all(|socket| socket.exists()))?;
        Ok(OpenVSwitch { switch, _database: database, client })
    }

    /// Polices what is sent to the port of a socket: bytes a second, and a burst of bytes.
    ///
    /// # Errors
    /// It refuses.
    pub(crate) fn police(&self, socket: &Path, rate: u64, burst: u64) -> Result<()> {
        let (rate, burst) = (format!("other-config:cir={rate}"), format!("other-config:cbs={burst}"));
        let qos = ["--id=@policer", "create", "qos", "type=egress-policer", &rate, &burst];
        self.client.run(&[&["set", "port", name(socket)?, "qos=@policer", "--"], &qos[..]].concat()).map(drop)
    }

    /// The switch itself.
    pub(crate) fn switch_mut(&mut self) -> &mut Process {
        &mut self.switch
    }
}

/// The name of a socket's port.
fn name(socket: &Path) -> Result<&str> {
    socket.file_name().and_then(OsStr::to_str).context("a socket has a name")
}

/// Creates a database, starts its server, and waits for its socket.
fn database(home: &Path, socket: &str) -> Result<Process> {
    let (tool, server) = (machine::find("ovsdb-tool", PACKAGE)?, machine::find("ovsdb-server", PACKAGE)?);
    let file = home.join("conf.db").display().to_string();
    process::output(&[tool.as_os_str(), OsStr::new("create"), OsStr::new(&file), OsStr::new(SCHEMA)])?;
    let remote = format!("--remote=punix:{socket}");
    let words = [server.display().to_string(), file, remote, control(home, "db"), NO_CHDIR.to_owned()];
    let mut database = Process::start(&words, &environment(home))?;
    database.ready("its socket was there", STARTUP_TIMEOUT, || Path::new(socket).exists())?;
    Ok(database)
}

/// The configuration before the switch starts.
fn options() -> [String; 11] {
    let mask = format!("{:#x}", 1 << BACKEND);
    [
        "--no-wait",
        "init",
        "--",
        "set",
        "Open_vSwitch",
        ".",
        "other_config:dpdk-init=true",
        &format!("other_config:pmd-cpu-mask={mask}"),
        &format!("other_config:dpdk-lcore-mask={mask}"),
        // A pool shared by all ports would be larger than the memory.
        "other_config:per-port-memory=true",
        // Memory without huge pages is "legacy"; without this option, the switch requires the other kind as well.
        "other_config:dpdk-extra=\"--no-huge --legacy-mem -m 512 --no-pci --no-telemetry --file-prefix=ovs\"",
    ]
    .map(str::to_owned)
}

/// Starts the switch.
fn switch(
    first: &[String],
    variables: &[(&str, &OsStr)],
    home: &Path,
    program: &Path,
    database: &str,
) -> Result<Process> {
    let mut words = first.to_vec();
    let database = format!("unix:{database}");
    words.extend([program.display().to_string(), database, control(home, "switch"), NO_CHDIR.to_owned()]);
    Process::start(&words, &[&environment(home), variables].concat())
}

const NO_CHDIR: &str = "--no-chdir";

fn control(home: &Path, name: &str) -> String {
    format!("--unixctl={}", home.join(format!("{name}.control")).display())
}

/// Redirects the directories of Open vSwitch and DPDK to `home`.
fn environment(home: &Path) -> [(&str, &OsStr); 4] {
    ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "RUNTIME_DIRECTORY"].map(|name| (name, home.as_os_str()))
}
