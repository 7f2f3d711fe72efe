//! A guest that runs: booted, given work, ended. Nothing of it outlives its [`Guest`], nor this process.

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, Shutdown},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command as Program, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use fairlane_agent::Command;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    agent::Agent,
    error::{Error, IoContext},
    image,
    images::Tools,
    job::Job,
    qemu,
    script::{Follow, Way},
    uml,
};

/// What a guest runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// User-Mode Linux.
    Uml,
    /// QEMU, with KVM where that boots a guest, else emulated; its card is virtio.
    Qemu,
    /// The same with an emulated Intel card, the e1000, which is served by a tap only.
    QemuE1000,
}

/// A guest to be booted.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// Its host name, and its name in messages: letters, digits and hyphens.
    pub name: String,
    /// What it runs on.
    pub kind: Kind,
    /// Its virtual CPUs; 1 on User-Mode Linux.
    pub cpus: usize,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// What it runs besides its agent.
    pub tools: Tools,
    /// Its network card; without one it has its loopback only.
    pub nic: Option<Nic>,
    /// Where QEMU listens for a [`Monitor`](crate::Monitor), which can move the guest elsewhere; it does not where not given.
    pub monitor: Option<PathBuf>,
    /// The file that keeps what its kernel prints.
    pub log: PathBuf,
}

/// What serves a guest's network card.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A vhost-user backend by its socket, which listens already.
    VhostUser(PathBuf),
    /// A tap interface of the host's kernel, in the network namespace of the thread that boots the guest.
    Tap(String),
}

/// A guest's network card.
#[derive(Clone, Debug)]
pub struct Nic {
    /// What serves it.
    pub backend: Backend,
    /// The MAC address.
    pub mac: [u8; 6],
    /// The IP address.
    pub address: Ipv4Addr,
    /// The length of its network's prefix, in bits.
    pub prefix: u8,
    /// Pairs of rings; 1 on User-Mode Linux.
    pub queues: u16,
}

impl Nic {
    /// The MAC address as it is written.
    pub(crate) fn mac(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }
}

impl GuestSpec {
    /// A guest of the plainest sort, whose card is served by a vhost-user backend: its socket, `NAME.sock`, and what the guest's
    /// kernel prints, `NAME.console`, are in `home`. Its network has a prefix of 24 bits.
    pub fn served(kind: Kind, name: &str, home: &Path, mac: [u8; 6], address: Ipv4Addr) -> GuestSpec {
        let backend = Backend::VhostUser(home.join(format!("{name}.sock")));
        GuestSpec {
            name: name.to_owned(),
            kind,
            cpus: 1,
            memory_mib: 128,
            tools: Tools::default(),
            nic: Some(Nic { backend, mac, address, prefix: 24, queues: 1 }),
            monitor: None,
            log: home.join(format!("{name}.console")),
        }
    }

    /// The last lines of what its kernel printed, indented; for messages about a guest that ended.
    pub fn last_words(&self) -> String {
        last_lines(&self.log, "")
    }

    /// What the agent reads on the kernel's command line.
    pub(crate) fn wishes(&self, console: &str) -> String {
        let mut wishes = format!("fairlane.console={console} fairlane.host={}", self.name);
        if let Some(nic) = &self.nic {
            let card = match (self.kind, &nic.backend) {
                // User-Mode Linux's own driver names its first card so.
                (Kind::Uml, Backend::Tap(_)) => "vec0",
                _ => "eth0",
            };
            wishes +=
                &format!(" fairlane.card={card} fairlane.mac={} fairlane.ip={}/{}", nic.mac(), nic.address, nic.prefix);
        }
        wishes
    }

    /// The way to start it.
    pub(crate) fn launch(&self, agent: &Path) -> Result<Launch, Error> {
        self.check()?;
        match self.kind {
            Kind::Uml => uml::machine(self, agent),
            Kind::Qemu | Kind::QemuE1000 => qemu::machine(self, agent),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.bytes().all(fits) {
            let reason = "a name has 1 to 63 letters, digits and hyphens".to_owned();
            return Err(Error::Orders { guest: self.name.clone(), reason });
        }
        Ok(())
    }
}

/// How a kind of guest is started.
pub(crate) struct Launch {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// What runs it, in words, and with its version.
    pub system: String,
    /// What is booted: files.
    pub image: String,
    /// How long it may take to come up.
    pub limit: Duration,
}

impl Launch {
    /// The same in a network of the host (`new`, `beside=PID`, `inside=PID`) and on some of its CPUs, any
    /// if none is named. See `fairlane-agent place`.
    pub fn placed(self, agent: &Path, network: &str, cpus: &[usize]) -> Launch {
        let cpus = match cpus {
            [] => "any".to_owned(),
            cpus => cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
        };
        let place = ["place".to_owned(), network.to_owned(), cpus, self.program.display().to_string()];
        let arguments = place.into_iter().chain(self.arguments).collect();
        Launch { program: agent.to_owned(), arguments, ..self }
    }
}

/// How a machine is talked with.
#[derive(Clone, Debug)]
pub(crate) enum Talk {
    /// Over its standard input, which is its agent's console.
    Live,
    /// The same, and what it is asked is kept in this file.
    Rehearsal(PathBuf),
    /// It has the script with it, and answers into a file, which is there.
    Performance { script: PathBuf, answers: PathBuf },
}

/// A guest that is up.
pub struct Guest {
    agent: Agent,
    home: PathBuf,
    process: Process,
}

impl Guest {
    /// Boots a guest and waits until its agent serves.
    ///
    /// # Errors
    /// [`Error::Missing`] where the machine lacks the guest's kind, [`Error::Boot`] where it does not come up.
    pub fn boot(spec: &GuestSpec) -> Result<Guest, Error> {
        let agent = image::agent()?;
        let machine = spec.launch(&agent)?;
        Guest::start(&spec.name, &spec.log, &agent, machine)
    }

    /// Boots guests, all at once; where one fails, the others end.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot_all(specs: &[GuestSpec]) -> Result<Vec<Guest>, Error> {
        thread::scope(|scope| {
            let booting: Vec<_> = specs.iter().map(|spec| scope.spawn(|| Guest::boot(spec))).collect();
            let booted: Vec<_> =
                booting.into_iter().map(|guest| guest.join().expect("booting does not panic")).collect();
            booted.into_iter().collect()
        })
    }

    /// Starts a QEMU that a guest of this kind is to be moved to; its agent is reached once the guest is there.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn receive(spec: &GuestSpec) -> Result<Guest, Error> {
        let agent = image::agent()?;
        let mut machine = spec.launch(&agent)?;
        machine.arguments.extend(["-incoming", "defer"].map(str::to_owned));
        Guest::spawn(&Talk::Live, &spec.name, &spec.log, &agent, &machine).map(|(guest, _)| guest)
    }

    /// Starts a machine and waits until its agent serves. What it prints is kept in `log`.
    pub(crate) fn start(name: &str, log: &Path, agent: &Path, machine: Launch) -> Result<Guest, Error> {
        Guest::start_for(&Talk::Live, name, log, agent, machine)
    }

    /// As [`Guest::start`], for a talk of another kind.
    pub(crate) fn start_for(
        talk: &Talk,
        name: &str,
        log: &Path,
        agent: &Path,
        machine: Launch,
    ) -> Result<Guest, Error> {
        let (guest, ready) = Guest::spawn(talk, name, log, agent, &machine)?;
        ready.wait().map(|_| guest).map_err(|error| {
            let silent = matches!(error, Error::Silent { .. });
            let reason = match error {
                Error::Interrupted => return error,
                Error::Silent { patience, .. } => format!("did not come up within {} s", patience.as_secs()),
                Error::Failed { reason, .. } => format!("could not prepare itself: {reason}"),
                _ => "ended before it was up".to_owned(),
            };
            Error::Boot {
                guest: name.to_owned(),
                image: format!("{}, {}", machine.system, machine.image).into(),
                reason,
                silent,
                log: log.to_owned(),
                console: last_lines(log, ""),
            }
        })
    }

    /// Starts a machine. The job ends when its agent serves.
    fn spawn(talk: &Talk, name: &str, log: &Path, agent: &Path, machine: &Launch) -> Result<(Guest, Job), Error> {
        let home = tempfile::Builder::new().prefix("fairlane-").tempdir();
        let home = home.doing(|| "a temporary directory".to_owned())?;
        let (console, theirs) = UnixStream::pair().doing(|| "a pair of sockets".to_owned())?;
        // Appended to by the guest's own programs as well.
        let output = File::create(log).and_then(|_| File::options().append(true).open(log));
        let output = output.doing(|| log.display().to_string())?;
        let errors = output.try_clone().doing(|| log.display().to_string())?;
        let child = Program::new(agent)
            .arg("keep")
            .arg(home.path())
            .arg(&machine.program)
            .args(&machine.arguments)
            .current_dir(home.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(output)
            .stderr(errors)
            // A group of its own: an interrupt from the terminal is for this process to handle.
            .process_group(0)
            .spawn()
            .doing(|| agent.display().to_string())?;
        // The directory is the keeper's to remove, so that it goes even where this process is killed.
        let home = home.keep();
        let process = Process { keeper: child, console };

        let lines = || process.console.try_clone().doing(|| "the guest's console".to_owned());
        let (agent, ready) = match talk {
            Talk::Live => Agent::listen(name, Way::Live(lines()?), lines()?, machine.limit)?,
            Talk::Rehearsal(script) => {
                let way = Way::Rehearsal(lines()?, Mutex::default(), script.clone());
                Agent::listen(name, way, lines()?, machine.limit)?
            }
            Talk::Performance { script, answers } => {
                let file = File::open(answers).doing(|| answers.display().to_string())?;
                let answers = Follow { file, end: lines()? };
                Agent::listen(name, Way::performance(script)?, answers, machine.limit)?
            }
        };
        Ok((Guest { agent, home, process }, ready))
    }

    /// What takes its work.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// A directory of its own, which goes with it.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Takes the CPU from it until [`Guest::resume`], as a host does that has others to run.
    ///
    /// # Errors
    /// It has ended.
    pub fn suspend(&self) -> Result<(), Error> {
        self.signal(Signal::SIGSTOP)
    }

    /// Gives the CPU back to it.
    ///
    /// # Errors
    /// It has ended.
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::SIGCONT)
    }

    /// Signals the process that is the guest's kernel or its emulator: the keeper's only child.
    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let keeper = self.process.keeper.id();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        let done = child.map(|child| kill(Pid::from_raw(child), signal));
        let how = "it has no process any more".to_owned();
        let gone = || Error::Gone { guest: self.agent.name().to_owned(), how };
        done.and_then(Result::ok).ok_or_else(gone)
    }

    /// Powers the guest off and waits for it to end; one that takes more than five seconds is killed.
    ///
    /// # Errors
    /// As [`Job::wait`]; the guest has ended even so.
    pub fn stop(mut self) -> Result<(), Error> {
        self.agent.run(Command::PowerOff)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if self.process.keeper.try_wait().doing(|| format!("wait for guest {}", self.agent.name()))?.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// A guest's processes, all ended when dropped.
struct Process {
    keeper: Child,
    /// What the keeper watches as well: its end is the guest's.
    console: UnixStream,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.console.shutdown(Shutdown::Both);
        let _ = self.keeper.wait();
    }
}

/// The last lines of a log that begin with `mark`, indented.
pub(crate) fn last_lines(log: &Path, mark: &str) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(mark) && !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(15)..].iter().map(|line| format!("    {line}"));
    last.collect::<Vec<_>>().join("\n")
}

/// Finds a program on the PATH.
///
/// # Errors
/// [`Error::Missing`], naming the Debian package it comes with.
pub(crate) fn find_program(program: &str, what: &str, package: &str) -> Result<PathBuf, Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file()).ok_or_else(|| {
        let advice = format!("install it with `apt-get install {package}`");
        Error::Missing(format!("{what} is not installed ({program} is not on the PATH): {advice}"))
    })
}

/// Runs a program to its end; answers what it printed.
pub(crate) fn output(program: &mut Program) -> Result<String, Error> {
    let output = program.stdin(Stdio::null()).output();
    let output = output.doing(|| format!("{program:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let source = std::io::Error::other(format!("{}: {errors}", output.status));
        return Err(Error::Io { what: format!("{program:?}"), source });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
