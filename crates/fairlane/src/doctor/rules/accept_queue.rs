//! A full accept queue: the kernel drops connections that are ready because the program does not take them.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::view::{Change, Listener, lost_to_drops, percent};

const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";
/// The kernel's own default (net/core/net_namespace.c, SOMAXCONN), and the least that is worth setting.
const ENOUGH: u64 = 4096;

/// Any overflow, or a queue more than half full at the end.
pub fn find(change: &Change) -> Vec<Finding> {
    let overflows = change.grown("TcpExt", "ListenOverflows");
    // Every overflow is a drop; the other drops are for want of memory and the like (net/ipv4/tcp_ipv4.c).
    let drops = change.grown("TcpExt", "ListenDrops").max(overflows);
    let accepted = change.grown("Tcp", "PassiveOpens");
    let listeners = change.after.listeners();
    let Some(fullest) = listeners.iter().max_by(|a, b| filled(a).total_cmp(&filled(b))) else {
        return if drops > 0 { vec![finding(change, drops, accepted, None)] } else { Vec::new() };
    };
    if drops > 0 {
        return vec![finding(change, drops, accepted, Some(fullest))];
    }
    if filled(fullest) <= 0.5 {
        return Vec::new();
    }
    vec![Finding {
        sure: Sure::Possible,
        limits: 0.5 * filled(fullest).min(1.0),
        seen: format!(
            "{} of {} places of the accept queue of {} are taken",
            fullest.queue, fullest.backlog, fullest.local
        ),
        ..finding(change, drops, accepted, Some(fullest))
    }]
}

/// How full its queue is, 0 to 1 and a little over: the kernel lets in one more than it says.
fn filled(listener: &Listener) -> f64 {
    listener.queue as f64 / listener.backlog.max(1) as f64
}

fn finding(change: &Change, drops: u64, accepted: u64, fullest: Option<&Listener>) -> Finding {
    let lost = drops as f64 / drops.saturating_add(accepted).max(1) as f64;
    let at = fullest.filter(|fullest| fullest.queue > 0).map_or(String::new(), |fullest| {
        format!("; {} has {} waiting of {} at most", fullest.local, fullest.queue, fullest.backlog)
    });
    let mut remedies = Vec::new();
    let most = change.after.number(SOMAXCONN);
    // A backlog that is just somaxconn was cut down to it, or else asked for no more.
    if let Some(most) = most.filter(|most| *most < ENOUGH && fullest.is_none_or(|fullest| fullest.backlog >= *most)) {
        remedies.push(Remedy::set("net.core.somaxconn", ENOUGH));
        remedies.push(Remedy::by_hand(format!(
            "restart the server: a backlog is cut to somaxconn (now {most}) when the program calls listen()"
        )));
    } else {
        remedies.push(Remedy::by_hand(
            "let the server ask for a longer backlog in listen() (nginx: backlog=, HAProxy: backlog)",
        ));
    }
    remedies.push(Remedy::by_hand(
        "accept faster: a listener a core with SO_REUSEPORT (nginx: reuseport, HAProxy: shards by-thread)",
    ));
    Finding {
        cause: "accept-queue",
        sure: Sure::Certain,
        limits: lost_to_drops(drops, accepted),
        seen: format!(
            "{drops} connections dropped at a full accept queue, {accepted} taken ({} lost){at}",
            percent(lost)
        ),
        why: "the program does not accept as fast as connections come, and its queue (the lesser of its backlog and \
              net.core.somaxconn) is full: the client sends its SYN again after a second"
            .to_owned(),
        change: remedies,
    }
}
