//! Settings that are passed on for a high rate of accept() under Xen, and what each is worth on a kernel of today.

use super::pinned;
use super::snapshot::Snapshot;
use serde::Serialize;

/// A setting with its worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// As it is passed on.
    pub setting: &'static str,
    /// What it is worth.
    pub verdict: Verdict,
    /// Why.
    pub why: &'static str,
    /// Where it is set on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
}

/// What a setting is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Helps against one cause, which the doctor finds if it is there.
    Sometimes,
    /// Valid, and does nothing for the rate of connections.
    NoHelp,
    /// Makes it worse.
    Harmful,
    /// There is no such setting, or not there.
    Invalid,
}

/// How a setting is recognised.
enum Place {
    /// A kernel setting.
    Sysctl(&'static str),
    /// A word in Xen's configuration.
    Xen(&'static str),
}

/// A setting, what it is worth, why, and how it is recognised.
type Known = (&'static str, Verdict, &'static str, Place);

const KNOWN: [Known; 9] = [
    (
        "net.ipv4.tcp_syncookies = 0",
        Verdict::Harmful,
        "without cookies a full SYN queue drops connections that it would have let in, and tcp_max_syn_backlog drops them earlier",
        Place::Sysctl("net.ipv4.tcp_syncookies"),
    ),
    (
        "credit2_runqueue = credit (xl.conf)",
        Verdict::Invalid,
        "it is an option of the hypervisor's command line and takes cpu, core, socket, node or all; another scheduler is \
         sched=credit there",
        Place::Xen("credit2_runqueue"),
    ),
    (
        "vcpu_pin = [...] (guest's configuration)",
        Verdict::Invalid,
        "xl knows no such key; virtual processors are pinned by cpus = [\"1\", \"2\"], or xl vcpu-pin while the guest runs",
        Place::Xen("vcpu_pin"),
    ),
    (
        "timer_mode = 1 (xl.conf)",
        Verdict::Invalid,
        "it belongs in an HVM or PVH guest's configuration, where 1 (no_delay_for_missed_ticks) is the default already, and is about \
         missed timer ticks",
        Place::Xen("timer_mode"),
    ),
    (
        "net.core.somaxconn = 32768",
        Verdict::Sometimes,
        "against a full accept queue of a server that asks for a longer backlog (cause accept-queue); the default is 4096 since \
         Linux 5.4",
        Place::Sysctl("net.core.somaxconn"),
    ),
    (
        "net.ipv4.tcp_max_syn_backlog = 4096, 65536",
        Verdict::NoHelp,
        "it counts only where tcp_syncookies is 0; otherwise the listener's backlog bounds the SYN queue",
        Place::Sysctl("net.ipv4.tcp_max_syn_backlog"),
    ),
    (
        "net.ipv4.tcp_synack_retries = 3",
        Verdict::NoHelp,
        "it gives up sooner on clients that do not answer, and lets no connection in faster",
        Place::Sysctl("net.ipv4.tcp_synack_retries"),
    ),
    (
        "net.ipv4.tcp_tw_reuse = 1",
        Verdict::Sometimes,
        "for connections that this machine opens (cause ports); to connections it accepts it does nothing",
        Place::Sysctl("net.ipv4.tcp_tw_reuse"),
    ),
    (
        "net.core.netdev_max_backlog = 10000",
        Verdict::Sometimes,
        "against drops before the stack (cause backlog), which are rare with cards that poll",
        Place::Sysctl("net.core.netdev_max_backlog"),
    ),
];

impl Verdict {
    /// As a person reads it.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Sometimes => "helps sometimes",
            Verdict::NoHelp => "does not help",
            Verdict::Harmful => "does harm",
            Verdict::Invalid => "is not valid",
        }
    }
}

/// The settings that somebody set on this machine; or all of them.
pub fn advice(snapshot: &Snapshot, all: bool) -> Vec<Advice> {
    let known = KNOWN.iter().map(|(setting, verdict, why, place)| {
        let set = match place {
            Place::Sysctl(key) => pinned::find(snapshot, key),
            Place::Xen(word) => xen(snapshot, word),
        };
        Advice { setting, verdict: *verdict, why, set }
    });
    known.filter(|advice| all || advice.set.is_some()).collect()
}

/// Where a word is set in Xen's configuration.
fn xen(snapshot: &Snapshot, word: &str) -> Option<String> {
    let sets = |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim() == word);
    snapshot.below("/etc/xen/").find_map(|(name, text)| {
        let line = text.lines().position(sets)?;
        // In a guest's own file it is where it belongs.
        let belongs = word == "timer_mode" && name != "xl.conf";
        (!belongs).then(|| format!("/etc/xen/{name}:{}", line + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_set_here_is_spoken_of() {
        let mut snapshot = Snapshot::default();
        assert_eq!(advice(&snapshot, false), []);
        assert!(advice(&snapshot, true).iter().all(|advice| advice.set.is_none()));
        snapshot.put("/etc/sysctl.conf", "net.ipv4.tcp_syncookies=0\n".to_owned());
        snapshot.put("/etc/xen/xl.conf", "timer_mode=1\ncredit2_runqueue=credit\n#vcpu_pin=[]\n".to_owned());
        snapshot.put("/etc/xen/guest.cfg", "timer_mode=1\n".to_owned());
        let found = advice(&snapshot, false);
        let found: Vec<_> = found.iter().map(|each| (each.verdict, each.set.as_deref().unwrap())).collect();
        let expected = [
            (Verdict::Harmful, "/etc/sysctl.conf:1"),
            (Verdict::Invalid, "/etc/xen/xl.conf:2"),
            (Verdict::Invalid, "/etc/xen/xl.conf:1"),
        ];
        assert_eq!(found, expected);
    }
}
