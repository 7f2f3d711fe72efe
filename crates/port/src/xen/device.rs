//! A vif in xenstore: the features that the backend offers, and a frontend's settings (xen/include/public/io/netif.h).

use super::error::Rejection;
use super::link::QueueSetup;
use super::receive::FrontendFeatures;
use super::store::Store;
use crate::Limit;
use fairlane_policy::Terms;
use std::io;

/// `enum xenbus_state` (xen/include/public/io/xenbus.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// No such key.
    Unknown,
    /// Being created.
    Initialising,
    /// Waits for the other end.
    InitWait,
    /// Has written all its keys; waits for the other end to connect.
    Initialised,
    /// Carries frames.
    Connected,
    /// On the way to closed.
    Closing,
    /// Closed.
    Closed,
    /// Any other value.
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

/// A key's value; none if there is no such key.
///
/// # Errors
/// It cannot be read.
pub(super) fn optional(store: &mut Store, path: &str) -> io::Result<Option<String>> {
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
pub(super) fn state(store: &mut Store, path: &str) -> io::Result<State> {
    let number = optional(store, &format!("{path}/state"))?.and_then(|state| state.trim().parse::<usize>().ok());
    Ok(number.map_or(State::Unknown, |number| State::ALL.get(number).copied().unwrap_or(State::Other)))
}

/// Sets the state at `path`/state, if it changes.
///
/// # Errors
/// It cannot be written.
pub(super) fn set_state(store: &mut Store, path: &str, before: State, state: State) -> io::Result<()> {
    if before == state { Ok(()) } else { store.write(&format!("{path}/state"), &(state as u8).to_string()) }
}

/// Writes the features of the backend at `path`, before it waits for the frontend.
///
/// # Errors
/// It cannot be written.
pub(super) fn offer(store: &mut Store, path: &str, queues: u16) -> io::Result<()> {
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
        // There is no interface to attach to a bridge, so no hotplug script reports this.
        ("hotplug-status", "connected"),
    ];
    keys.into_iter().try_for_each(|(key, value)| store.write(&format!("{path}/{key}"), value))
}

/// The toolstack's limit on what the guest sends, from `rate`: the bytes of credit, and the microseconds after which
/// the credit is renewed (xl-network-configuration, "rate"). None if there is none, or it is malformed.
///
/// # Errors
/// It cannot be read.
pub(super) fn limit(store: &mut Store, path: &str) -> io::Result<Option<Limit>> {
    Ok(optional(store, &format!("{path}/rate"))?.as_deref().and_then(credit))
}

/// Parses a `rate`. The credit is the burst size, but at least one large frame.
fn credit(rate: &str) -> Option<Limit> {
    let (bytes, micros) = rate.split_once(',')?;
    let (bytes, micros) = (bytes.trim().parse::<u64>().ok()?, micros.trim().parse::<u64>().ok()?);
    let rate = u64::try_from(u128::from(bytes) * 8_000_000 / u128::from(micros.max(1))).ok()?;
    (rate > 0 && micros > 0).then_some(Limit { rate, burst: bytes.max(64 << 10) })
}

/// The terms that the toolstack granted the card, in keys of Fairlane's own at `path`.
///
/// # Errors
/// They cannot be read.
pub(super) fn terms(store: &mut Store, path: &str) -> io::Result<Terms> {
    let mut key = |name: &str| optional(store, &format!("{path}/{name}"));
    Ok(Terms { weight: key("weight")?, min_rate: key("min_rate")? })
}

/// The settings of a frontend at `path`, with at most `most` queues.
///
/// # Errors
/// A key is missing or malformed, or the frontend is too old.
pub(super) fn request(
    store: &mut Store,
    path: &str,
    most: u16,
) -> Result<(Vec<QueueSetup>, FrontendFeatures), Rejection> {
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
    let features = FrontendFeatures {
        scatter_gather: flag("feature-sg")?,
        gso: [flag("feature-gso-tcpv4")?, flag("feature-gso-tcpv6")?],
        checksum: [!flag("feature-no-csum-offload")?, flag("feature-ipv6-csum-offload")?],
    };
    Ok((setups, features))
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
