//! The ports that a policy names: the one place that knows their kinds.

use fairlane_core::policy::{Link, Uplink, Vif, uplink_queue};
use fairlane_port::paced::Paced;
use fairlane_port::tap::Tap;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Port, wire};
use std::collections::HashMap;

/// Opens a guest's card.
///
/// # Errors
/// A sentence: the socket's path is in use, or cannot be made.
pub fn vif(vif: &Vif) -> Result<Box<dyn Port>, String> {
    let open = if vif.connect { VhostUser::connect } else { VhostUser::listen };
    match open(&vif.name, &vif.socket, vif.queues) {
        Ok(port) => Ok(Box::new(port)),
        Err(error) => Err(format!("vif `{}`: {error}", vif.name)),
    }
}

/// Opens the uplinks of all links. A wire is the uplink of two.
///
/// # Errors
/// A sentence: no such tap, or a wire that is too long.
pub fn uplinks(links: &[Link]) -> Result<HashMap<String, Box<dyn Port>>, String> {
    let mut uplinks: HashMap<String, Box<dyn Port>> = HashMap::new();
    for link in links {
        let said = |error: &dyn std::fmt::Display| format!("uplink of link `{}`: {error}", link.name);
        match &link.uplink {
            Uplink::None => {}
            Uplink::Tap { name } => {
                let tap = Tap::open(name).map_err(|error| said(&error))?;
                let paced = Paced::new(tap, link.rate.unwrap_or(0), uplink_queue(link.rate), true);
                uplinks.insert(link.name.clone(), Box::new(paced));
            }
            Uplink::Wire { to, delay, queue, backpressure } => {
                let (delay, queue, backpressure) = (*delay, *queue, *backpressure);
                let options = wire::Options { rate: link.rate, delay, queue, backpressure };
                let (near, far) = wire::pair(options).map_err(|error| said(&error))?;
                uplinks.insert(link.name.clone(), Box::new(near));
                uplinks.insert(to.clone(), Box::new(far));
            }
        }
    }
    Ok(uplinks)
}

/// The rate of a link's uplink: its own, or that of the wire that leads to it.
pub fn rate(links: &[Link], link: &Link) -> Option<u64> {
    link.rate.or_else(|| {
        let leads_here = |other: &&Link| matches!(&other.uplink, Uplink::Wire { to, .. } if *to == link.name);
        links.iter().find(leads_here)?.rate
    })
}
