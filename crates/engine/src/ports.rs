//! Opens the ports that a policy names. Only this file knows the kinds of ports.

use crate::accounts::{Unknown, group, user};
use crate::confinement::{self, Kind, Wish};
use crate::error::Error;
use crate::failure;
use fairlane_policy::{Account, Card, Link, Loaded, Policy, Uplink, Vif, uplink_queue};
use fairlane_port::card::Card as NetworkCard;
use fairlane_port::handover::Resting;
use fairlane_port::paced::Paced;
use fairlane_port::store;
use fairlane_port::tap::Tap;
use fairlane_port::vhost_user::{Access, VhostUser};
use fairlane_port::xdp::{self, Xdp};
use fairlane_port::xen::backend::{Backend, Found};
use fairlane_port::xen::{Devices, Unavailable, store::Store};
use fairlane_port::{Port, wire};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::{error, info, warn};

/// Opens a guest's card.
///
/// # Errors
/// The socket's path is in use or cannot be created, or this is no Xen driver domain.
pub(crate) fn vif(vif: &Vif) -> Result<Box<dyn Port>, Error> {
    let said = |error: &dyn Display| Error::failed(format!("vif `{}`", vif.name), error);
    match &vif.card {
        Card::VhostUser { socket, connect, access, packed } => {
            let access = self::access(access).map_err(|why| said(&why))?;
            let open = if *connect { VhostUser::connect_for } else { VhostUser::listen_for };
            let opened = open(&vif.name, socket, vif.queues, access);
            let port = opened.map_err(|error| said(&confinement::explain(&error, Wish::Socket)))?;
            let kept = store::keeper(&format!("vif {}", vif.name)).map_err(|error| said(&error))?;
            let port = match kept {
                Some((keeper, kept)) => port.kept_by(keeper, kept),
                None => port,
            };
            Ok(Box::new(if *packed { port.with_packed_rings() } else { port }))
        }
        Card::Xen { guest, device } => {
            let opened = xen(|backend| backend.vif(&vif.name, guest, *device, vif.queues));
            Ok(Box::new(opened.map_err(|error| said(&error))?.map_err(|error| said(&error))?))
        }
    }
}

/// Who may connect to a socket, by number.
///
/// # Errors
/// A name that this host does not know.
pub(crate) fn access(access: &fairlane_policy::Access) -> Result<Access, Unknown> {
    Ok(Access {
        owner: access.owner.as_ref().map(user).transpose()?,
        group: access.group.as_ref().map(group).transpose()?,
        mode: access.mode,
    })
}

/// Replaces names of users and groups by this host's present numbers. A drop-in's vif whose owner is unknown is logged and left out.
/// The lookup may use the network, so no worker does it.
///
/// # Errors
/// The first vif of the policy file with an unknown name.
pub(crate) fn look_up(loaded: &mut Loaded) -> Result<(), Error> {
    let mut wrong = None;
    let (of_drop_ins, left_out) = (&loaded.of_drop_ins, &mut loaded.left_out);
    loaded.policy.vifs.retain_mut(|vif| match look_up_one(vif) {
        Err(why) if of_drop_ins.contains(&vif.name) => {
            error!("{why}; it is not served");
            left_out.push(vif.clone());
            false
        }
        looked => {
            wrong = wrong.take().or(looked.err());
            true
        }
    });
    // Guests that come later may need them.
    let policy = &loaded.policy;
    let of_observe = policy.observe.as_ref().and_then(|observe| observe.group.as_ref());
    let said = |table: &str, why: Unknown| Error::failed(format!("[{table}]"), why);
    of_observe.map(group).transpose().map_err(|why| said("observe", why))?;
    access(&policy.sockets).map_err(|why| said("sockets", why))?;
    // They were reported already.
    loaded.base.vifs.iter_mut().for_each(|vif| drop(look_up_one(vif)));
    wrong.map_or(Ok(()), Err)
}

/// Replaces the names in a policy.
///
/// # Errors
/// The first vif with an unknown name.
pub(crate) fn look_up_all(policy: &mut Policy) -> Result<(), Error> {
    policy.vifs.iter_mut().try_for_each(look_up_one)
}

fn look_up_one(vif: &mut Vif) -> Result<(), Error> {
    let Card::VhostUser { access, .. } = &mut vif.card else { return Ok(()) };
    let said = |why: &dyn Display| Error::failed(format!("vif `{}`", vif.name), why);
    if access.owner.is_some() || access.group.is_some() {
        confinement::sees_to_owners().map_err(|why| said(&why))?;
    }
    if let Some(owner) = &mut access.owner {
        *owner = Account::Number(user(owner).map_err(|why| said(&why))?);
    }
    if let Some(of) = &mut access.group {
        *of = Account::Number(group(of).map_err(|why| said(&why))?);
    }
    Ok(())
}

/// Registers a function to be called with every card of Xen guests, from now on.
///
/// # Errors
/// This is no Xen driver domain.
pub(crate) fn find(found: impl FnMut(Found) + Send + 'static) -> Result<(), Error> {
    xen(|backend| backend.find(found)).map_err(|why| Error::failed("cannot look for cards of Xen's guests", why))
}

/// Waits until all cards of Xen guests that are there were found, and the ports of connected ones are connected.
pub(crate) fn settle() {
    // Not while it is locked: whoever is told of a card may open a port.
    let asked = opened().as_ref().map(Backend::settle);
    if asked.is_some_and(|answer| answer.wait().is_err()) {
        warn!(
            "xenstore is slow: the cards of Xen's guests are connected later, and frames for them may be lost until then"
        );
    }
}

/// Leaves the frontends of Xen guests to another process, if there are any, until what this returns is dropped.
///
/// # Errors
/// The thread that connects them does not answer.
pub(crate) fn rest() -> Result<Option<Resting>, Error> {
    let Some((resting, answer)) = opened().as_ref().map(Backend::rest) else { return Ok(None) };
    let slow = |_| Error::failed("Xen's cards stay here", "xenstore has not answered for some seconds");
    answer.wait().map_err(slow)?;
    Ok(Some(resting))
}

/// The process's connection to xenstore, opened for the first Xen vif.
static XEN: Mutex<Option<Backend>> = Mutex::new(None);

fn opened() -> MutexGuard<'static, Option<Backend>> {
    XEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a function with it, and opens it if necessary.
fn xen<R>(with: impl FnOnce(&mut Backend) -> R) -> Result<R, Box<dyn std::error::Error + Send + Sync>> {
    let mut backend = opened();
    Ok(with(match &mut *backend {
        Some(backend) => backend,
        _ if !confinement::has_xen() => {
            return Err(
                "this backend started without Xen cards and gave up access to them: restart it with this policy".into(),
            );
        }
        none => {
            let said = |error: Unavailable| error.to_string();
            let mut store = Store::open().map_err(said)?;
            let own = store.own_number().map_err(said)?;
            let devices = Arc::new(Devices::open(own).map_err(said)?);
            let begin = || confinement::enter(Kind::Xen);
            let started = Backend::start(store, devices, begin, |reason| failure::end(reason));
            none.insert(started.map_err(said)?)
        }
    }))
}

/// Opens the uplinks of all links. A wire is the uplink of two.
///
/// # Errors
/// A tap or card does not exist, or a wire is too long.
pub(crate) fn uplinks(links: &[Link]) -> Result<HashMap<String, Box<dyn Port>>, Error> {
    let mut uplinks: HashMap<String, Box<dyn Port>> = HashMap::new();
    for link in links {
        let said = |error: &dyn Display| Error::failed(format!("uplink of link `{}`", link.name), error);
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
            Uplink::Xdp { name } => {
                uplinks.insert(link.name.clone(), xdp(name, link).map_err(|error| said(&error))?);
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

/// A card through AF_XDP, or, if it cannot be had, through a packet socket.
///
/// # Errors
/// The card cannot be used in either way, or the process that this one is to succeed cannot pass it on.
fn xdp(name: &str, link: &Link) -> Result<Box<dyn Port>, Box<dyn std::error::Error>> {
    match Xdp::open(name) {
        Ok(xdp) => {
            let (mode, queues) = (xdp.mode(), xdp.queues());
            info!(link = link.name, "AF_XDP on {name}: {mode}, queues: {queues}");
            if let Some(why) = xdp.without_driver() {
                info!(link = link.name, "AF_XDP without the driver of {name}: {why}");
            }
            Ok(paced(xdp, link))
        }
        Err(xdp::Error::Card(why)) => Err(why.into()),
        Err(why @ xdp::Error::Taken { .. }) if store::is_others() => Err(format!(
            "{why}; or the process that has them cannot pass them on (its Linux is older than 6.4, or the card has changed \
             since): restart instead"
        )
        .into()),
        Err(why) => {
            let card = NetworkCard::open(name)?;
            warn!(link = link.name, "no AF_XDP, so a packet socket carries the frames (`card`): {why}");
            Ok(paced(card, link))
        }
    }
}

/// A port of the host, paced to the link's rate.
fn paced(port: impl Port + 'static, link: &Link) -> Box<dyn Port> {
    Box::new(Paced::new(port, link.rate.unwrap_or(0), uplink_queue(link.rate), true))
}

/// The rate of a link's uplink: its own, or that of the wire that ends there.
pub(crate) fn rate(links: &[Link], link: &Link) -> Option<u64> {
    link.rate.or_else(|| {
        let leads_here = |other: &&Link| matches!(&other.uplink, Uplink::Wire { to, .. } if *to == link.name);
        links.iter().find(leads_here)?.rate
    })
}
