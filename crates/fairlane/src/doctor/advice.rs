//! Settings commonly recommended for a high rate of accept() under Xen, and what each is worth on a current kernel.

use super::pinned;
use super::snapshot::Snapshot;
use serde::Serialize;

/// A recommended setting and a verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    /// The setting as it is recommended.
    pub setting: &'static str,
    /// Whether it helps.
    pub verdict: Verdict,
    /// Why.
    pub why: &'static str,
    /// Where it is set on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
}

/// Whether a setting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Helps against one cause, which the doctor finds if it is present.
    Sometimes,
    /// Valid, but without effect on the rate of connections.
    NoHelp,
    /// Makes the rate worse.
    Harmful,
    /// There is no such setting, or not in that place.
    Invalid,
}

/// Where a setting is looked up.
enum Place {
    /// A kernel setting.
    Sysctl(&'static str),
    /// A key in Xen's configuration.
    Xen(&'static str),
}

/// A setting, the verdict, why, and where it is looked up.
type Entry = (&'static str, Verdict, &'static str, Place);

const ENTRIES: [Entry; 9] = [
    (
        "net.ipv4.tcp_syncookies = 0",
        Verdict::Harmful,
        "without cookies a full SYN queue drops connections that cookies would have saved, and tcp_max_syn_backlog drops them earlier",
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
        "it belongs in the configuration of an HVM or PVH guest, where 1 (no_delay_for_missed_ticks) is the default; it only concerns \
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
        "it is used only if tcp_syncookies is 0; otherwise the listener's backlog limits the SYN queue",
        Place::Sysctl("net.ipv4.tcp_max_syn_backlog"),
    ),
    (
        "net.ipv4.tcp_synack_retries = 3",
        Verdict::NoHelp,
        "the kernel gives up sooner on clients that do not answer, but accepts no connection faster",
        Place::Sysctl("net.ipv4.tcp_synack_retries"),
    ),
    (
        "net.ipv4.tcp_tw_reuse = 1",
        Verdict::Sometimes,
        "for connections that this machine opens (cause ports); it has no effect on connections it accepts",
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
    /// The text shown to people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Verdict::Sometimes => "helps sometimes",
            Verdict::NoHelp => "does not help",
            Verdict::Harmful => "is harmful",
            Verdict::Invalid => "is not valid",
        }
    }
}

/// The recommended settings that are set on this machine, or all of them.
pub(super) fn advice(snapshot: &Snapshot, all: bool) -> Vec<Advice> {
    let advice = ENTRIES.iter().map(|(setting, verdict, why, place)| {
        let set = match place {
            Place::Sysctl(key) => pinned::find(snapshot, key),
            Place::Xen(key) => find_in_xen(snapshot, key),
        };
        Advice { setting, verdict: *verdict, why, set }
    });
    advice.filter(|advice| all || advice.set.is_some()).collect()
}

/// Where a key is set in Xen's configuration: `FILE:LINE`.
fn find_in_xen(snapshot: &Snapshot, key: &str) -> Option<String> {
    let sets = |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim() == key);
    snapshot.below("/etc/xen/").find_map(|(name, text)| {
        let line = text.lines().position(sets)?;
        // In a guest's own file this key is valid.
        let belongs = key == "timer_mode" && name != "xl.conf";
        (!belongs).then(|| format!("/etc/xen/{name}:{}", line + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_this_machine_are_reported() {
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
