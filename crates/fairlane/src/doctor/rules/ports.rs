//! Ephemeral ports: a client has a limited number per destination, and TIME_WAIT occupies each for a minute.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::DESTINATIONS;
use crate::doctor::view::{Change, numbers, percent};
use std::net::{Ipv4Addr, Ipv6Addr};

const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// A wider range that leaves out the ports below 10000, where servers listen.
const WIDE_RANGE: (u64, u64) = (10_000, 65_535);

/// Seconds that TIME_WAIT occupies a port (include/net/tcp.h, TCP_TIMEWAIT_LEN), and after which the port may be used again if
/// tcp_tw_reuse allows it (tcp_tw_reuse_delay).
const TIME_WAIT: (f64, f64) = (60.0, 1.0);

/// Over half of the ports to one destination in use.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let range = numbers(change.after.text(RANGE));
    let [first, last] = range.as_slice() else { return Vec::new() };
    let all = last.saturating_sub(*first).saturating_add(1);
    let busiest = change.after.text(DESTINATIONS).lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, remote, count] = words.as_slice() else { return None };
        Some(((*remote).to_owned(), count.parse::<u64>().ok()?))
    });
    let Some((remote, used)) = busiest.max_by_key(|(_, count)| *count) else { return Vec::new() };
    let fraction = used as f64 / all.max(1) as f64;
    if fraction <= 0.5 {
        return Vec::new();
    }
    let remote = destination(&remote);
    // 1 allows reuse everywhere, 2 on loopback only (ip-sysctl.rst).
    let reuse = change.after.number("/proc/sys/net/ipv4/tcp_tw_reuse");
    let loopback = remote.starts_with("127.") || remote.starts_with("[::1]") || remote.starts_with("[::ffff:127.");
    let reused = reuse == Some(1) || reuse == Some(2) && loopback;
    let (kept, confidence, limits) = match reused {
        true => (TIME_WAIT.1, Confidence::Possible, 0.3 * fraction),
        false => (TIME_WAIT.0, if fraction >= 0.95 { Confidence::Certain } else { Confidence::Likely }, fraction),
    };
    let mut remedies = Vec::new();
    if WIDE_RANGE.1 - WIDE_RANGE.0 > last.saturating_sub(*first) {
        remedies.push(Remedy::set("net.ipv4.ip_local_port_range", format!("{} {}", WIDE_RANGE.0, WIDE_RANGE.1)));
        remedies
            .push(Remedy::by_hand("exclude a service's own port from that range: net.ipv4.ip_local_reserved_ports"));
    }
    if !reused {
        remedies.push(Remedy::set("net.ipv4.tcp_tw_reuse", 1));
    }
    remedies.push(Remedy::by_hand(
        "keep connections open, or connect from several addresses, since each has its own ports",
    ));
    vec![Finding {
        cause: "ports",
        confidence,
        limits: limits.min(1.0),
        seen: format!("{used} of {all} local ports to {remote} are in use ({})", percent(fraction)),
        why: format!(
            "each connection to the same address and port needs its own local port, and the side that closes first keeps it for \
             {kept} s: at most {:.0} connections/s can be opened for long",
            all as f64 / kept
        ),
        change: remedies,
    }]
}

/// Formats `0100007F:1F40` as `127.0.0.1:8000`. The address consists of words in the machine's byte order (net/ipv4/tcp_ipv4.c,
/// `get_tcp4_sock`). Other text is returned unchanged.
fn destination(text: &str) -> String {
    let read = || {
        let (address, port) = text.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let words: Option<Vec<u32>> = address.as_bytes().chunks(8).map(word).collect();
        match words?.as_slice() {
            [word] => Some(format!("{}:{port}", Ipv4Addr::from(word.to_ne_bytes()))),
            [a, b, c, d] => {
                let bytes: Vec<u8> = [a, b, c, d].iter().flat_map(|word| word.to_ne_bytes()).collect();
                Some(format!("[{}]:{port}", Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)))
            }
            _ => None,
        }
    };
    read().unwrap_or_else(|| text.to_owned())
}

fn word(digits: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
