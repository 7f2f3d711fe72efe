//! The procedures by their names.

use serde::Deserialize;
use toml::de::ValueDeserializer;

use super::{
    Procedure, all_to_all, packet_delay, path_length, ping, receive_share, replacement, requests, stall, transfer,
    udp_share, weight_steps,
};

/// The names of all procedures.
pub(crate) const NAMES: [&str; 11] = [
    "udp-share",
    "receive-share",
    "weight-steps",
    "ping",
    "packet-delay",
    "transfer",
    "all-to-all",
    "path-length",
    "requests",
    "stall",
    "replacement",
];

/// Deserializes the procedure of this name; none if there is no such procedure.
pub(crate) fn read(name: &str, value: ValueDeserializer) -> Option<Result<Box<dyn Procedure>, toml::de::Error>> {
    fn boxed<'a, P: Procedure + Deserialize<'a> + 'static>(
        value: ValueDeserializer<'a>,
    ) -> Result<Box<dyn Procedure>, toml::de::Error> {
        Ok(Box::new(P::deserialize(value)?))
    }
    Some(match name {
        "udp-share" => boxed::<udp_share::UdpShare>(value),
        "receive-share" => boxed::<receive_share::ReceiveShare>(value),
        "weight-steps" => boxed::<weight_steps::WeightSteps>(value),
        "ping" => boxed::<ping::Ping>(value),
        "packet-delay" => boxed::<packet_delay::PacketDelay>(value),
        "transfer" => boxed::<transfer::Transfer>(value),
        "path-length" => boxed::<path_length::PathLength>(value),
        "requests" => boxed::<requests::Requests>(value),
        "stall" => boxed::<stall::Stall>(value),
        "replacement" => boxed::<replacement::Replace>(value),
        "all-to-all" => boxed::<all_to_all::AllToAll>(value),
        _ => return None,
    })
}
