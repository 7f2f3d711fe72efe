//! What happens, by a seed: a random action at a suitable place, and then the next.

use fairlane_core::time::{Nanos, SECOND};
use fairlane_port::random::Random;

/// An action of or at a backend, its guests or its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Some guests and hosts send a little.
    Chat,
    /// A guest's vif is added to the policy, or removed from it.
    Come,
    Leave,
    /// A guest takes nothing for a while, and others send to it.
    Stall,
    /// It takes a frame now and then.
    Slow,
    /// It posts few bytes at a time.
    Drip,
    /// It sends with other source addresses, and malformed frames.
    Forge,
    /// It breaks a rule of its rings, or its driver stops. It reconnects later.
    Break,
    Disconnect,
    /// The policy changes for a vif, as with `ctl set`; for a link; its scheduler.
    SetVif,
    SetLink,
    Reschedule,
    /// The vif's card changes in the policy: it is closed and opened again, and its flows stay.
    Reopen,
    /// The uplink goes down, or accepts nothing for a while.
    Down,
    Jam,
    /// The backend is killed at any call of a port; ends and restarts at once, as for an upgrade; is blocked for a while.
    Kill,
    Upgrade,
    Hold,
    /// A guest moves to another backend, with its flows.
    Migrate,
    /// A transfer to a guest with early ack starts.
    Transfer,
    /// Some guests always have frames for the uplink.
    Contest,
}

/// How often each happens per hour.
const RATES: [(Action, u64); 21] = [
    (Action::Chat, 15_000),
    (Action::Come, 300),
    (Action::Leave, 200),
    (Action::Stall, 400),
    (Action::Slow, 150),
    (Action::Drip, 150),
    (Action::Forge, 250),
    (Action::Break, 150),
    (Action::Disconnect, 150),
    (Action::SetVif, 600),
    (Action::SetLink, 90),
    (Action::Reschedule, 60),
    (Action::Reopen, 90),
    (Action::Down, 40),
    (Action::Jam, 60),
    (Action::Kill, 60),
    (Action::Upgrade, 40),
    (Action::Hold, 30),
    (Action::Migrate, 120),
    (Action::Transfer, 900),
    (Action::Contest, 90),
];

/// The next action, and the time until it.
pub(crate) fn next(random: &mut Random) -> (Action, Nanos) {
    let all: u64 = RATES.iter().map(|(_, rate)| rate).sum();
    let mut at = random.below(all);
    let action = RATES.iter().find(|(_, rate)| {
        let found = at < *rate;
        at = at.wrapping_sub(*rate);
        found
    });
    // The mean is as the rates require.
    let pause = random.below(2 * 3600 * SECOND / all);
    (action.expect("it is below the sum").0, Nanos(pause))
}
