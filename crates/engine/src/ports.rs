//! The ports that a policy names: the one place that knows their kinds.

use crate::failure;
use fairlane_core::policy::{Card, Link, Uplink, Vif, uplink_queue};
use fairlane_port::card::Card as NetworkCard;
use fairlane_port::paced::Paced;
use fairlane_port::tap::Tap;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::xen::backend::{Backend, Found};
use fairlane_port::xen::{Devices, store::Store};
use fairlane_port::{Port, wire};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Opens a guest's card.
///
/// # Errors
/// A sentence: the socket's path is in use, or cannot be made; or this is no driver domain of Xen's.
pub fn vif(vif: &Vif) -> Result<Box<dyn Port>, String> {
    let said = |error: &dyn std::fmt::Display| format!("vif `{}`: {error}", vif.name);
    match &vif.card {
        Card::VhostUser { socket, connect } => {
            let open = if *connect { VhostUser::connect } else { VhostUser::listen };
            Ok(Box::new(open(&vif.name, socket, vif.queues).map_err(|error| said(&error))?))
        }
        Card::Xen { guest, device } => {
            let opened = xen(|backend| backend.vif(&vif.name, guest, *device, vif.queues));
            Ok(Box::new(opened.map_err(|error| said(&error))?.map_err(|error| said(&error))?))
        }
    }
}

/// Has a function told of all cards of Xen's guests, from now on.
///
/// # Errors
/// A sentence: this is no driver domain of Xen's.
pub fn find(found: impl FnMut(Found) + Send + 'static) -> Result<(), String> {
    xen(|backend| backend.find(found))
}

/// The one talk of this process with Xen's toolstack, from the first vif of Xen's on.
static XEN: Mutex<Option<Backend>> = Mutex::new(None);

/// Does something with it, and begins it where it has not begun.
fn xen<R>(with: impl FnOnce(&mut Backend) -> R) -> Result<R, String> {
    let mut backend = XEN.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(with(match &mut *backend {
        Some(backend) => backend,
        none => {
            let mut store = Store::open()?;
            let own = store.own_number()?;
            none.insert(Backend::start(store, Arc::new(Devices::open(own)?), |reason| failure::end(reason))?)
        }
    }))
}

/// Opens the uplinks of all links. A wire is the uplink of two.
///
/// # Errors
/// A sentence: no such tap or card, or a wire that is too long.
pub fn uplinks(links: &[Link]) -> Result<HashMap<String, Box<dyn Port>>, String> {
    let mut uplinks: HashMap<String, Box<dyn Port>> = HashMap::new();
    for link in links {
        let said = |error: &dyn std::fmt::Display| format!("uplink of link `{}`: {error}", link.name);
        match &link.uplink {
            Uplink::None => {}
            Uplink::Tap { name } => {
                let tap = Tap::open(name).map_err(|error| said(&error))?;
                uplinks.insert(link.name.clone(), paced(tap, link));
            }
            Uplink::Card { name } => {
                let card = NetworkCard::open(name).map_err(|error| said(&error))?;
                uplinks.insert(link.name.clone(), paced(card, link));
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

/// A port of the host's behind the link's rate.
fn paced(port: impl Port + 'static, link: &Link) -> Box<dyn Port> {
    Box::new(Paced::new(port, link.rate.unwrap_or(0), uplink_queue(link.rate), true))
}

/// The rate of a link's uplink: its own, or that of the wire that leads to it.
pub fn rate(links: &[Link], link: &Link) -> Option<u64> {
    link.rate.or_else(|| {
        let leads_here = |other: &&Link| matches!(&other.uplink, Uplink::Wire { to, .. } if *to == link.name);
        links.iter().find(leads_here)?.rate
    })
}
