//! A live table of the traffic of links and vifs.
//!
//! [`history`] keeps the last minute, [`app`] holds the state of the screen, [`draw`] draws it. One thread requests snapshots
//! from the backend, one reads keys; the screen is drawn after each event of either.

mod app;
mod cells;
mod draw;
mod history;
#[cfg(test)]
mod tests;

use crate::backend::Backend;
use crate::out;
use anyhow::{Context, bail};
use app::App;
use fairlane_engine::control::{Client, Error};
use fairlane_engine::reading::Reading;
use fairlane_engine::snapshot::Snapshot;
use fairlane_policy::units::parse_duration;
use nix::sys::signal::{SigSet, Signal};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Watch a running backend: the traffic of each vif and tenant, and its share of the link
///
/// `due` is the share that weights give a vif or tenant among those that send. Waits (p50, p99) are upper bounds of histogram
/// buckets, powers of two nanoseconds. Keys: q quits, s sorts by the next column, p pauses, arrows select a vif.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: Backend,
    /// Time between two updates, 100ms to 60s
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one table, for one interval, and exit
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = Duration::from_nanos(parse_duration(text).map_err(|wrong| wrong.to_string())?.0);
    let right = Duration::from_millis(100)..=Duration::from_secs(60);
    right.contains(&interval).then_some(interval).ok_or_else(|| format!("must be 100ms to 60s, not {text:?}"))
}

/// Shows the table.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.once {
        return once(&args);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("a live table needs a terminal; `fairlane top --once` prints a plain one");
    }
    // Before other threads start, which inherit the blocked signals: a signal must end this loop, so that the terminal is restored.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().context("cannot block signals")?;
    let (events, received) = channel();
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let snapshots = events.clone();
    thread::spawn(move || request_snapshots(&args.backend.control, args.interval, &snapshots));
    let end = events.clone();
    thread::spawn(move || signals.wait().map(|_| end.send(Event::End)));
    thread::spawn(move || read_keys(&events));
    let done = draw_events(&mut terminal, &received);
    ratatui::restore();
    done
}

/// Prints a table for one interval.
fn once(args: &Args) -> anyhow::Result<()> {
    let mut client = args.backend.connect()?;
    let earlier = client.show()?;
    thread::sleep(args.interval);
    let later = client.show()?;
    let reading = Reading::between(&earlier, &later).context("the backend was restarted meanwhile")?;
    out::print(&cells::plain(&reading))
}

/// What the screen reacts to.
enum Event {
    Snapshot(Result<Snapshot, String>),
    Input(io::Result<event::Event>),
    /// A signal to end.
    End,
}

/// Draws the screen after each event, until one ends it.
fn draw_events(terminal: &mut DefaultTerminal, events: &Receiver<Event>) -> anyhow::Result<()> {
    let mut app = App::new();
    loop {
        terminal.draw(|frame| draw::draw(frame, &mut app)).context("cannot draw on the terminal")?;
        match events.recv()? {
            Event::Snapshot(answer) => app.handle_snapshot(answer),
            Event::Input(Ok(event::Event::Key(key))) if key.is_press() && app.handle_key(key) => return Ok(()),
            Event::End => return Ok(()),
            Event::Input(Ok(_)) => {}
            Event::Input(Err(error)) => return Err(error).context("cannot read the terminal"),
        }
    }
}

/// Reads keys until the receiver is gone.
fn read_keys(events: &Sender<Event>) {
    loop {
        let input = event::read();
        let last = input.is_err();
        if events.send(Event::Input(input)).is_err() || last {
            return;
        }
    }
}

/// Requests snapshots until the receiver is gone. A backend that stopped may be started again.
fn request_snapshots(path: &Path, interval: Duration, events: &Sender<Event>) {
    let mut client = None;
    loop {
        let answer = snapshot(&mut client, path).map_err(|error| error.to_string());
        if events.send(Event::Snapshot(answer)).is_err() {
            return;
        }
        thread::sleep(interval);
    }
}

/// Requests a snapshot over the open connection, or a new one: a backend closes connections that were idle for long.
fn snapshot(client: &mut Option<Client>, path: &Path) -> Result<Snapshot, Error> {
    if let Some(mut open) = client.take()
        && let Ok(seen) = open.show()
    {
        *client = Some(open);
        return Ok(seen);
    }
    client.insert(Client::connect(path)?).show()
}
