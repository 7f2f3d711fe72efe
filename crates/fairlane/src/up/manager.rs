//! Notifications to the service manager, if there is one (sd_notify(3)): ready, reloading, stopping, and the watchdog's keep-alive.

use fairlane_engine::Engine;
use sd_notify::{NotifyState, notify, watchdog_enabled};
use std::env;
use std::thread;
use std::time::Duration;
use tracing::{error, warn};

/// Notifies the service manager of a state.
pub(super) fn notify_state(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        warn!(%error, "cannot notify the service manager: {states:?}");
    }
}

/// Waits before a process ends that could not start. Its manager starts the next one at once, as guests wait for that after any other
/// end; one that cannot start either would keep a CPU busy.
pub(super) fn pause() {
    if env::var_os("NOTIFY_SOCKET").is_some() {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Notifies that the policy is being read again, and since when.
pub(super) fn notify_reloading() {
    let since = NotifyState::monotonic_usec_now().ok();
    notify_state(&[NotifyState::Reloading].into_iter().chain(since).collect::<Vec<_>>());
}

/// How often to send the keep-alive: half of the service manager's watchdog timeout. None if it has no watchdog.
pub(super) fn interval() -> Option<Duration> {
    watchdog_enabled().map(|timeout| timeout / 2)
}

/// Sends the keep-alive if the engine is healthy. Otherwise the watchdog expires and the service manager restarts the service.
pub(super) fn notify_if_healthy(engine: &Engine) {
    match engine.is_well() {
        Ok(()) => notify_state(&[NotifyState::Watchdog]),
        Err(error) => error!("{error}: no keep-alive is sent to the service manager's watchdog"),
    }
}
