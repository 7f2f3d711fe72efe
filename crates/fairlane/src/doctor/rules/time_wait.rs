//! The table of TIME_WAIT sockets.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::{Change, percent};

const MOST: &str = "/proc/sys/net/ipv4/tcp_max_tw_buckets";

/// Any overflow, or over 80% full.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let overflows = change.grown("TcpExt", "TCPTimeWaitOverflow");
    let limit = change.after.number(MOST);
    let most = limit.unwrap_or(0);
    let held = change.after.field("/proc/net/sockstat", "TCP", "tw").unwrap_or(0);
    let fraction = held as f64 / most.max(1) as f64;
    if overflows == 0 && (most == 0 || fraction <= 0.8) {
        return Vec::new();
    }
    vec![Finding {
        cause: "time-wait",
        confidence: if overflows > 0 { Confidence::Likely } else { Confidence::Possible },
        limits: 0.1,
        seen: format!("{held} of {most} TIME_WAIT sockets ({}), {overflows} more did not fit", percent(fraction)),
        why: "without TIME_WAIT, late segments of a closed connection may be taken for those of a new one, which is reset"
            .to_owned(),
        change: Remedy::enlarge("net.ipv4.tcp_max_tw_buckets", limit, 2, 65_536..=1 << 20)
            .into_iter()
            .chain([Remedy::by_hand("keep connections open (keep-alive), so that fewer are closed")])
            .collect(),
    }]
}
