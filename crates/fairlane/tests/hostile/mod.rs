//! Hostile frontends of a running daemon, each with its own vif, and a frontend that sends to them.

pub(crate) mod attack;
pub(crate) mod cases;

use std::process::{Command, Stdio};

/// The vifs without a guest: one that sends to the attacker from the far end, and one that is never connected.
pub(crate) const ACCOMPLICE: &str = "accomplice";
pub(crate) const NOBODY: &str = "nobody";

/// The vif of an attacker. Each attacker has a vif of its own, so that its messages are handled at once: the messages of one frontend
/// may take at most a hundredth of the time.
pub(crate) fn attacker(number: usize) -> String {
    format!("attacker-{number}")
}

/// The MAC address of one of these vifs.
pub(crate) fn mac(name: &str) -> [u8; 6] {
    let number = name.strip_prefix("attacker-").map(|number| number.parse().expect("the number of an attacker"));
    match (name, number) {
        (_, Some(number)) => [0x52, 0x54, 0, 0x84, 1, number],
        (ACCOMPLICE, _) => [0x52, 0x54, 0, 0x84, 2, 1],
        _ => [0x52, 0x54, 0, 0x84, 2, 2],
    }
}

/// Nice values: of daemon and guests, which other work of this machine should not delay, and of attackers, which count as other work.
pub(crate) const OURS: i32 = -10;
const THEIRS: i32 = 0;

/// Sets the nice value of the calling thread, if permitted.
pub(crate) fn renice(value: i32) {
    let thread = nix::unistd::gettid().to_string();
    let mut command = Command::new("renice");
    let _ =
        command.args(["-n", &value.to_string(), "-p", &thread]).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
