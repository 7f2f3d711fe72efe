//! Connections that are being set up: the queue of those begun, and SYNs that got no answer.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::view::{Change, lost_to_drops, percent};

/// A full SYN queue. Its length is the listener's backlog (`inet_csk_reqsk_queue_is_full`), whatever
/// tcp_max_syn_backlog says; that one counts only where cookies are off (`tcp_conn_request`, net/ipv4/tcp_input.c).
pub fn queue(change: &Change) -> Vec<Finding> {
    let dropped = change.grown("TcpExt", "TCPReqQFullDrop");
    let cookies = change.grown("TcpExt", "TCPReqQFullDoCookies").max(change.grown("TcpExt", "SyncookiesSent"));
    if dropped + cookies == 0 {
        return Vec::new();
    }
    let accepted = change.grown("Tcp", "PassiveOpens");
    let off = change.after.number("/proc/sys/net/ipv4/tcp_syncookies") == Some(0);
    let mut remedies = Vec::new();
    if off {
        remedies.push(Remedy::set("net.ipv4.tcp_syncookies", 1));
    }
    remedies.push(Remedy::by_hand(
        "let the server ask for a longer backlog in listen(), at most net.core.somaxconn: it bounds this queue too",
    ));
    let (sure, limits) = match dropped {
        0 => (Sure::Likely, 0.3 * cookies as f64 / cookies.saturating_add(accepted).max(1) as f64),
        _ => (Sure::Certain, lost_to_drops(dropped, accepted)),
    };
    vec![Finding {
        cause: "syn-queue",
        sure,
        limits,
        seen: format!("the queue of connections begun was full: {dropped} dropped, {cookies} answered with a cookie"),
        why: "SYNs come faster than clients complete them, or from clients that never do (a flood). A cookie lets a client in \
              without a place in the queue, but without window scaling and SACK where it has no timestamps"
            .to_owned(),
        change: remedies,
    }]
}

/// SYNs sent again: more than one in a hundred.
pub fn loss(change: &Change) -> Vec<Finding> {
    let (again, opened) = (change.grown("TcpExt", "TCPSynRetrans"), change.grown("Tcp", "ActiveOpens"));
    let part = again as f64 / again.max(opened).max(1) as f64;
    if part <= 0.01 {
        return Vec::new();
    }
    let here = change.grown("TcpExt", "ListenDrops") + change.grown("TcpExt", "TCPReqQFullDrop") > 0;
    let place = if here { "this machine's own listener among others" } else { "on the way, or at the server" };
    vec![Finding {
        cause: "syn-loss",
        sure: Sure::Likely,
        // Mostly what another cause brings about: it stands behind that one.
        limits: 0.4 * part,
        seen: format!("{again} SYNs or answers to them sent again, {opened} connections opened ({})", percent(part)),
        why: format!("a connection whose SYN is lost ({place}) is set up a second later at the earliest"),
        change: vec![Remedy::by_hand(
            "run fairlane doctor on the server, and on the hosts between, under the same load",
        )],
    }]
}
