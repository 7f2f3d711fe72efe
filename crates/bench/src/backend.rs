//! Fairlane as a contestant: a worker with one bridge, with switch and `fair` scheduler.

use anyhow::{Result, ensure};
use fairlane_core::PortId;
use fairlane_core::packet::Mac;
use fairlane_core::receive::Receive;
use fairlane_core::sched::{self, SchedulerKind, Share};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::{Clock, Monotonic};
use fairlane_engine::worker::Worker;
use fairlane_port::Port;
use fairlane_port::drain::Drain;
use fairlane_port::tap::Tap;
use fairlane_port::vhost_user::VhostUser;
use std::path::PathBuf;

/// The default of a policy.
const DELAY: Nanos = Nanos::from_millis(10);

/// A running backend.
pub(crate) struct Backend(Worker);

/// The destinations of guests' frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uplink {
    /// No uplink: guests send to each other.
    None,
    /// A sink, which copies each frame once. Guests send to nobody else.
    Sink,
    /// A tap with this name.
    Tap(&'static str),
}

impl Backend {
    /// Starts a backend with a socket per guest, each restricted to one MAC address. The worker is pinned to `core`, if given.
    ///
    /// # Errors
    /// A socket or thread cannot be created.
    pub(crate) fn start(guests: &[(PathBuf, [u8; 6])], uplink: Uplink, core: Option<usize>) -> Result<Backend> {
        Ok(Backend(Worker::start(vec![bridge(guests, uplink)?], Monotonic::new(), core)?))
    }

    /// Limits what the first guest receives, in bits a second, with a policy's default burst.
    ///
    /// # Errors
    /// The worker does not respond.
    pub(crate) fn limit_receiver(&self, rate: u64) -> Result<()> {
        let unlimited = Receive::with_weight(1);
        let share = Share { max_rate: Some(rate), burst: (rate / 800).max(64 << 10), ..unlimited.share };
        let receive = Receive { share, ..unlimited };
        Ok(self.0.call(move |work| work.bridges[0].set_receive(PortId(1), receive, work.clock.now()))?)
    }

    /// Checks that no frame was dropped, so that a rate measured at the guests counts frames that arrived.
    ///
    /// # Errors
    /// Frames were dropped.
    pub(crate) fn check_drops(&self) -> Result<()> {
        let drops = self.0.call(|work| {
            let bridge = &mut work.bridges[0];
            let ports = bridge.ports().into_iter();
            let drops = ports.filter_map(|port| Some((port, bridge.counters(port)?.drops)));
            let named = drops.flat_map(|(port, drops)| {
                let some = drops.iter().filter(|(_, frames)| *frames > 0).collect::<Vec<_>>();
                some.into_iter().map(move |(reason, frames)| format!("{frames} of port {}: {}", port.0, reason.name()))
            });
            named.collect::<Vec<_>>().join(", ")
        })?;
        ensure!(drops.is_empty(), "Fairlane dropped frames ({drops})");
        Ok(())
    }
}

/// A bridge with a socket per guest, each restricted to one MAC address.
///
/// # Errors
/// A socket cannot be created.
pub(crate) fn bridge(guests: &[(PathBuf, [u8; 6])], uplink: Uplink) -> Result<Bridge> {
    let scheduler = sched::build(SchedulerKind::Fair, None, DELAY);
    let switch = Config { isolate: uplink == Uplink::Sink, seed: 1 };
    let mut bridge = Bridge::new("bench", switch, scheduler);
    match uplink {
        Uplink::None => {}
        Uplink::Sink => bridge.set_uplink(Box::new(Drain::new())),
        Uplink::Tap(name) => bridge.set_uplink(Box::new(Tap::open(name)?)),
    }
    let share = Share::of_weight(1);
    for (number, (socket, mac)) in guests.iter().enumerate() {
        let name = format!("guest{number}");
        let port: Box<dyn Port> = Box::new(VhostUser::listen(&name, socket, 1)?);
        let anti_spoofing = AntiSpoofing { mac: Some(Mac(*mac)), addresses: Vec::new() };
        bridge.add(&name, port, share, anti_spoofing, Nanos(0))?;
    }
    Ok(bridge)
}
