//! A live table of who sends what over which link.
//!
//! [`state`] makes figures of snapshots, [`app`] holds what is shown, [`draw`] shows it. One thread asks the backend, one
//! reads keys; whatever either has to say is drawn.

mod app;
mod draw;
mod state;
#[cfg(test)]
mod tests;
mod words;

use crate::backend::Backend;
use crate::out;
use anyhow::{Context, bail};
use app::App;
use fairlane_engine::control::{Client, Error};
use fairlane_engine::snapshot::Snapshot;
use fairlane_policy::units::parse_duration;
use nix::sys::signal::{SigSet, Signal};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use state::Reading;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Watch a running backend: who sends what, and which share of the link that is
///
/// `due` is the share that a vif's weight says among those that send. Waits (p50, p99) are bounds of their bucket, powers of
/// two nanoseconds. Keys: q quits, s sorts by the next column, p pauses, arrows select a vif.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    backend: Backend,
    /// Time between two figures, 100ms to 60s
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one table, of one interval, and end
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = Duration::from_nanos(parse_duration(text).map_err(|wrong| wrong.to_string())?.0);
    let right = Duration::from_millis(100)..=Duration::from_secs(60);
    right.contains(&interval).then_some(interval).ok_or_else(|| format!("must be 100ms to 60s, not {text:?}"))
}

/// Watches.
pub fn run(args: Args) -> anyhow::Result<()> {
    if args.once {
        return once(&args);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("a live table needs a terminal; `fairlane top --once` prints a plain one");
    }
    // Before other threads start, which inherit it: a signal is to end the table, not to leave the terminal as the table
    // needs it.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().context("cannot take over signals")?;
    let (say, hear) = channel();
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let told = say.clone();
    thread::spawn(move || ask(&args.backend.control, args.interval, &told));
    let ending = say.clone();
    thread::spawn(move || signals.wait().map(|_| ending.send(News::End)));
    thread::spawn(move || listen(&say));
    let done = watch(&mut terminal, &hear);
    ratatui::restore();
    done
}

/// A table of one interval.
fn once(args: &Args) -> anyhow::Result<()> {
    let mut client = args.backend.connect()?;
    let earlier = client.show()?;
    thread::sleep(args.interval);
    let later = client.show()?;
    let reading = Reading::between(&earlier, &later).context("the backend was started anew meanwhile")?;
    out::print(&words::plain(&reading))
}

/// What there is to react to.
enum News {
    Seen(Result<Snapshot, String>),
    Input(io::Result<Event>),
    /// A signal says so.
    End,
}

/// Draws after everything that happened.
fn watch(terminal: &mut DefaultTerminal, hear: &Receiver<News>) -> anyhow::Result<()> {
    let mut app = App::new();
    loop {
        terminal.draw(|frame| draw::draw(frame, &mut app)).context("cannot draw on the terminal")?;
        match hear.recv()? {
            News::Seen(seen) => app.take(seen),
            News::Input(Ok(Event::Key(key))) if key.is_press() && app.press(key) => return Ok(()),
            News::End => return Ok(()),
            News::Input(Ok(_)) => {}
            News::Input(Err(error)) => return Err(error).context("cannot read the terminal"),
        }
    }
}

/// Reads keys until nobody listens.
fn listen(say: &Sender<News>) {
    loop {
        let input = event::read();
        let last = input.is_err();
        if say.send(News::Input(input)).is_err() || last {
            return;
        }
    }
}

/// Asks a backend for snapshots until nobody listens. One that ended may come back.
fn ask(path: &Path, interval: Duration, say: &Sender<News>) {
    let mut client = None;
    loop {
        let seen = snapshot(&mut client, path).map_err(|error| error.to_string());
        if say.send(News::Seen(seen)).is_err() {
            return;
        }
        thread::sleep(interval);
    }
}

/// Asks over the connection there is, or a new one: a backend closes those that were silent for long.
fn snapshot(client: &mut Option<Client>, path: &Path) -> Result<Snapshot, Error> {
    if let Some(mut open) = client.take()
        && let Ok(seen) = open.show()
    {
        *client = Some(open);
        return Ok(seen);
    }
    client.insert(Client::connect(path)?).show()
}
