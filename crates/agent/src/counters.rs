//! The kernel's network counters, read from /proc/net.

use std::{fs, io};

use serde::{Deserialize, Serialize};

/// The counters of a guest since it started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Its interfaces, including loopback.
    pub interfaces: Vec<Interface>,
    /// Datagrams dropped because the receiving socket's buffer was full (UDP's RcvbufErrors).
    pub socket_overflows: u64,
}

/// The counters of an interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the column of /proc/net/dev of that name")]
pub struct Interface {
    pub name: String,
    pub received_bytes: u64,
    pub received_frames: u64,
    pub received_dropped: u64,
    pub sent_bytes: u64,
    pub sent_frames: u64,
    pub sent_dropped: u64,
}

impl Counters {
    /// Reads the counters.
    pub fn read() -> io::Result<Counters> {
        Ok(Counters {
            interfaces: interfaces(&fs::read_to_string("/proc/net/dev")?),
            socket_overflows: udp_overflows(&fs::read_to_string("/proc/net/snmp")?).unwrap_or(0),
        })
    }
}

/// Parses /proc/net/dev. Each line after the two headings is `name: ` and sixteen numbers, eight received and eight sent.
fn interfaces(table: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
        (numbers.len() >= 12).then(|| Interface {
            name: name.trim().to_owned(),
            received_bytes: numbers[0],
            received_frames: numbers[1],
            received_dropped: numbers[3],
            sent_bytes: numbers[8],
            sent_frames: numbers[9],
            sent_dropped: numbers[11],
        })
    };
    table.lines().filter_map(interface).collect()
}

/// Parses /proc/net/snmp. Two lines start with `Udp:`: names, then values.
fn udp_overflows(table: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let column = lines.next()?.split_whitespace().position(|name| name == "RcvbufErrors")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_parsed() {
        let table = "Inter-|   Receive   |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n  \
                     lo:  10 2 0 1 0 0 0 0  30 4 0 5 0 0 0 0\n eth0: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n";
        let [lo, eth0] = interfaces(table).try_into().unwrap();
        assert_eq!((lo.name.as_str(), lo.received_dropped, lo.sent_bytes, lo.sent_dropped), ("lo", 1, 30, 5));
        assert_eq!((eth0.name.as_str(), eth0.received_bytes, eth0.sent_bytes), ("eth0", 1, 2));
        let snmp = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 9 8 7 6 5\n";
        assert_eq!(udp_overflows(snmp), Some(5));
        assert_eq!(udp_overflows("Tcp: A\nTcp: 1\n"), None);
    }

    #[test]
    fn this_kernel_has_the_counters() {
        assert!(Counters::read().unwrap().interfaces.iter().any(|interface| interface.name == "lo"));
    }
}
