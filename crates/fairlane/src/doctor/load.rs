//! The doctor's own load: connections on loopback, each with a request and a response, as fast as possible.

use anyhow::Context;
use fairlane_load::traffic::client::{self, Close};
use fairlane_load::traffic::server::{self, Acceptors};
use fairlane_load::traffic::{Pattern, Sizes};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// Seconds that the load runs before and after the measured interval.
const MARGIN: f64 = 0.3;

/// Runs `while_loaded`, which should take `seconds`, under load. Returns its result.
///
/// # Errors
/// The load cannot be started, or ended too early.
pub(super) fn run<T>(seconds: f64, while_loaded: impl FnOnce() -> T) -> anyhow::Result<T> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(16);
    let server = server::Spec {
        at: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        threads,
        acceptors: Acceptors::Each,
        seconds: None,
        interval: seconds + 1.0,
        patience: 30.0,
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (started, server_started) = mpsc::channel();
        let over = &over;
        // Fails only if this function has returned already.
        let started_at = move |at| {
            let _ = started.send(at);
        };
        let server = scope.spawn(move || server::run(&server, over, started_at, |_| ()));
        let Ok(to) = server_started.recv() else {
            let failed = server.join().expect("the server's thread").map(drop);
            return Err(failed.expect_err("a server that did not start").into());
        };
        let client = client::Spec {
            to,
            // The sizes measured in ServerFault question 272483.
            pattern: Pattern::Crr(Sizes { request: 32, response: 1024 }),
            threads,
            connections: 10 * threads,
            rate: None,
            seconds: seconds + 2.0 * MARGIN,
            interval: seconds + 1.0,
            timeout: 5.0,
            // No port is left in TIME_WAIT, so this load causes no finding about ports.
            close: Close::Reset,
            sources: Vec::new(),
        };
        let client = scope.spawn(move || client::run(&client, over, |_| ()));
        thread::sleep(std::time::Duration::from_secs_f64(MARGIN));
        let result = while_loaded();
        let outcome = client.join().expect("the client's thread");
        over.store(true, Ordering::Relaxed);
        server.join().expect("the server's thread").context("the load's server")?;
        let outcome = outcome?;
        match outcome.stopped {
            Some(why) => anyhow::bail!("the load ended too early: {why}"),
            None => Ok(result),
        }
    })
}
