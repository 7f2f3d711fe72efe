//! Runs a policy until a signal or a control client says to stop.

mod manager;

use crate::figures::count;
use crate::log;
use crate::policy_file::{self, Unfit};
use anyhow::Context;
use fairlane_engine::Engine;
use fairlane_engine::confinement::{self, Kind};
use fairlane_policy::Policy;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use sd_notify::NotifyState;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// Run a policy until SIGINT or SIGTERM
///
/// SIGHUP reads the policy file again; if anything is wrong with it, the running policy stays.
#[derive(clap::Args)]
pub struct Args {
    /// The policy file
    policy: PathBuf,
    /// What to log, as in RUST_LOG, which it overrides: error, warn, info, debug, or fairlane_engine=debug,info
    #[arg(long, value_name = "FILTER", value_parser = filter)]
    log: Option<String>,
    /// Keep capabilities, paths and system calls that serving does not take; without this they are given up once all is opened
    #[arg(long)]
    unconfined: bool,
}

/// Checks a filter.
fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Runs the policy.
pub fn run(args: Args) -> anyhow::Result<()> {
    let filter = log_filter(args.log)?;
    let policy = policy_file::read(&args.policy)?;
    if !args.unconfined {
        confinement::prepare(&policy, &args.policy).map_err(anyhow::Error::msg)?;
    }
    // Before the first thread starts, so that every thread inherits it: only `serve` takes them.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().context("cannot block signals")?;
    let _log = log::start(filter).context("cannot start the log")?;
    let engine = Engine::start(policy)?;
    if args.unconfined {
        tracing::warn!("not confined: --unconfined says so");
    } else {
        confinement::enter(Kind::Main);
        confinement::log();
    }
    tracing::info!("{}", served(&engine.policy(), engine.metrics()));
    manager::tell(&[NotifyState::Ready]);
    serve(&engine, &signals, &args.policy);
    drop(engine);
    tracing::info!("stopped");
    Ok(())
}

/// What to log: as the command says, else the environment.
fn log_filter(filter: Option<String>) -> anyhow::Result<EnvFilter> {
    let filter = filter.or_else(|| std::env::var("RUST_LOG").ok()).unwrap_or_else(|| "info".to_owned());
    EnvFilter::try_new(&filter).with_context(|| format!("RUST_LOG={filter} is no filter"))
}

/// What is served, in a line.
fn served(policy: &Policy, metrics: Option<SocketAddr>) -> String {
    let links: Vec<&str> = policy.links.iter().map(|link| link.name.as_str()).collect();
    let metrics = metrics.map_or("not served".to_owned(), |address| format!("at http://{address}/metrics"));
    let (links, vifs, control) = (links.join(", "), count(policy.vifs.len(), "vif"), policy.control.display());
    format!("serving {links} with {vifs}; control at {control}; metrics {metrics}")
}

/// Follows signals until one says to stop. A control client that says so raises one.
fn serve(engine: &Engine, signals: &SigSet, path: &Path) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !engine.wait(manager::interval()) {
                manager::tell_if_well(engine);
            }
            // To oneself: it cannot fail. After a signal it is one more that nobody takes.
            let _ = kill(Pid::this(), Signal::SIGTERM);
        });
        while let Ok(Signal::SIGHUP) = signals.wait() {
            manager::tell_reloading();
            reload(engine, path);
            manager::tell(&[NotifyState::Ready]);
        }
        tracing::info!("stopping");
        manager::tell(&[NotifyState::Stopping]);
        engine.stopper()();
    });
}

/// Goes over to what the policy file says now.
fn reload(engine: &Engine, path: &Path) {
    let changed = match policy_file::read(path) {
        Ok(policy) => engine.reload(policy).map_err(|error| vec![error.to_string()]),
        Err(Unfit::Wrong(problems)) => Err(problems.iter().map(ToString::to_string).collect()),
        Err(unreadable) => Err(vec![unreadable.to_string()]),
    };
    match changed {
        Ok(changes) => tracing::info!("{} reloaded: {}", path.display(), count(changes, "change")),
        Err(sentences) => {
            sentences.iter().for_each(|sentence| tracing::error!("{sentence}"));
            tracing::error!("{} is not loaded: the running policy stays", path.display());
        }
    }
}
