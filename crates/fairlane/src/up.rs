//! Runs a policy until a signal or a control client stops it.

mod manager;

use crate::figures::count;
use crate::log;
use crate::policy_file;
use anyhow::{Context, bail};
use fairlane_engine::confinement::{self, Kind};
use fairlane_engine::predecessor::Predecessor;
use fairlane_engine::{Engine, store};
use fairlane_policy::Policy;
use fairlane_policy::problem::Problem;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use sd_notify::NotifyState;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// What a process prints that has taken over.
pub(crate) const TAKEN_OVER: &str = "taken over";

/// Run a policy until SIGINT or SIGTERM
///
/// SIGHUP reads the policy file and its drop-ins again; if the file has any error, the running policy is kept.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy file
    policy: PathBuf,
    /// What to log, in the syntax of RUST_LOG, which it overrides: error, warn, info, debug, or fairlane_engine=debug,info
    #[arg(long, value_name = "FILTER", value_parser = filter)]
    log: Option<String>,
    /// The form of a log line: text, or a JSON object with a member for each field
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    /// Keep capabilities, paths and system calls that serving does not need; by default they are dropped at startup
    #[arg(long)]
    unconfined: bool,
    /// Take over from the process that serves this policy's control socket: it serves until this one is ready to, and then ends
    #[arg(long)]
    take_over: bool,
}

/// Checks a log filter.
fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Runs the policy.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let filter = log_filter(args.log)?;
    let passed = if args.take_over { Ok(()) } else { store::open() };
    let loaded = policy_file::read(&args.policy)?;
    if !args.unconfined {
        confinement::prepare(&loaded, &args.policy).inspect_err(|_| manager::pause()).map_err(anyhow::Error::msg)?;
    }
    // Before the first thread starts, so that every thread inherits the blocked signals: only `serve` waits for them.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().context("cannot block signals")?;
    let _log = log::start(filter, args.log_format).context("cannot start the log")?;
    log_wrong(&loaded.problems);
    if let Err(error) = passed {
        tracing::error!("what the former process kept cannot be taken over: {error}");
    }
    let control = loaded.policy.control.clone();
    if args.take_over && !loaded.problems.is_empty() {
        bail!("nothing is taken over, as these vifs would lose what serves them");
    }
    // Last: from here on nobody serves, until this process does.
    let former = args.take_over.then(|| Predecessor::succeed(&control)).transpose()?;
    let engine = Engine::start(loaded).inspect_err(|_| {
        if former.is_none() {
            manager::pause();
        }
    })?;
    if let Some(former) = former {
        former.end().context("the former process serves on, as this one was too late")?;
    }
    if args.unconfined {
        tracing::warn!("not confined, because of --unconfined");
    } else {
        confinement::enter(Kind::Main);
        confinement::log();
    }
    tracing::info!("{}", summary(&engine.policy(), engine.metrics()));
    manager::notify_state(&[NotifyState::Ready]);
    if args.take_over {
        // The watchdog's time counts from the former process's last keep-alive.
        manager::notify_state(&[NotifyState::Watchdog]);
        // For whoever started this process: `fairlane upgrade` waits for it.
        println!("{TAKEN_OVER}");
    }
    serve(&engine, &signals, &args.policy);
    match engine.successor() {
        // Everything is the successor's: nothing is closed in order, so that nothing of it is touched.
        Some(_) => std::mem::forget(engine),
        None => drop(engine),
    }
    tracing::info!("stopped");
    Ok(())
}

/// The log filter: the option's, else RUST_LOG, else `info`.
fn log_filter(filter: Option<String>) -> anyhow::Result<EnvFilter> {
    let filter = filter.or_else(|| std::env::var("RUST_LOG").ok()).unwrap_or_else(|| "info".to_owned());
    EnvFilter::try_new(&filter).with_context(|| format!("RUST_LOG={filter} is not a valid filter"))
}

/// One line about what is served.
fn summary(policy: &Policy, metrics: Option<SocketAddr>) -> String {
    let links: Vec<&str> = policy.links.iter().map(|link| link.name.as_str()).collect();
    let metrics = metrics.map_or("not served".to_owned(), |address| format!("at http://{address}/metrics"));
    let (links, vifs, control) = (links.join(", "), count(policy.vifs.len(), "vif"), policy.control.display());
    format!("serving {links} with {vifs}; control at {control}; metrics {metrics}")
}

/// Handles signals until one ends the process. A control client's `stop` raises SIGTERM.
fn serve(engine: &Engine, signals: &SigSet, path: &Path) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !engine.wait(manager::interval()) {
                manager::notify_if_healthy(engine);
            }
            // A signal to the own process cannot fail. If this follows a signal, nobody waits for it any more.
            let _ = kill(Pid::this(), Signal::SIGTERM);
        });
        while let Ok(Signal::SIGHUP) = signals.wait() {
            manager::notify_reloading();
            reload(engine, path);
            manager::notify_state(&[NotifyState::Ready]);
        }
        match engine.successor() {
            Some(process) => {
                tracing::info!("handed over to process {process}");
                manager::notify_state(&[NotifyState::MainPid(process as u32)]);
            }
            None => {
                tracing::info!("stopping");
                manager::notify_state(&[NotifyState::Stopping]);
            }
        }
        engine.stopper()();
    });
}

/// Logs what is wrong with drop-ins.
fn log_wrong(problems: &[Problem]) {
    problems.iter().for_each(|problem| tracing::error!("{problem}"));
    if !problems.is_empty() {
        tracing::error!("these drop-in files are not loaded; the rest is served");
    }
}

/// Loads the policy file and its drop-ins again.
fn reload(engine: &Engine, path: &Path) {
    let changed = match policy_file::files(path) {
        Ok(files) => engine.load(&files).map_err(|error| error.to_string()),
        Err(unreadable) => Err(unreadable.to_string()),
    };
    match changed {
        Ok((changes, problems)) => {
            log_wrong(&problems);
            tracing::info!("{} reloaded: {}", path.display(), count(changes, "change"));
        }
        Err(errors) => {
            errors.lines().for_each(|error| tracing::error!("{error}"));
            tracing::error!("{} is not loaded: the running policy is kept", path.display());
        }
    }
}
