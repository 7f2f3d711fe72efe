//! A NATS server and three hosts, each in a network namespace: a backend, the agent beside it, and a cable to the server.

use crate::daemon::{Daemon, write_policy};
use crate::guests::wait_for;
use crate::namespace::Namespace;
use crate::process::Process;
use fairlane_engine::snapshot::VifState;
use fairlane_fleet::{Access, Fleet};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::future::Future;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The program.
pub(crate) const FAIRLANE: &str = env!("CARGO_BIN_EXE_fairlane");

/// The hosts' names.
pub(crate) const HOSTS: [&str; 3] = ["h1", "h2", "h3"];

/// The server's address and port, with the user that it knows.
pub(crate) const SERVER: &str = "tls://admin:secret@10.77.0.1:4222";

/// A host's policy. `DIR` stands for its directory, `MORE` for keys of its first vif. Beside that, the tenant gets next to nothing.
const POLICY: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
rate = "20Mbit/s"
uplink = { wire = "far" }
[[link]]
name = "far"
[[vif]]
name = "web"
link = "lan"
socket = "DIR/web.sock"
MORE
[[tenant]]
name = "red"
weight = 1
[[vif]]
name = "app"
link = "lan"
tenant = "red"
socket = "DIR/app.sock"
"#;

/// A host's policy, in which its first vif has these keys. The last host has one link, to a tap.
fn policy(host: &str, keys: &str) -> String {
    let (wire, tap) = ("{ wire = \"far\" }\n[[link]]\nname = \"far\"", "{ tap = \"fl0\" }\n#\n#");
    let text = POLICY.replace("MORE", keys);
    if host == HOSTS[2] { text.replace(wire, tap) } else { text }
}

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("the process runs");
    }
}

/// A host.
pub(crate) struct Host {
    pub daemon: Daemon,
    pub agent: Process,
    namespace: Namespace,
    directory: PathBuf,
}

/// Everything.
pub(crate) struct Stage {
    pub hosts: Vec<Host>,
    server: Option<Process>,
    network: Namespace,
    // Dropped last: the others use it.
    directory: tempfile::TempDir,
}

impl Stage {
    /// Starts everything.
    ///
    /// # Errors
    /// This machine lacks something.
    pub(crate) fn new() -> Result<Stage, String> {
        let network = Namespace::new().map_err(|error| format!("needs root: {error}"))?;
        for setup in ["link set lo up", "link add br0 type bridge", "addr add 10.77.0.1/24 dev br0", "link set br0 up"]
        {
            network.ip(setup);
        }
        let directory = tempfile::tempdir().unwrap();
        certificates(directory.path())?;
        let mut stage = Stage { hosts: Vec::new(), server: None, network, directory };
        stage.start_server()?;
        HOSTS.into_iter().for_each(|name| stage.add_host(name));
        Ok(stage)
    }

    /// Starts another host.
    pub(crate) fn add_host(&mut self, name: &str) {
        let number = self.hosts.len() + 2;
        let namespace = Namespace::new().unwrap();
        let directory = self.path(name);
        fs::create_dir(&directory).unwrap();
        write_policy(&directory, &policy(name, "weight = 100"));
        let daemon = serve(&namespace, &directory);
        if name == HOSTS[2] {
            namespace.ip("link set fl0 up");
        }
        let pid = daemon.pid();
        self.network.ip(&format!("link add {name} type veth peer name eth0 netns {pid}"));
        self.network.ip(&format!("link set {name} master br0 up"));
        namespace.ip(&format!("addr add 10.77.0.{number}/24 dev eth0"));
        namespace.ip("link set eth0 up");
        let agent = self.follow(name, &namespace, &directory);
        self.hosts.push(Host { daemon, agent, namespace, directory });
    }

    /// Starts a host's agent anew.
    pub(crate) fn follow_again(&mut self, number: usize) {
        let host = &self.hosts[number];
        let agent = self.follow(HOSTS[number], &host.namespace, &host.directory);
        self.hosts[number].agent = agent;
    }

    fn follow(&self, name: &str, namespace: &Namespace, directory: &Path) -> Process {
        let mut command = self.command("follow");
        command.arg(directory.join("policy.toml")).args(["--host", name]);
        command.arg("--control").arg(directory.join("control.sock"));
        let log = File::options().create(true).append(true).open(directory.join("agent.log")).unwrap();
        command.stderr(log);
        Process(namespace.run(move || command.spawn()).expect("the agent starts"))
    }

    /// A path in the test's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command of the fleet, with the store's options.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(FAIRLANE);
        command.args(["fleet", name, "--server", SERVER, "--tls-ca"]).arg(self.path("ca.pem"));
        command.arg("--tls-cert").arg(self.path("client.pem")).arg("--tls-key").arg(self.path("client.key"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program beside the server, in the test's directory: its exit status, and what it printed.
    pub(crate) fn beside(&self, mut command: Command) -> (Option<i32>, String) {
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        let Output { status, stdout, stderr } = self.network.run(move || command.output()).expect("the command runs");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned() + &String::from_utf8_lossy(&stdout))
    }

    /// Starts a command of the fleet beside the server.
    pub(crate) fn spawn(&self, name: &str, arguments: &[&str]) -> Process {
        let mut command = self.command(name);
        command.args(arguments).current_dir(self.directory.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(self.network.run(move || command.spawn()).expect("the command starts"))
    }

    /// Runs a command of the fleet: its exit status, and what it printed.
    pub(crate) fn run(&self, name: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = self.command(name);
        command.args(arguments);
        self.beside(command)
    }

    /// The way to the store.
    pub(crate) fn access(&self) -> Access {
        let tls_client = Some((self.path("client.pem"), self.path("client.key")));
        Access { server: SERVER.to_owned(), creds: None, tls_ca: Some(self.path("ca.pem")), tls_client }
    }

    /// Begins something beside the server that goes on until the test ends.
    pub(crate) fn begin(&self, work: impl FnOnce() + Send + 'static) {
        self.network.spawn(work);
    }

    /// Does something with the store, beside the server.
    pub(crate) fn with_store<T, F>(&self, operation: impl FnOnce(Fleet) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let access = self.access();
        let connect = async move || Fleet::connect(&access).await.expect("the store is there");
        self.network.run(move || fairlane_fleet::run(async { operation(connect().await).await }))
    }

    /// Writes a directory with a policy for each host, in which its vif has these keys.
    pub(crate) fn write(&self, name: &str, keys: impl Fn(&str) -> String) {
        fs::create_dir(self.path(name)).unwrap();
        for host in HOSTS {
            fs::write(self.path(name).join(format!("{host}.toml")), self.policy(host, &keys(host))).unwrap();
        }
    }

    /// A host's policy.
    pub(crate) fn policy(&self, host: &str, keys: &str) -> String {
        policy(host, keys).replace("DIR", self.path(host).to_str().unwrap())
    }

    /// What the store says of each host.
    pub(crate) fn shown(&self) -> Vec<Value> {
        let (status, text) = self.run("show", &["--json"]);
        assert_eq!(status, Some(0), "{text}");
        serde_json::from_str(&text).expect("a list of hosts")
    }

    /// Waits until hosts have the newest policy of the store in force.
    pub(crate) fn wait_until_in_force(&self) {
        let is_in_force = |host: &Value| host["wanted"] == host["state"]["revision"] && host["away"] == false;
        wait_for("hosts to have their policies", || {
            std::thread::sleep(Duration::from_millis(50));
            let shown = self.shown();
            shown.len() == HOSTS.len() && shown.iter().all(is_in_force)
        });
    }

    /// The weights in force.
    pub(crate) fn weights(&self) -> Vec<u32> {
        self.hosts.iter().map(|host| host.vif().weight).collect()
    }

    /// What each host guarantees to the tenant on its link, in Mbit/s.
    pub(crate) fn guaranteed(&self) -> Vec<u64> {
        self.hosts.iter().map(|host| host.guaranteed_on("lan")).collect()
    }

    /// What `show` says of the tenant.
    pub(crate) fn in_force(&self) -> Vec<String> {
        let (_, said) = self.run("show", &[]);
        said.lines().last().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// Bytes that the tenant's guests have sent on all hosts.
    pub(crate) fn sent_by_tenant(&self) -> u64 {
        self.hosts.iter().map(|host| host.daemon.snapshot().vifs[1].port.sent_bytes).sum()
    }

    /// Starts the server with what it has kept.
    pub(crate) fn start_server(&mut self) -> Result<(), String> {
        let config = format!(
            "listen: 0.0.0.0:4222\njetstream {{ store_dir: \"{0}/store\" }}\n\
             authorization {{ user: admin, password: secret }}\n\
             tls {{ cert_file: \"{0}/server.pem\", key_file: \"{0}/server.key\", ca_file: \"{0}/ca.pem\", verify: true }}\n",
            self.directory.path().display()
        );
        self.server = Some(self.serve_nats("nats", &config)?);
        wait_for("the server to listen", || self.network.run(|| TcpStream::connect("10.77.0.1:4222").is_ok()));
        Ok(())
    }

    /// Starts a server with this configuration.
    ///
    /// # Errors
    /// It is not installed.
    pub(crate) fn serve_nats(&self, name: &str, config: &str) -> Result<Process, String> {
        let path = self.path(&format!("{name}.conf"));
        fs::write(&path, config).unwrap();
        let mut command = Command::new("nats-server");
        command.arg("--config").arg(path).env("PATH", "/usr/sbin:/usr/bin:/usr/local/bin");
        let log = File::create(self.path(&format!("{name}.log"))).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let started = self.network.run(move || command.spawn());
        started.map(Process).map_err(|error| format!("nats-server is not installed: {error}"))
    }

    /// Kills the server.
    pub(crate) fn kill_server(&mut self) {
        self.server = None;
    }

    /// Pulls a host's cable, or puts it back.
    pub(crate) fn cable(&self, host: &str, up: bool) {
        self.network.ip(&format!("link set {host} {}", if up { "up" } else { "down" }));
    }
}

impl Host {
    /// Its first vif.
    pub(crate) fn vif(&self) -> VifState {
        self.daemon.snapshot().vifs.remove(0)
    }

    /// What it guarantees to the tenant on one of its links, in Mbit/s.
    pub(crate) fn guaranteed_on(&self, link: &str) -> u64 {
        self.daemon.snapshot().tenants[0].min_rate_on(link).div_ceil(1_000_000)
    }

    /// The policy that it keeps.
    pub(crate) fn kept(&self) -> String {
        fs::read_to_string(self.directory.join("policy.toml")).unwrap()
    }

    /// The path of a vif's socket.
    pub(crate) fn socket(&self, vif: &str) -> PathBuf {
        self.directory.join(format!("{vif}.sock"))
    }

    /// Makes its directory read-only, or not any more, for this test's processes.
    pub(crate) fn set_read_only(&self, is_so: bool) {
        let directory = self.directory.as_path();
        let (none, flags) = (None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
        match is_so {
            true => {
                mount(Some(directory), directory, none, MsFlags::MS_BIND, none).unwrap();
                mount(none, directory, none, flags, none).unwrap();
            }
            false => umount2(directory, MntFlags::MNT_DETACH).unwrap(),
        }
    }

    /// What its agent has said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.directory.join("agent.log")).unwrap()
    }

    /// Kills its backend and starts another one.
    pub(crate) fn restart(&mut self) {
        self.daemon.end(Signal::SIGKILL);
        self.daemon = serve(&self.namespace, &self.directory);
    }
}

/// Gives this process mounts of its own, if it may. To be called while it has one thread.
pub(crate) fn unshare_mounts() {
    let none = None::<&str>;
    let own = unshare(CloneFlags::CLONE_NEWNS);
    // Without root the test is skipped anyway.
    let _ = own.and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none));
}

fn serve(namespace: &Namespace, directory: &Path) -> Daemon {
    Daemon::serve(directory, |mut command| namespace.run(move || command.spawn()))
}

/// Writes an authority's certificate, and those of the server and of a client that it signed.
fn certificates(directory: &Path) -> Result<(), String> {
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let authority = "-keyout ca.key -out ca.pem -subj /CN=authority -addext keyUsage=critical,keyCertSign";
    let server = "-keyout server.key -out server.pem -subj /CN=server -CA ca.pem -CAkey ca.key \
                  -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:10.77.0.1";
    let client = "-keyout client.key -out client.pem -subj /CN=client -CA ca.pem -CAkey ca.key \
                  -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=clientAuth";
    for what in [authority, server, client] {
        let mut command = Command::new("openssl");
        command.args(new.split_whitespace().chain(what.split_whitespace())).current_dir(directory);
        let output = command.output().map_err(|error| format!("openssl is not installed: {error}"))?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
