//! Hostile frontends at a running daemon, each at a vif of its own, and who sends to them.

pub mod attack;
pub mod deeds;

use std::process::{Command, Stdio};

/// The vifs of frontends that are none of a guest's: who sends to an attacker from the far end, and one that is never connected.
pub const ACCOMPLICE: &str = "accomplice";
pub const NOBODY: &str = "nobody";

/// The vif of an attacker. Each has one that nobody had before, so that it is heard at once whatever others said: a frontend's
/// messages take a hundredth of the time at most.
pub fn attacker(number: usize) -> String {
    format!("attacker-{number}")
}

/// The MAC address of one of these.
pub fn mac(name: &str) -> [u8; 6] {
    let number = name.strip_prefix("attacker-").map(|number| number.parse().expect("the number of an attacker"));
    match (name, number) {
        (_, Some(number)) => [0x52, 0x54, 0, 0x84, 1, number],
        (ACCOMPLICE, _) => [0x52, 0x54, 0, 0x84, 2, 1],
        _ => [0x52, 0x54, 0, 0x84, 2, 2],
    }
}

/// Nice values: of daemon and guests, which other work of this computer is not to hold up, and of attackers, which are other work.
pub const OURS: i32 = -10;
const THEIRS: i32 = 0;

/// Gives the calling thread a nice value, where it may have that.
pub fn renice(value: i32) {
    let thread = nix::unistd::gettid().to_string();
    let mut command = Command::new("renice");
    let _ =
        command.args(["-n", &value.to_string(), "-p", &thread]).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
