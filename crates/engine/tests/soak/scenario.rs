//! What happens, as a seed has it: a deed, at a place that will do, and then the next.

use fairlane_core::time::{Nanos, SECOND};
use fairlane_port::random::Random;

/// Something that happens to a backend, its guests or its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Some guests and hosts send a little.
    Chat,
    /// A guest's vif is added to the policy; taken out of it.
    Come,
    Leave,
    /// A guest takes nothing for a while, and others send to it.
    Stall,
    /// It takes a frame now and then.
    Slow,
    /// It lends a little room at a time.
    Drip,
    /// It sends as someone else, and what is no frame.
    Forge,
    /// It breaks a rule of its rings; or its driver leaves. It comes again.
    Break,
    Disconnect,
    /// The policy changes for a vif, as `ctl set` does it; for a link; the way its scheduler works.
    SetVif,
    SetLink,
    Reschedule,
    /// The vif's card is another one in the policy: it is taken off and opened, and its flows stay.
    Reopen,
    /// The uplink goes down, or takes nothing for a while.
    Down,
    Jam,
    /// The backend is killed at any call of a port; ends and is started again at once, as in an upgrade; stands still for a while.
    Kill,
    Upgrade,
    Hold,
    /// A guest goes on at another backend, with its flows.
    Migrate,
    /// A transfer to a guest with early ack begins.
    Transfer,
    /// Some guests have frames for the uplink all the time.
    Contest,
}

/// How often each happens in an hour.
const RATES: [(Deed, u64); 21] = [
    (Deed::Chat, 15_000),
    (Deed::Come, 300),
    (Deed::Leave, 200),
    (Deed::Stall, 400),
    (Deed::Slow, 150),
    (Deed::Drip, 150),
    (Deed::Forge, 250),
    (Deed::Break, 150),
    (Deed::Disconnect, 150),
    (Deed::SetVif, 600),
    (Deed::SetLink, 90),
    (Deed::Reschedule, 60),
    (Deed::Reopen, 90),
    (Deed::Down, 40),
    (Deed::Jam, 60),
    (Deed::Kill, 60),
    (Deed::Upgrade, 40),
    (Deed::Hold, 30),
    (Deed::Migrate, 120),
    (Deed::Transfer, 900),
    (Deed::Contest, 90),
];

/// The next deed, and how long after the last it comes.
pub fn next(random: &mut Random) -> (Deed, Nanos) {
    let all: u64 = RATES.iter().map(|(_, rate)| rate).sum();
    let mut at = random.below(all);
    let deed = RATES.iter().find(|(_, rate)| {
        let found = at < *rate;
        at = at.wrapping_sub(*rate);
        found
    });
    // The mean is what the rates ask for.
    let pause = random.below(2 * 3600 * SECOND / all);
    (deed.expect("it is below the sum").0, Nanos(pause))
}
