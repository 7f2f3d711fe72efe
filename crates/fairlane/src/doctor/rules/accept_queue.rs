//! A full accept queue: the kernel drops connections that the program does not accept in time.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::{Change, Listener, lost_to_drops, percent};

const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";
/// The kernel's default (net/core/net_namespace.c, SOMAXCONN), and the smallest value worth setting.
const RECOMMENDED: u64 = 4096;

/// Any overflow, or a queue more than half full at the end.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let overflows = change.grown("TcpExt", "ListenOverflows");
    // Every overflow is a drop; other drops have causes such as lack of memory (net/ipv4/tcp_ipv4.c).
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
        confidence: Confidence::Possible,
        limits: 0.5 * filled(fullest).min(1.0),
        seen: format!(
            "{} of {} entries of the accept queue of {} are in use",
            fullest.queue, fullest.backlog, fullest.local
        ),
        ..finding(change, drops, accepted, Some(fullest))
    }]
}

/// How full the queue is, 0 to slightly above 1, since the kernel admits one more than the backlog.
fn filled(listener: &Listener) -> f64 {
    listener.queue as f64 / listener.backlog.max(1) as f64
}

fn finding(change: &Change, drops: u64, accepted: u64, fullest: Option<&Listener>) -> Finding {
    let lost = drops as f64 / drops.saturating_add(accepted).max(1) as f64;
    let at = fullest.filter(|fullest| fullest.queue > 0).map_or(String::new(), |fullest| {
        format!("; {} has {} of at most {} connections waiting", fullest.local, fullest.queue, fullest.backlog)
    });
    let mut remedies = Vec::new();
    let most = change.after.number(SOMAXCONN);
    // A backlog equal to somaxconn was probably cut to it.
    if let Some(most) =
        most.filter(|most| *most < RECOMMENDED && fullest.is_none_or(|fullest| fullest.backlog >= *most))
    {
        remedies.push(Remedy::set("net.core.somaxconn", RECOMMENDED));
        remedies.push(Remedy::by_hand(format!(
            "restart the server: the backlog is cut to somaxconn (now {most}) when the program calls listen()"
        )));
    } else {
        remedies.push(Remedy::by_hand("pass a longer backlog to listen() (nginx: backlog=, HAProxy: backlog)"));
    }
    remedies.push(Remedy::by_hand(
        "accept faster: one listener per core with SO_REUSEPORT (nginx: reuseport, HAProxy: shards by-thread)",
    ));
    Finding {
        cause: "accept-queue",
        confidence: Confidence::Certain,
        limits: lost_to_drops(drops, accepted),
        seen: format!(
            "{drops} connections dropped at a full accept queue, {accepted} accepted ({} lost){at}",
            percent(lost)
        ),
        why: "connections arrive faster than the program accepts them, and its queue (the smaller of its backlog and \
              net.core.somaxconn) is full; the client retransmits its SYN after a second"
            .to_owned(),
        change: remedies,
    }
}
