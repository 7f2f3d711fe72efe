//! A vif in xenstore: what the backend offers there, and what a frontend asks for (xen/include/public/io/netif.h).

use super::error::Rejection;
use super::link::QueueSetup;
use super::receive::Takes;
use super::store::Store;
use crate::Limit;
use fairlane_policy::Terms;
use std::io;

/// `enum xenbus_state` (xen/include/public/io/xenbus.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Not there.
    Unknown,
    /// Being made.
    Initialising,
    /// Waits for the other end.
    InitWait,
    /// Has said all, waits for the other end to connect.
    Initialised,
    /// Carries frames.
    Connected,
    /// On the way to closed.
    Closing,
    /// Closed.
    Closed,
    /// Any other.
    Other,
}

impl State {
    const ALL: [State; 8] = [
        State::Unknown,
        State::Initialising,
        State::InitWait,
        State::Initialised,
        State::Connected,
        State::Closing,
        State::Closed,
        State::Other,
    ];
}

/// A key's text; none if there is no such key.
///
/// # Errors
/// It cannot be read.
pub fn optional(store: &mut Store, path: &str) -> io::Result<Option<String>> {
    match store.read(path) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The state at `path`/state.
///
/// # Errors
/// It cannot be read.
pub fn state(store: &mut Store, path: &str) -> io::Result<State> {
    let number = optional(store, &format!("{path}/state"))?.and_then(|state| state.trim().parse::<usize>().ok());
    Ok(number.map_or(State::Unknown, |number| State::ALL.get(number).copied().unwrap_or(State::Other)))
}

/// Sets the state at `path`/state, if it is another.
///
/// # Errors
/// It cannot be written.
pub fn set_state(store: &mut Store, path: &str, before: State, state: State) -> io::Result<()> {
    if before == state { Ok(()) } else { store.write(&format!("{path}/state"), &(state as u8).to_string()) }
}

/// Writes what the backend at `path` can do, before it waits for the frontend.
///
/// # Errors
/// It cannot be written.
pub fn offer(store: &mut Store, path: &str, queues: u16) -> io::Result<()> {
    let queues = queues.to_string();
    let keys = [
        ("feature-sg", "1"),
        ("feature-gso-tcpv4", "1"),
        ("feature-gso-tcpv6", "1"),
        ("feature-ipv6-csum-offload", "1"),
        ("feature-rx-copy", "1"),
        ("feature-rx-flip", "0"),
        ("feature-split-event-channels", "1"),
        ("multi-queue-max-queues", queues.as_str()),
        // No interface is to be joined to anything, so no script has to say that it is.
        ("hotplug-status", "connected"),
    ];
    keys.into_iter().try_for_each(|(key, value)| store.write(&format!("{path}/{key}"), value))
}

/// The toolstack's limit on what the guest sends, from `rate`: the bytes of credit, and the microseconds after which
/// there is as much again (xl-network-configuration, "rate"). None if there is none, or it is not of that form.
///
/// # Errors
/// It cannot be read.
pub fn limit(store: &mut Store, path: &str) -> io::Result<Option<Limit>> {
    Ok(optional(store, &format!("{path}/rate"))?.as_deref().and_then(credit))
}

/// What a `rate` says. The credit is what passes at once, but room for one large frame is always.
fn credit(rate: &str) -> Option<Limit> {
    let (bytes, micros) = rate.split_once(',')?;
    let (bytes, micros) = (bytes.trim().parse::<u64>().ok()?, micros.trim().parse::<u64>().ok()?);
    let rate = u64::try_from(u128::from(bytes) * 8_000_000 / u128::from(micros.max(1))).ok()?;
    (rate > 0 && micros > 0).then_some(Limit { rate, burst: bytes.max(64 << 10) })
}

/// What the toolstack's keys at `path` grant the card: those that are Fairlane's own.
///
/// # Errors
/// They cannot be read.
pub fn terms(store: &mut Store, path: &str) -> io::Result<Terms> {
    let mut key = |name: &str| optional(store, &format!("{path}/{name}"));
    Ok(Terms { weight: key("weight")?, min_rate: key("min_rate")? })
}

/// What a frontend at `path` asks for, with at most `most` queues.
///
/// # Errors
/// A key is missing or is none, or the frontend is too old.
pub fn request(store: &mut Store, path: &str, most: u16) -> Result<(Vec<QueueSetup>, Takes), Rejection> {
    let mut number = |key: &str| -> Result<Option<u32>, Rejection> {
        let key = format!("{path}/{key}");
        match optional(store, &key) {
            Ok(None) => Ok(None),
            Ok(Some(value)) => value.trim().parse().map(Some).map_err(|_| Rejection::NoNumber { key, value }),
            Err(error) => Err(Rejection::Unread { key, error }),
        }
    };
    if number("request-rx-copy")? != Some(1) {
        return Err(Rejection::Flipping);
    }
    if number("feature-rx-notify")? != Some(1) {
        return Err(Rejection::Silent);
    }
    let queues = number("multi-queue-num-queues")?.unwrap_or(1);
    if !(1..=most.into()).contains(&queues) {
        return Err(Rejection::Queues { queues, most });
    }
    let mut setups = Vec::new();
    for queue in 0..queues {
        let prefix = if queues == 1 { String::new() } else { format!("queue-{queue}/") };
        let mut need = |key: &str| -> Result<u32, Rejection> {
            number(&format!("{prefix}{key}"))?.ok_or_else(|| Rejection::Missing(format!("{path}/{prefix}{key}")))
        };
        let rings = [need("tx-ring-ref")?, need("rx-ring-ref")?];
        let channels = match need("event-channel-tx") {
            Ok(transmit) => [transmit, need("event-channel-rx")?],
            Err(_) => [need("event-channel")?; 2],
        };
        setups.push(QueueSetup { rings, channels });
    }
    let mut flag = |key: &str| number(key).map(|value| value == Some(1));
    let takes = Takes {
        pieces: flag("feature-sg")?,
        gso: [flag("feature-gso-tcpv4")?, flag("feature-gso-tcpv6")?],
        checksum: [!flag("feature-no-csum-offload")?, flag("feature-ipv6-csum-offload")?],
    };
    Ok((setups, takes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_credit_and_time() {
        assert_eq!(credit("500000,50000"), Some(Limit { rate: 80_000_000, burst: 500_000 }));
        assert_eq!(credit("6250,50000"), Some(Limit { rate: 1_000_000, burst: 65_536 }));
        for wrong in ["", "5", "5,", "0,50000", "5,0", "-1,2", "x,y", "18446744073709551615,1"] {
            assert_eq!(credit(wrong), None, "{wrong}");
        }
    }
}
