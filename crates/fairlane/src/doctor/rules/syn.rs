//! Connections that are being opened: a full SYN queue, and SYNs without an answer.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::{Change, lost_to_drops, percent};

/// A full SYN queue. Its length is the listener's backlog (`inet_csk_reqsk_queue_is_full`). tcp_max_syn_backlog is used only if
/// cookies are off (`tcp_conn_request`, net/ipv4/tcp_input.c).
pub(super) fn queue(change: &Change) -> Vec<Finding> {
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
        "pass a longer backlog to listen(), at most net.core.somaxconn: it also limits this queue",
    ));
    let (confidence, limits) = match dropped {
        0 => (Confidence::Likely, 0.3 * cookies as f64 / cookies.saturating_add(accepted).max(1) as f64),
        _ => (Confidence::Certain, lost_to_drops(dropped, accepted)),
    };
    vec![Finding {
        cause: "syn-queue",
        confidence,
        limits,
        seen: format!("the SYN queue was full: {dropped} SYNs dropped, {cookies} answered with a cookie"),
        why: "SYNs arrive faster than clients complete the handshake, or clients never complete it (a flood). With a cookie, a client needs \
              no entry in the queue, but without timestamps it loses window scaling and SACK"
            .to_owned(),
        change: remedies,
    }]
}

/// More than 1% of the SYNs retransmitted.
pub(super) fn loss(change: &Change) -> Vec<Finding> {
    let (retransmitted, opened) = (change.grown("TcpExt", "TCPSynRetrans"), change.grown("Tcp", "ActiveOpens"));
    let fraction = retransmitted as f64 / retransmitted.max(opened).max(1) as f64;
    if fraction <= 0.01 {
        return Vec::new();
    }
    let here = change.grown("TcpExt", "ListenDrops") + change.grown("TcpExt", "TCPReqQFullDrop") > 0;
    let place = if here { "at least in part at this machine's own listener" } else { "on the way, or at the server" };
    vec![Finding {
        cause: "syn-loss",
        confidence: Confidence::Likely,
        // Mostly an effect of another cause, which should come first.
        limits: 0.4 * fraction,
        seen: format!(
            "{retransmitted} SYNs or SYN-ACKs retransmitted, {opened} connections opened ({})",
            percent(fraction)
        ),
        why: format!("a connection whose SYN is lost ({place}) opens at least a second later"),
        change: vec![Remedy::by_hand(
            "run fairlane doctor on the server and on the hosts in between, under the same load",
        )],
    }]
}
