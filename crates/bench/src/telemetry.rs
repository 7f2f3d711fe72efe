//! The counters of a DPDK program, read from its telemetry socket while it forwards.

use anyhow::{Context, Result, ensure};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr};
use nix::sys::socket::{connect, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Seconds after which an answer is given up.
const PATIENCE: i64 = 20;

/// The longest answer.
const ANSWER: usize = 16 << 10;

/// A connection to a program's telemetry (`rte_telemetry.h`).
pub(crate) struct Telemetry(OwnedFd);

impl Telemetry {
    /// Connects to a socket.
    ///
    /// # Errors
    /// The system's, or no greeting.
    pub(crate) fn connect(path: &Path) -> Result<Telemetry> {
        let own = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&own, ReceiveTimeout, &TimeVal::seconds(PATIENCE))?;
        connect(own.as_raw_fd(), &UnixAddr::new(path)?)?;
        let telemetry = Telemetry(own);
        telemetry.answer().context("DPDK's telemetry greets")?;
        Ok(telemetry)
    }

    /// A counter of a port, such as `opackets`.
    ///
    /// # Errors
    /// The program ended, or has no such port or counter.
    pub(crate) fn counter(&self, port: usize, name: &str) -> Result<u64> {
        send(self.0.as_raw_fd(), format!("/ethdev/stats,{port}").as_bytes(), MsgFlags::MSG_NOSIGNAL)?;
        let answer = self.answer()?;
        value(&answer, name).with_context(|| format!("port {port} has no {name}: {answer}"))
    }

    fn answer(&self) -> Result<String> {
        let mut bytes = vec![0; ANSWER];
        let length = recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
        ensure!(length > 0, "DPDK's telemetry closed");
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }
}

/// A whole number of a JSON object.
fn value(json: &str, name: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":"))?;
    let rest = rest.trim_start();
    rest[..rest.find(|byte: char| !byte.is_ascii_digit())?].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let answer = r#"{"/ethdev/stats":{"ipackets":0,"opackets":78435264,"q_opackets":[1,0],"obytes": 17}}"#;
        assert_eq!(value(answer, "opackets"), Some(78_435_264));
        assert_eq!(value(answer, "obytes"), Some(17));
        assert_eq!(value(answer, "packets"), None);
        assert_eq!(value(r#"{"/ethdev/stats":null}"#, "opackets"), None);
    }
}
