//! What the service manager is told, if there is one (sd_notify(3)): ready, reloading, stopping, and, as long as it is so, that
//! all is well.

use fairlane_engine::Engine;
use sd_notify::{NotifyState, notify, watchdog_enabled};
use std::time::Duration;
use tracing::{error, warn};

/// Tells of a state.
pub fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        warn!(%error, "the service manager cannot be told: {states:?}");
    }
}

/// Tells that the policy is being read again, and since when.
pub fn tell_reloading() {
    let since = NotifyState::monotonic_usec_now().ok();
    tell(&[NotifyState::Reloading].into_iter().chain(since).collect::<Vec<_>>());
}

/// How often it is to be told that all is well: twice in the time after which it takes silence for a fault. None if it does not ask.
pub fn interval() -> Option<Duration> {
    watchdog_enabled().map(|patience| patience / 2)
}

/// Tells that all is well, if it is. Otherwise it is left to find that out, and starts the service anew.
pub fn tell_if_well(engine: &Engine) {
    match engine.is_well() {
        Ok(()) => tell(&[NotifyState::Watchdog]),
        Err(error) => error!("{error}: the watchdog of the service manager is not told that all is well"),
    }
}
