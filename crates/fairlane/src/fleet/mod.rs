//! Policies of many hosts: the agent of a host, and changes of all.

mod host;
mod promises;
mod show;

use crate::backend::Backend;
use crate::out::print;
use crate::policy_file::PolicyError;
use anyhow::Context;
use clap::Subcommand;
use fairlane_fleet::{Access, Fleet, Guarantee, Pace, Wanted};
use fairlane_policy::Policy;
use fairlane_policy::units::{format_rate, parse_duration, parse_rate};
use host::ThisHost;
use nix::sys::utsname::uname;
use similar::TextDiff;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a host may take to say that it has its policy.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keep policies of many hosts in NATS JetStream, and put them in force host by host
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Follow this host's policy in the store, and report what became of it
    ///
    /// Runs beside `fairlane up`. A new policy is checked, put in force in the backend, and written to the policy file; one that is wrong changes nothing. Without the store, the host goes on with what it has. A host that the store does not know gives it its own policy.
    Follow {
        /// The policy file that the backend was started with
        policy: PathBuf,
        /// This host's name in the fleet [default: the system's host name]
        #[arg(long, value_name = "NAME", value_parser = name)]
        host: Option<String>,
        #[command(flatten)]
        backend: Backend,
        #[command(flatten)]
        store: Store,
    },
    /// Put policies in force: on one host first, then on two, four and so on
    ///
    /// If a host refuses its policy, is silent, or does not meet a guarantee (min_rate) that it met before, all hosts get their former policies. A host that is away gets its policy when it is back. A host that has its policy already is left alone, so `apply` completes what was interrupted.
    Apply {
        #[command(flatten)]
        wanted: Policies,
        /// The host that is the first [default: the first of the list that is not away]
        #[arg(long, value_name = "HOST")]
        canary: Option<String>,
        /// How long guarantees must be met before the next hosts get their policies
        #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
        settle: Duration,
        #[command(flatten)]
        store: Store,
    },
    /// Show what `apply` would change, line by line
    Diff {
        #[command(flatten)]
        wanted: Policies,
        #[command(flatten)]
        store: Store,
    },
    /// Show all hosts and the guarantees of tenants, or print a host's policy
    Show {
        /// The host whose policy to print
        host: Option<String>,
        /// Print this former revision of it
        #[arg(long, value_name = "N", requires = "host")]
        revision: Option<u64>,
        /// Print the states of hosts as JSON
        #[arg(long, conflicts_with = "host")]
        json: bool,
        #[command(flatten)]
        store: Store,
    },
    /// Guarantee a rate to a tenant on all hosts together
    ///
    /// The hosts that have guests of the tenant divide it by demand, once a second, as far as their links have room. On each host its part takes the place of the tenant's min_rate in the policy.
    Tenant {
        /// The tenant's name in the hosts' policies
        #[arg(value_parser = name)]
        name: String,
        /// What its guests may send in any case, on all hosts together, such as min_rate=2Gbit/s
        #[arg(value_name = "min_rate=RATE", value_parser = guarantee, required_unless_present = "remove")]
        guarantee: Option<Guarantee>,
        /// Take the guarantee away: hosts have the min_rate of their own policies again
        #[arg(long, conflicts_with = "guarantee")]
        remove: bool,
        #[command(flatten)]
        store: Store,
    },
    /// Print what hosts report, as it changes
    Watch {
        #[command(flatten)]
        store: Store,
    },
    /// Remove a host, and its policies, from the store; its own policy file stays
    Forget {
        /// The host
        host: String,
        #[command(flatten)]
        store: Store,
    },
}

/// The fleet's store.
#[derive(clap::Args)]
pub(crate) struct Store {
    /// The NATS server: nats://HOST:PORT, or tls://, with USER:PASSWORD@ if it asks for them; several with commas
    #[arg(long, value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    server: String,
    /// A file of NATS credentials
    #[arg(long, value_name = "FILE")]
    creds: Option<PathBuf>,
    /// The certificate of the authority that signed the server's, beside those that the system trusts
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// This client's certificate
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// Policies for hosts.
#[derive(clap::Args)]
pub(crate) struct Policies {
    /// A policy file for every host, or a directory with a file HOST.toml for each
    policy: PathBuf,
    /// The hosts [default: all of the store, or all of the directory]
    hosts: Vec<String>,
}

/// Parses a time.
fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map(|time| Duration::from_nanos(time.0)).map_err(|wrong| wrong.to_string())
}

/// Parses a name of a host or a tenant.
fn name(text: &str) -> Result<String, String> {
    let wrong = || format!("must have letters, digits, dots, - and _ only, not {text:?}");
    fairlane_fleet::is_name(text).then(|| text.to_owned()).ok_or_else(wrong)
}

/// Parses the guarantee of a tenant.
fn guarantee(text: &str) -> Result<Guarantee, String> {
    let wrong = || format!("must be min_rate and a rate, such as min_rate=2Gbit/s, not {text:?}");
    let rate = text.strip_prefix("min_rate=").ok_or_else(wrong)?;
    match parse_rate(rate) {
        Ok(min_rate) if min_rate >= host::SMALLEST => Ok(Guarantee { min_rate }),
        Ok(_) => Err(format!("min_rate must be at least {}, not {rate}", format_rate(host::SMALLEST))),
        Err(wrong) => Err(format!("min_rate {wrong}")),
    }
}

/// Runs the command.
///
/// # Errors
/// There is no store, a policy has mistakes, or a change was taken back.
pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    fairlane_fleet::run(async {
        match command {
            Command::Follow { policy, host, backend, store } => {
                let name = host.map_or_else(this_host, Ok)?;
                let mut host = ThisHost::new(backend.control, policy);
                match fairlane_fleet::follow(&store.access(), &name, &mut host, &mut log).await? {}
            }
            Command::Apply { wanted, canary, settle, store } => {
                let fleet = store.connect().await?;
                let mut wanted = wanted.read(&fleet).await?;
                if let Some(canary) = &canary {
                    anyhow::ensure!(
                        wanted.iter().any(|wanted| wanted.host == *canary),
                        "the canary {canary} is not among the hosts"
                    );
                    wanted.sort_by_key(|wanted| wanted.host != *canary);
                }
                let pace = Pace { settle, patience: PATIENCE };
                fairlane_fleet::apply(&fleet, &wanted, pace, &mut log).await?;
                print("all hosts have their policies, but those that are away\n")
            }
            Command::Diff { wanted, store } => {
                let fleet = store.connect().await?;
                let path = wanted.policy.clone();
                for Wanted { host, text } in wanted.read(&fleet).await? {
                    let now = fleet.policy(&host).await?.ok_or(fairlane_fleet::Error::UnknownHost(host.clone()))?;
                    let names = (format!("{host} revision {}", now.number), path.display().to_string());
                    let diff = TextDiff::from_lines(&now.text, &text);
                    print(&diff.unified_diff().header(&names.0, &names.1).to_string())?;
                }
                Ok(())
            }
            Command::Tenant { name, guarantee, store, .. } => {
                Ok(store.connect().await?.guarantee(&name, guarantee).await?)
            }
            Command::Show { host: None, json, store, .. } => show::hosts(&store.connect().await?, json).await,
            Command::Show { host: Some(host), revision, store, .. } => {
                let fleet = store.connect().await?;
                let policy = match revision {
                    None => {
                        fleet.policy(&host).await?.ok_or_else(|| fairlane_fleet::Error::UnknownHost(host.clone()))?
                    }
                    Some(number) => fleet.policy_at(&host, number).await?.ok_or_else(|| {
                        anyhow::anyhow!("the store has no revision {number} of {host}; it keeps the last 64 of a host")
                    })?,
                };
                print(&policy.text)
            }
            Command::Watch { store } => show::watch(&store.connect().await?).await,
            Command::Forget { host, store } => {
                let fleet = store.connect().await?;
                anyhow::ensure!(fleet.hosts().await?.contains(&host), "the store has no host {host}");
                Ok(fleet.forget(&host).await?)
            }
        }
    })
}

impl Store {
    fn access(&self) -> Access {
        Access {
            server: self.server.clone(),
            creds: self.creds.clone(),
            tls_ca: self.tls_ca.clone(),
            tls_client: self.tls_cert.clone().zip(self.tls_key.clone()),
        }
    }

    async fn connect(&self) -> Result<Fleet, fairlane_fleet::Error> {
        Fleet::connect(&self.access()).await
    }
}

impl Policies {
    /// Reads and checks the policies: what is wrong everywhere need not be tried anywhere.
    async fn read(&self, fleet: &Fleet) -> anyhow::Result<Vec<Wanted>> {
        let mut hosts = self.hosts.clone();
        if !self.policy.is_dir() {
            let text = read(&self.policy)?;
            if hosts.is_empty() {
                hosts.extend(fleet.hosts().await?);
            }
            return Ok(hosts.into_iter().map(|host| Wanted { host, text: text.clone() }).collect());
        }
        if hosts.is_empty() {
            hosts.extend(names(&self.policy)?);
        }
        let wanted = |host: String| {
            let text = read(&self.policy.join(format!("{host}.toml")))?;
            Ok(Wanted { host, text })
        };
        hosts.into_iter().map(wanted).collect()
    }
}

/// Reads a policy that has no mistakes.
fn read(path: &Path) -> Result<String, PolicyError> {
    let unreadable = |error| PolicyError::Unreadable { path: path.to_owned(), error };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    Policy::parse(&path.display().to_string(), &text).map_err(PolicyError::Invalid)?;
    Ok(text)
}

/// The names of hosts that have a file in a directory, in order.
fn names(directory: &Path) -> Result<BTreeSet<String>, PolicyError> {
    let unreadable = |error| PolicyError::Unreadable { path: directory.to_owned(), error };
    let mut names = BTreeSet::new();
    for entry in directory.read_dir().map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".toml").filter(|name| !name.starts_with('.')).map(str::to_owned));
    }
    Ok(names)
}

/// The system's host name.
fn this_host() -> anyhow::Result<String> {
    // Not from a file of /proc: the service's sandbox hides it.
    let system = uname().context("the system does not say this host's name; choose one with --host")?;
    let name = system.nodename().to_string_lossy();
    self::name(&name).map_err(|wrong| anyhow::anyhow!("the host's name {wrong}; choose one with --host"))
}

/// Tells what happens. If nobody listens, it happens all the same.
fn log(line: String) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
